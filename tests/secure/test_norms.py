"""Parts of a row norm, what they cut, and what it costs where they overlap."""

import math
import warnings
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from clear import Clear, parts_of
from secure_plans import plan_for
from sottovoce import algorithms
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.data.bounds import MOST_OVERLAP, party_norms
from sottovoce.queries.pricing import queries_of
from sottovoce.solvers import Newton

RNG = np.random.default_rng(5)
CODES = np.eye(4)[RNG.integers(0, 4, 400)]  # one attribute, one-hot
NUMBERS = RNG.uniform(0, 1, (400, 2))
LABELS = (CODES[:, 0] + NUMBERS[:, 0] > 0.7).astype(int)


def fit(**options: object) -> list[str]:
    bounds = options.pop("bounds", {"row_norm": 2.0, "entry_bound": 1.0})
    federation = sv.Federation.by_columns([CODES, NUMBERS], LABELS, products="secure", **options)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sv.PrivateLogisticRegression(epsilon=2.0, delta=1e-4, solver="newton", **bounds).fit(federation)  # type: ignore[arg-type]
    return [str(warning.message) for warning in said if "row_norm" in str(warning.message)]


@pytest.mark.slow
def test_shares_by_the_number_of_columns_are_warned_of() -> None:
    (text,) = fit()
    assert "party-1 1.63, party-2 1.15" in text
    assert "cut there" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"norms": [2**0.5, 2**0.5]}, {"bounds": {"entry_bound": 1.0}}],
    ids=["norms by attributes", "no row norm"],
)
def test_nothing_is_said_where_nothing_is_left_to_chance(options: dict[str, object]) -> None:
    assert fit(**options) == []


SCHEMA = sv.Schema({"a": {"levels": [0, 1, 2, 3]}, "b": {"range": [0, 1]}, "c": {"range": [0, 1]}})
CELLS = {"a": CODES.argmax(axis=1), "b": NUMBERS[:, 0], "c": NUMBERS[:, 1]}


def split(widths: list[int], products: Any) -> sv.Federation:
    parts = np.split(SCHEMA.encode(CELLS), np.cumsum(widths)[:-1], axis=1)
    return sv.Federation.by_columns(
        parts, LABELS, labels="held" if products == "secure" else "shared", products=products
    )


def model(epsilon: float = 8.0, solver: str = "auto") -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(
        epsilon, delta=1e-4, schema=SCHEMA, classes=(0, 1), solver=solver, insecure_seed=3
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["newton", "gradient", "whitened"])
def test_a_column_that_is_with_two_parties_counts_at_both(solver: str) -> None:
    """Three columns that add 1 each, one of them twice: Q is 4/3, but for the constant."""
    federation = split([2, 4], "secure")
    fitted = model(solver=solver).fit(federation)
    plan = fitted.plan_
    assert np.square(plan.norms) == pytest.approx([1, 3])
    constant = plan.preparation.intercept_entry**2
    square = plan.row_square
    assert square == pytest.approx(constant + (1 - constant) * 4 / 3)
    bounds = {name: query.bound for name, query in queries_of(algorithms.of(plan), plan, plan.names[0]).items()}
    if solver != "gradient":
        assert bounds["gram"] == square
        assert plan.release("gram").charged_zero_out >= square
    if solver == "whitened":
        assert (bounds["gradient"], plan.release("gradient").charged_zero_out) == (31 / 32, 31 / 32)
    else:
        assert plan.release("gradient").charged_zero_out == pytest.approx(plan.numbers.slope_bound * math.sqrt(square))
    assert fitted.score(CELLS, LABELS) > 0.75
    assert "400 test records" in str(sv.evaluate(fitted, split([2, 4], "secure"), epsilon=5.0, insecure_seed=1))
    whole = model(solver=solver).fit(split([4, 2], "secure")).plan_
    assert whole.row_square == pytest.approx(1.0)
    assert whole.release("gradient").std <= plan.release("gradient").std


def test_without_secure_products_norms_do_not_overlap() -> None:
    for epsilon in (8.0, math.inf):
        with pytest.raises(sv.InputError, match="of one column at one party"):
            model(epsilon).fit(split([2, 4], "none"))
    assert model().fit(split([4, 2], "none")).plan_.row_square == 1.0
    federation = sv.Federation.by_columns([CODES, NUMBERS], LABELS, norms=[1.2, 1.2], products="none")
    with pytest.raises(sv.InputError, match=r"norms=\(1.2, 1.2\).*with secure products"):
        sv.PrivateLogisticRegression(2.0, delta=1e-4, classes=(0, 1), row_norm=1.5).fit(federation)


@pytest.mark.parametrize(
    ("norms", "fits"),
    [
        ((1.0, 1.0), True),
        ((1.0,) * int(MOST_OVERLAP), True),
        ((1.0,) * int(MOST_OVERLAP) + (0.1,), False),
        ((0.6, 0.8), True),
        ((0.5, 0.5), False),  # a row might be longer than its parts may be
        ((1.1, 0.5), False),  # a part that is longer than a row
        ((1.0, 0.0), False),
    ],
)
def test_how_far_norms_may_overlap(norms: tuple[float, ...], fits: bool) -> None:
    if fits:
        assert party_norms(1.0, (1,) * len(norms), norms, overlap=True) == list(norms)
    else:
        with pytest.raises(sv.InputError, match="none above row_norm"):
            party_norms(1.0, (1,) * len(norms), norms, overlap=True)
    alone = math.isclose(sum(norm**2 for norm in norms), 1.0)
    if not alone:
        with pytest.raises(sv.InputError, match="with secure products to 4 times"):
            party_norms(1.0, (1,) * len(norms), norms)


def test_a_row_as_long_as_its_parts_is_within_what_is_charged_and_beyond_the_row_norm() -> None:
    """Whatever the schema says, rows are cut part by part: all parts may be full at once."""
    plan = plan_for(50, (2, 3), form=PrivateNewton(), options=Newton(), norms=(1.0, 1.0), fit_intercept=False)
    X = np.random.default_rng(0).standard_normal((50, 5)) * 50
    clear = Clear(plan, PrivateNewton(), parts_of(plan, X, np.ones(50)), np.random.default_rng(1))
    squares = (clear.rows**2).sum(axis=1) / 4**8
    assert plan.row_square == pytest.approx(2.0)
    assert squares.max() <= plan.row_square
    assert squares.max() > 1.9
    assert plan.release("gram").charged_zero_out >= squares.max()
