"""Every warning names the line of the user's own text, however deep inside the package its reason lies."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import sottovoce as sv
from sottovoce.errors import RepeatedFitWarning, warn

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 3))
Y = (X[:, 0] > 0).astype(int)
SCRIPT = """
model = sv.PrivateLogisticRegression(1.0, 1e-5, entry_bound=1.0, classes=(0, 1))
model.fit(X, Y)
model.fit(X, Y)
sv.evaluate(model, X, Y, epsilon=1.0)
"""


def lines(text: str, name: str = "script.py") -> list[tuple[type[Warning], str, int]]:
    """Category, file and line of what a script of that name warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(text, name, "exec"), {"sv": sv, "X": X, "Y": Y, "__name__": "__main__"})
    return [(warning.category, warning.filename, warning.lineno) for warning in caught]


def test_repeated_fits_and_evaluations_name_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.estimators.report.fit_groups", [])
    assert lines(SCRIPT) == [(RepeatedFitWarning, "script.py", 4), (RepeatedFitWarning, "script.py", 5)]


def test_a_fit_inside_a_function_names_the_line_in_it() -> None:
    def fit(model: Any) -> None:
        model.fit(X, Y)

    solver = sv.solvers.Gradient(rounds=1)
    with pytest.warns(ConvergenceWarning) as caught:
        fit(sv.PrivateLogisticRegression(math.inf, entry_bound=1.0, classes=(0, 1), solver=solver))
    assert (caught[0].filename, caught[0].lineno) == (__file__, fit.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("call", ["fit(X, Y)", "plan(sv.Federation.central(X, Y))"])
def test_cautions_name_the_script(call: str) -> None:
    model = f"sv.PrivateLogisticRegression(0.01, 0.0025, entry_bound=1.0, classes=(0, 1), insecure_seed=0).{call}"
    assert lines(f"\n\n{model}\n") == [(UserWarning, "script.py", 3)] * 2


def test_a_search_names_the_script() -> None:
    text = """
model = sv.PrivateLogisticRegression(entry_bound=1.0, classes=(0, 1))
from sottovoce.estimators.search import PrivateRandomizedSearch
PrivateRandomizedSearch(model, {"alpha": [1e-3]}, epsilon=0.1, mean_trials=1, insecure_seed=0).fit(X, Y)
"""
    assert lines(text) == [(UserWarning, "script.py", 4)]


def test_a_line_of_the_package_would_be_found() -> None:
    """Negative control: text that counts as the package's own is passed over, and the caller is named."""
    inside = str(sv.__file__).replace("__init__.py", "made_up.py")
    space: dict[str, Any] = {"warn": warn}
    exec(compile("def deep(): warn('here')\ndef outer(): deep()", inside, "exec"), space)
    with pytest.warns(UserWarning, match="here") as caught:
        space["outer"]()
    assert caught[0].filename == __file__
    exec(compile("def outer(): warn('there')", "elsewhere.py", "exec"), space)
    with pytest.warns(UserWarning, match="there") as caught:
        space["outer"]()
    assert caught[0].filename == "elsewhere.py"
