"""Model files and pages."""

from __future__ import annotations

import html.parser
import json
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

import sottovoce as sv
from sottovoce import PrivateLasso, PrivateLinearSVC, PrivateLogisticRegression
from sottovoce.app.page import Occasion, page, raise_belief
from sottovoce.app.texts import readable_size
from sottovoce.data.block import Block
from sottovoce.errors import InputError
from sottovoce.estimators.model_file import load_model
from sottovoce.formats import MODEL
from sottovoce.privacy.guarantee import FALSE_ALARMS, gaussian_missed, percent
from sottovoce.privacy.ledger import Balance

RNG = np.random.default_rng(8)
X = RNG.uniform(-1, 1, (300, 2))
LABELS = np.where(X @ [1, -1] > 0, "ill", "<well>")


def fitted(**changes):
    return PrivateLogisticRegression(**{"entry_bound": 1.0, "insecure_seed": 1, "alpha": 0.01, **changes}).fit(
        X, LABELS
    )


@pytest.mark.parametrize(
    "model",
    [
        fitted(),
        fitted(epsilon=math.inf),
        fitted(feature_ranges=([-1, -1], [1, 1]), entry_bound=None, classes=("ill", "<well>")),
        fitted(entry_bound=[1.0, 0.5]),
        fitted(entry_bound=np.array([1.0, 0.5]), solver=sv.solvers.CD(inner=6, curvatures=np.array([0.2, 0.1]))),
        fitted(entry_bound=(1.0, 0.5), solver=sv.solvers.GreedyCD(rounds=4), fit_intercept=False),
        fitted(entry_bound=[1, 2], solver="cd", epsilon=math.inf),
        fitted(solver=sv.solvers.SCD(rounds=5), alpha=0.01),
        PrivateLinearSVC(entry_bound=1.0).fit(X, (X[:, 0] > 0).astype(int)),
        PrivateLasso(entry_bound=1.0, label_bound=(-2, 2), alpha=0.01).fit(X, X[:, 0]),
    ],
    ids=[
        "logistic",
        "without privacy",
        "ranges and classes",
        "a bound for each feature",
        "cd",
        "greedy-cd",
        "cd without privacy",
        "scd",
        "svm",
        "lasso",
    ],
)
def test_a_loaded_model_is_the_saved_one(model, tmp_path):
    model.save(tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.coef_.shape == model.coef_.shape
    assert again.charged_as_ == model.charged_as_ == model.plan_.digest.hex()
    assert again.plan_ == model.plan_.model_copy(update={"coin": "withheld"})
    assert again.privacy_ == model.privacy_ or again.privacy_.to_json() == model.privacy_.to_json()
    assert again.communication_ == model.communication_
    assert again.n_iter_ == model.n_iter_
    assert again.epsilon == model.epsilon
    assert again.solver == model.solver


def test_predictions_are_cut_by_the_bounds_of_each_feature(tmp_path):
    wide = np.array([[50.0, -50.0], [-3.0, 0.2]])
    for changes in ({}, {"solver": sv.solvers.CD(inner=6)}):
        model = fitted(entry_bound=[1.0, 0.5], **changes)
        model.save(tmp_path / "model.json")
        expected = model.decision_function(np.array([[1.0, -0.5], [-1.0, 0.2]]))
        for each in (model, load_model(tmp_path / "model.json")):
            np.testing.assert_allclose(each.decision_function(wide), expected, rtol=1e-12)
            assert list(each.entry_bound) == [1.0, 0.5]
            assert each.plan_.bounds.entry_bound == (1.0, 0.5)


def test_the_file_is_strict_json_and_has_no_ledger(tmp_path):
    fitted(epsilon=math.inf).save(tmp_path / "model.json")

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads((tmp_path / "model.json").read_text(), parse_constant=refuse)
    assert content["plan"]["epsilon"] == "inf"
    assert "ledger" not in content["parameters"]


def test_a_solver_is_saved_as_a_job_has_it(tmp_path):
    fitted(solver=sv.solvers.CD(inner=6, curvatures=np.array([0.2, 0.1]))).save(tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["parameters"]["solver"] == {"name": "cd", "inner": 6, "curvatures": [0.2, 0.1]}
    content["parameters"]["solver"]["inner"] = 0
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="inner=0 must be a whole number"):
        load_model(tmp_path / "model.json")


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(InputError, match="not fitted"):
        PrivateLogisticRegression().save(tmp_path / "model.json")


DAMAGE = {
    "a missing key": lambda c: c.pop("coef"),
    "an unknown key": lambda c: c.update(extra=1),
    "an unknown estimator": lambda c: c.update(estimator="os.system"),
    "a NaN": lambda c: c["coef"].__setitem__(0, float("nan")),
    "too few coefficients": lambda c: c["coef"].pop(),
    "a changed plan": lambda c: c["plan"].update(epsilon=0.1),
    "other classes": lambda c: c.update(classes=["a", "b"]),
    "an unknown parameter": lambda c: c["parameters"].update(magic=1),
    "a broken report": lambda c: c["privacy"].pop("against"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path, case):
    path = tmp_path / "model.json"
    fitted().save(path)
    content = json.loads(path.read_text())
    DAMAGE[case](content)
    path.write_text(json.dumps(content))
    said = "NaN is no number of JSON" if case == "a NaN" else "is not a model file of this version"
    with pytest.raises(InputError, match=said):
        load_model(path)


@pytest.mark.parametrize(("number", "said"), [(1, "format 1"), (99, "format 99"), (None, "no format number")])
def test_a_model_of_another_version_is_refused_by_both_numbers(tmp_path, number, said):
    path = tmp_path / "model.json"
    fitted().save(path)
    content = json.loads(path.read_text())
    content["plan"]["numbers"] = []  # whatever else it has: the number is looked at first
    content["version"] = number
    path.write_text(json.dumps(content))
    both = f"{said}, and this version of sottovoce reads models of format {MODEL.number}.*fit the model again"
    with pytest.raises(InputError, match=both):
        load_model(path)


class Parser(html.parser.HTMLParser):
    """Collects tags and links, and checks that tags are nested."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for key, value in attributes if key in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    parser = Parser()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_the_page_is_whole_and_needs_nothing_else():
    model = PrivateLogisticRegression(entry_bound=1.0).fit(X, LABELS)
    balance = Balance(3.0, 0.0, 3.0, 1e-5, 1e-5, 0.0, 0), Balance(3.0, 1.0, 2.7, 1e-5, 1e-5, 0.2, 1)
    text = page(model, Occasion(ledgers=[("<b>north</b>", *balance)], seconds=1.0))
    parser = parsed(text)
    assert parser.links == []
    assert "script" not in parser.tags
    assert "svg" in parser.tags
    assert model.charged_as_ in text
    assert f"at most {percent(raise_belief(model.privacy_.weakest, 0.5))}" in text
    assert "&lt;b&gt;north&lt;/b&gt;" in text
    assert "&lt;well&gt;" in text
    assert "<well>" not in text


@pytest.mark.parametrize("changes", [{"epsilon": math.inf}, {}], ids=["no noise", "a known seed"])
def test_a_page_without_a_promise_says_so(changes):
    text = page(fitted(**changes))
    parsed(text)
    assert "No promise is made" in text
    assert not re.search(r"at most \d+\.\d%", text)


def test_a_suspicion_grows_as_bayes_says_of_the_test_that_accuses() -> None:
    """Drawn: people of a prior, an accusation at its false alarms and detections; who is accused, and rightly."""
    rng = np.random.default_rng(3)
    mu, alarms, prior, people = 0.5, 0.01, 0.25, 4_000_000
    there = rng.random(people) < prior
    accused = rng.standard_normal(people) + mu * there > ndtri(1 - alarms)
    right = float(np.mean(there[accused]))
    error = 6 * math.sqrt(right * (1 - right) / np.count_nonzero(accused))
    view: Any = SimpleNamespace(detected=lambda alarms: 1 - float(gaussian_missed(mu, alarms)))
    assert raise_belief(view, prior, alarms) == pytest.approx(right, abs=error)
    assert abs(math.exp(mu) * prior / (1 - prior + math.exp(mu) * prior) - right) > error  # another bound is another


def test_no_rarer_sign_is_hidden_by_the_chart() -> None:
    """A sign of 1% or more leads to no more than the chart; a rarer one may, and the page says how much."""
    weakest = PrivateLogisticRegression(entry_bound=1.0).fit(X, LABELS).privacy_.weakest
    grew = [raise_belief(weakest, 0.1, rate) for rate, _ in weakest.trade_off if rate > 0]
    assert grew == sorted(grew, reverse=True)
    assert raise_belief(weakest, 0.1, 0.001) > raise_belief(weakest, 0.1, 0.01) > 0.1


def test_the_page_says_what_an_officer_asks() -> None:
    ranges = ([-1.0, -2.5], [1.0, 30.0])
    model = PrivateLogisticRegression(feature_ranges=ranges, classes=("<no>", "yes")).fit(
        X, np.where(LABELS[0] == LABELS, "<no>", "yes")
    )
    about = {"dataset": "wells <b>", "purpose": "find dry wells", "analyst": "water board", "note": "once"}
    receipts = {"data": "12:" + "9f" * 32}
    parser = parsed(text := page(model, Occasion(about=about, receipts=receipts, model_hash="ab" * 32)))
    assert parser.tags.count("svg") == 2
    for said in ("wells &lt;b&gt;", "find dry wells", "water board", "once", "12:" + "9f" * 32, "ab" * 32):
        assert said in text
    for said in (f"sottovoce {sv.__version__}", model.charged_as_, "&lt;no&gt; and yes", "-2.5", "30"):
        assert said in text
    order = [text.index(f"For {who}") for who in ("a person in the data", "a data protection officer", "an engineer")]
    assert order == sorted(order)
    for assumption in ("each person has one record", "not taken from these data", "in another data set"):
        assert assumption in text
    assert "<b>" not in text[text.index("wells") : text.index("wells") + 20]
    assert "not said" in page(model)


def test_the_page_has_the_curve_and_numbers_of_it() -> None:
    model = PrivateLogisticRegression(entry_bound=1.0).fit(X, LABELS)
    text, weakest = page(model), model.privacy_.weakest
    assert "The best possible attacker" in text
    for rate in (0.001, 0.01, 0.05, 0.1, 0.25):
        assert f'% false alarms">{percent(weakest.detected(rate))}</td>' in text
    points = re.search(r'class="curve c0" points="([^"]+)"', text)
    assert points is not None
    assert len(points[1].split()) == len(FALSE_ALARMS) + 1
    assert "no probability changes" not in text.lower()
    assert "but for events" not in text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (1234, "1.23 kB"), (999_999, "1 MB"), (5 * 10**9, "5 GB")]
)
def test_sizes_are_readable(count, text):
    assert readable_size(count) == text


@pytest.mark.parametrize(
    ("solver", "promised", "longest"),
    [("cd", "the norm of a row is not bounded", math.inf), ("newton", "Rows are scaled to a norm of at most 1", 1.0)],
)
def test_the_page_promises_of_rows_what_their_layout_does(solver, promised, longest):
    model = fitted(solver=solver)
    norms = np.sqrt(Block.prepare(X, LABELS, model.plan_.preparation).squares)
    assert (norms.max() > 1.0) == (longest > 1.0)
    text = page(model)
    assert promised in text
    assert ("Rows are scaled to a norm" in text) == (longest == 1.0)
