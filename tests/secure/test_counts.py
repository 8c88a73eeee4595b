"""Counts and amounts over secure columns: tables with a section for each of 16 labels, from end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.secure.test_columns_wire import Sites

import sottovoce as sv
from secure_plans import plan_for
from sottovoce import losses
from sottovoce.algorithms.whitened.columns import ColumnsCounts, count_table
from sottovoce.algorithms.whitened.rule import Units
from sottovoce.data.bounds import Bounds
from sottovoce.data.matrix import shrink_slopes
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses import KnownLabels
from sottovoce.plan.problem import Named
from sottovoce.queries.pricing import queries_of
from sottovoce.secure.ring import SECTIONS, WIDE, section_centres

WIDTH = WIDE // SECTIONS
RANGES = ([-1.0] * 6, [1.0] * 6)
TRUE = np.array([0.6, -0.5, 0.4, 0.0, 0.2, -0.3])


def table(records: int, mean: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (records, 6))
    return X, rng.poisson(mean * np.exp(X @ TRUE)).astype(float)


def parts(X: np.ndarray) -> list[np.ndarray]:
    return [X[:, :2], X[:, 2:3], X[:, 3:]]


def federation(X: np.ndarray, y: Any, **about: Any) -> sv.Federation:
    return sv.Federation.by_columns(parts(X), y, **{"labels": "held", "label_party": 1, **about})


def poisson(**about: Any) -> sv.PrivatePoissonRegressor:
    declared = {"epsilon": 8.0, "delta": 1e-6, "label_bound": (0, 40), "feature_ranges": RANGES}
    return sv.PrivatePoissonRegressor(**{**declared, **about})


@pytest.mark.parametrize("mean", [0.02, 0.5, 12.0, 400.0])
@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_nodes_rise_from_0_and_those_of_counts_are_whole(name: str, mean: float) -> None:
    known = KnownLabels(residual=0.8 * math.sqrt(mean), mean=mean, most=1000.0)
    loss: Any = losses.get(name).knowing(known)
    nodes = loss.nodes(known, SECTIONS)
    assert nodes[0] == 0
    assert np.all(np.diff(nodes) > 0)
    assert nodes[-1] >= min(known.most, known.mean + 10 * known.residual)
    if name == "poisson":
        assert np.array_equal(nodes, np.rint(nodes))
    if name == "poisson" and mean < 1:
        assert nodes.tolist() == list(range(SECTIONS))


def test_a_label_goes_to_the_nodes_on_its_two_sides() -> None:
    """To each so often that it is their mean; beyond the last to that one."""
    nodes = np.array([0.0, 1.0, 2.0, 4.0, 8.0, *range(20, 31)])
    for label in (0.0, 1.0, 3.0, 5.5, 7.9, 30.0, 1e9):
        centres = section_centres(np.full(256, label), nodes, np.arange(256, dtype=np.uint8)) / (4 * WIDTH) - 0.5
        places = centres.astype(int)
        assert np.array_equal(places, centres)
        assert places.max() - places.min() <= 1
        assert abs(nodes[places].mean() - min(label, 30.0)) < 0.01 * (1 + label % 29)
    exact = section_centres(nodes, nodes, np.full(len(nodes), 255, dtype=np.uint8)) / (4 * WIDTH) - 0.5
    assert exact.tolist() == list(range(SECTIONS))


@pytest.mark.parametrize(("name", "mean"), [("poisson", 0.1), ("poisson", 9.0), ("gamma", 3.0)])
def test_bits_have_the_slopes_as_their_means(name: str, mean: float) -> None:
    """Between levels and nodes they are interpolated; where one bit can be 1, the other is not."""
    known = KnownLabels(residual=0.9 * mean**0.7, mean=mean, most=60.0)
    loss: Any = losses.get(name)
    plan = counts_plan(name)
    units = Units.of(loss, known)
    most, level, offset = 2.0, 0.25, math.log(mean)
    table = count_table(plan, units, most, level, offset)
    chances = table["chances"] / 2.0**16
    assert chances.shape == (2, WIDE)
    assert float(np.minimum(*chances).max()) < 0.05
    slopes = (chances[0] - chances[1]).reshape(SECTIONS, WIDTH)
    scores = offset + (np.arange(WIDTH) - WIDTH // 2) * level
    for place, node in enumerate(table["nodes"]):
        wanted = shrink_slopes(units.loss, most, scores, np.full(WIDTH, node))
        assert np.abs(slopes[place] - wanted).max() < 0.05, node  # less what rounding to levels adds


def counts_plan(name: str = "poisson") -> Any:
    bounds = Bounds.declare(entry_bound=1.0, label_bound=(0, 40))
    fields: dict[str, Any] = {"loss": Named(name=name), "classes": None, "bounds": bounds, "norms": ()}
    return plan_for(400, (2, 1, 3), form=ColumnsCounts(), **fields)


@pytest.mark.parametrize("query", ["gradient", "rescale"])
@pytest.mark.parametrize("wrong", ["not rising", "below 0", "too few", "a table of classes"])
def test_labels_and_tables_that_make_no_sections_are_refused(query: str, wrong: str) -> None:
    plan = counts_plan()
    asked: Any = queries_of(ColumnsCounts(), plan, plan.names[0])[query]
    rows = 1 if query == "gradient" else 2
    told: dict[str, Any] = {
        "weights": np.zeros(plan.dimension),
        "chances": np.zeros((2 * rows, WIDE), dtype=np.int64),
        "nodes": np.arange(SECTIONS, dtype=float),
        **({"level": np.ones(1)} if query == "gradient" else {"scales": np.ones(2, dtype=np.int64)}),
    }
    number = plan.release(query).first + 1
    assert asked.objection(number, told) is None
    changed = {
        "not rising": {"nodes": np.full(SECTIONS, 3.0)},
        "below 0": {"nodes": np.arange(SECTIONS) - 1.0},
        "too few": {"nodes": np.arange(2.0)},
        "a table of classes": {"chances": np.zeros((rows, 64), dtype=np.int64)},
    }[wrong]
    if wrong == "not rising":
        with pytest.raises(RefusedError, match="rise"):
            asked.lookup({**told, **changed})
    else:
        assert asked.objection(number, {**told, **changed}) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "records"), [(0.15, 12_000), (6.0, 4000)])
def test_as_good_as_in_one_place(mean: float, records: int) -> None:
    X, y = table(records, mean)
    model = poisson(insecure_seed=1).fit(federation(X, y, dealer=sv.Dealer("notary")))
    assert (model.plan_.form, model.plan_.channel.products) == ("columns-counts", True)
    alone = poisson(insecure_seed=1).fit(X, y)
    assert np.abs(model.coef_ - TRUE).max() < max(0.05, 2 * np.abs(alone.coef_ - TRUE).max())
    assert abs(np.exp(model.scores(X)).mean() / y.mean() - 1) < 0.12  # the label's bound is 270 means
    costs = sv.PrivateGammaRegressor(8.0, 1e-6, label_bound=(0, 40), feature_ranges=RANGES, insecure_seed=1)
    costs.fit(federation(X, (1 + y) * np.random.default_rng(1).gamma(2.0, 0.5, len(y))))
    assert np.isfinite(costs.coef_).all()


@pytest.mark.slow
def test_every_role_a_process(tmp_path: Path) -> None:
    """Two holders and a dealer, over gRPC with mutual TLS."""
    X, y = table(1500, 3.0)
    sites = Sites(tmp_path, table=(X, y))
    try:
        model = poisson().fit(sites.federation().declare_columns("held", 0, None))
        assert np.abs(model.coef_ - TRUE).max() < 0.25
        assert [account.balance().plans for account in sites.accounts] == [1, 1]
    finally:
        sites.stop()


@pytest.mark.slow
def test_the_holder_of_the_counts_has_them_evaluated() -> None:
    """By the joint scores of test records."""
    X, y = table(3000, 3.0)
    model = poisson(insecure_seed=2).fit(federation(X, y))
    found = sv.evaluate(model, federation(*table(2000, 3.0, seed=1)), epsilon=3.0, insecure_seed=1)
    assert abs(found.metrics["d2"].value - model.score(*table(2000, 3.0, seed=1))) < 0.15
    assert abs(found.metrics["observed_to_predicted"].value - 1) < 0.15


def test_times_are_refused() -> None:
    X, y = table(50, 1.0)
    labels = sv.labels_with((y > 0).astype(int), time=np.ones(50))
    with pytest.raises(InputError, match="times are not fitted over columns"):
        sv.PrivateCoxRegressor(2.0, 1e-6, periods=[0, 1, 2], feature_ranges=RANGES).fit(federation(X, labels))


@pytest.mark.parametrize(
    ("about", "changed", "text"),
    [
        ({"products": "none"}, {}, "products='secure'"),
        ({}, {"epsilon": math.inf}, "need privacy"),
        ({}, {"exposure_bound": 1.0}, "end with an event"),
        ({}, {"solver": "newton"}, "without privacy alone"),
        ({}, {"label_bound": None}, "label_bound=None"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(about: Any, changed: Any, text: str) -> None:
    X, y = table(200, 1.0)
    with pytest.raises(InputError, match=text):
        poisson(**changed).fit(federation(X, y, **about))
