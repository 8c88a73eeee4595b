"""The texts of the algorithms stay short and their names distinct; which round an ask is, and whom it is for."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce
from plans import plan_for
from sottovoce import algorithms
from sottovoce.algorithms.base import Ask, Rounds, answer, answers, total

SOURCE = Path(sottovoce.__file__).parent
LONGEST = 20  # lines of a `coordinate`, without its docstring
FORMS = {
    f"{form.name}, {form.form}": form
    for name in (*algorithms.SOLVERS, "evaluation", "ranges", "model-selection", "standard-errors")
    for form in algorithms.forms(name)
}


def lines_of(function: Any) -> int:
    """Lines of code in the body of a function."""
    source = textwrap.dedent(inspect.getsource(function))
    body = ast.parse(source).body[0].body[1:]  # type: ignore[attr-defined]
    lines = source.splitlines()[body[0].lineno - 1 :]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


@pytest.mark.parametrize("name", FORMS)
def test_the_text_of_a_form_is_short(name: str) -> None:
    assert lines_of(FORMS[name].coordinate) <= LONGEST


def test_no_class_of_algorithms_and_queries_has_the_name_of_another() -> None:
    files = [path for folder in ("algorithms", "queries") for path in (SOURCE / folder).rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_few_parameters_are_given_to_who_does_not_read_them() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    assert sum(text.count("noqa: ARG") for text in texts) <= 40


def test_an_ask_is_the_next_round_of_its_query_for_those_whose_turn_it_is() -> None:
    form = algorithms.forms("greedy-cd")[0]
    plan = plan_for(form, "rows")
    first, (one, other) = plan.release("choice").first, plan.names
    rounds = Rounds(plan, form)
    assert rounds.assign(Ask("choice")) == (first, (one,))
    assert rounds.assign(Ask("coordinates")) == (first, (one, other))
    assert rounds.assign(Ask("choice")) == (first + 1, (other,))
    assert rounds.assign(Ask("choice", to=(one,), round=7)) == (7, (one,))


def test_the_three_ways_to_ask() -> None:
    weights = np.arange(2.0)
    values = {"anna": np.array([1.0, 2.0]), "ben": np.array([10.0, 20.0])}
    said: list[Any] = [
        (total("gradient", weights=weights), values, [11.0, 22.0], ()),
        (answer("labels"), {"ben": values["ben"]}, [10.0, 20.0], ()),
        (answer("anna", "atom", round=3, weights=weights), {"anna": values["anna"]}, [1.0, 2.0], ("anna",)),
    ]
    for text, sent, wanted, parties in said:
        ask = next(text)
        assert ask.to == parties
        assert ask.round == (3 if parties else None)
        assert all(array is weights for array in ask.arrays.values())
        with pytest.raises(StopIteration) as stop:
            text.send(sent)
        np.testing.assert_array_equal(stop.value.value, wanted)
    text = answers("scores", each={"anna": {"offset": weights}})
    assert next(text).each == {"anna": {"offset": weights}}
    with pytest.raises(StopIteration) as stop:
        text.send(values)
    assert stop.value.value is values


def test_one_party_answers_where_one_is_asked() -> None:
    text = answer("labels")
    next(text)
    with pytest.raises(ValueError, match="too many values"):
        text.send({"anna": np.zeros(1), "ben": np.zeros(1)})
