"""The solver as an object: its options, their checks, and how an estimator carries it."""

from __future__ import annotations

import dataclasses
import inspect
import math
import pickle
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import base
from sottovoce.data.bounds import Bounds
from sottovoce.gate.frames import decode
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.solvers import SOLVERS, Options
from sottovoce.solvers.names import IN_PAPERS
from sottovoce.solvers.options import MOST, NumberRange, OneOf, PerFeature
from sottovoce.transports.base import InProcess

ESTIMATORS = (sv.PrivateRidge, sv.PrivateLasso, sv.PrivateElasticNet, sv.PrivateLogisticRegression, sv.PrivateLinearSVC)
OPTIONS = [(kind, field) for kind in SOLVERS.values() for field in dataclasses.fields(kind)]
NAMED = [f"{kind.name}.{field.name}" for kind, field in OPTIONS]


def values(check: Any) -> tuple[list[Any], list[Any]]:
    """Some values that a check admits, its limits among them, and some that it does not."""
    if isinstance(check, OneOf):
        return list(check.names), ["other", "", 1, True, [check.names[0]]]
    if isinstance(check, PerFeature):
        return [[1.0, 2.0], (0.5,), np.array([3, 4])], [[], [0.0], [-1.0], [math.nan], [math.inf], "a", 1.0, [[1.0]]]
    assert isinstance(check, NumberRange)
    inside = [np.nextafter(check.low, math.inf)] if check.above else [check.low]
    inside += [] if math.isinf(check.high) else [check.high]
    inside = [int(value) for value in inside] if check.whole else [*inside, np.float64(inside[0])]
    outside = [-1, -math.inf, math.nan, "1", True, [1.0], 1j]
    outside += [np.nextafter(check.low, -math.inf)] if check.low > 0 and not check.whole else []
    outside += [check.low] if check.above else []
    outside += [check.high * 1.01] if math.isfinite(check.high) and not check.whole else []
    outside += [check.low - 1, check.low + 0.5, MOST + 1, math.inf] if check.whole else []
    return inside, outside


class TestOptions:
    @pytest.mark.parametrize(("kind", "field"), OPTIONS, ids=NAMED)
    def test_what_is_allowed_is_checked_when_the_object_is_made(self, kind: Any, field: Any) -> None:
        inside, outside = values(field.metadata["check"])
        for value in inside:
            assert getattr(kind(**{field.name: value}), field.name) is value  # nothing is converted
        for value in outside:
            with pytest.raises(sv.InputError) as told:
                kind(**{field.name: value})
            assert str(told.value).startswith(f"{field.name}={value!r} must be ")
            assert f"leave it out for the default rule of solver={kind.name!r}" in str(told.value)

    @pytest.mark.parametrize(("kind", "field"), OPTIONS, ids=NAMED)
    def test_the_documentation_says_what_the_check_allows(self, kind: Any, field: Any) -> None:
        (said,) = [option for option in kind.described() if option.name == field.name]
        assert said.kind == field.metadata["check"].kind
        assert said.meaning.endswith(".")
        assert said.default.endswith(".")
        assert get_type_hints(kind)[field.name] is not None

    @pytest.mark.parametrize("kind", SOLVERS.values(), ids=SOLVERS)
    def test_every_option_is_documented_in_its_order_and_known_to_the_solver(self, kind: Any) -> None:
        assert [option.name for option in kind.described()] == list(kind.names())
        taken = [form.options or kind.names() for form in algorithms.forms(kind.name)]
        assert set(kind.names()) == {name for names in taken for name in names}
        assert all(value is None for value in kind().get_params().values())
        assert kind.summary()

    def test_there_is_a_class_for_every_solver(self) -> None:
        assert list(SOLVERS) == list(algorithms.SOLVERS)
        public = {kind.__name__ for kind in SOLVERS.values()} | {"Options", "SOLVERS", "by_name"}
        assert set(sv.solvers.__all__) == public
        assert all(getattr(sv.solvers, kind.__name__) is kind for kind in SOLVERS.values())
        assert MOST == base.MOST_ROUNDS
        for kind in SOLVERS.values():
            assert f"| `{kind.__name__}` | {kind.name} | " in (sv.solvers.__doc__ or "")

    def test_an_option_that_is_left_out_is_not_given(self) -> None:
        assert sv.solvers.CD(inner=80, order=None).given() == {"inner": 80}
        assert sv.solvers.CD().given() == {}

    def test_it_is_frozen_and_takes_keywords_alone(self) -> None:
        solver = sv.solvers.CD(inner=80)
        with pytest.raises(dataclasses.FrozenInstanceError):
            solver.inner = 3  # type: ignore[misc]
        with pytest.raises(TypeError):
            sv.solvers.CD(80)  # type: ignore[misc]

    def test_equal_objects_are_equal(self) -> None:
        assert sv.solvers.CD(inner=80) == sv.solvers.CD(inner=80) != sv.solvers.CD(inner=81)
        assert sv.solvers.CD() != sv.solvers.GreedyCD()
        one, other = (sv.solvers.CD(curvatures=kind([0.5, 1.0])) for kind in (np.array, list))
        assert one == other
        assert len({one, other, sv.solvers.CD()}) == 2

    def test_it_shows_what_was_given(self) -> None:
        assert repr(sv.solvers.CD(inner=80, order="random")) == "CD(inner=80, order='random')"
        assert repr(sv.solvers.Newton()) == "Newton()"

    def test_by_name(self) -> None:
        assert sv.solvers.by_name("scd-primal", lot=2) == sv.solvers.PrimalSCD(lot=2)
        with pytest.raises(
            sv.InputError, match=r"solver='newtn' is unknown; did you mean 'newton'\? There are: newton"
        ):
            sv.solvers.by_name("newtn")
        with pytest.raises(sv.InputError, match=r"'iner' is no option of solver='cd'; did you mean 'inner'\? It takes"):
            sv.solvers.by_name("cd", iner=3)

    @pytest.mark.parametrize(
        ("name", "told"),
        {
            "dp-cd": "DP-CD is 'cd' here, with calibration='paper' as published. There are: newton",
            "DP-SCD": "DP-SCD is 'scd' here, with calibration='paper'",
            "dpscd": "DP-SCD is 'scd' here",
            "seqdp-scd": "SeqDP-SCD is 'scd-sequential' here, with calibration='paper'",
            "primal DP-SCD": "primal DP-SCD is 'scd-primal' here, with calibration='paper'",
            "sgd1": "SGD1 is 'sgd' here, with calibration='paper'",
            "sgd2": "SGD2 is 'gradient' here, with calibration='paper'",
            "dfw": "dFW is 'frank-wolfe' here, with epsilon=inf and step='printed' over columns",
            "dp-fw": "DP-FW is 'frank-wolfe' here, with calibration='paper'",
            "pride": "PriDE is 'one-shot' here, with calibration='paper'",
            "sdca": "SDCA is 'scd' here, with epsilon=inf",
            "FDML": "FDML is 'fdml' here, with epsilon=inf",
            "dp-gcd": "DP-GCD is 'greedy-cd' here.",
            "dp_sgd": "DP-SGD is 'sgd' here.",
            "bcfw": "BCFW has no privacy and is no solver, but `sottovoce.lab.bcfw.solve`.",
            "admm-sharing": "ADMM sharing is 'admm' here, with calibration='paper'",
            "cocoa": "CoCoA is 'scd' here, with epsilon=inf by rows",
        }.items(),
    )
    def test_papers_names_are_answered_with_ours(self, name: str, told: str) -> None:
        with pytest.raises(sv.InputError) as caught:
            sv.solvers.by_name(name)
        assert f"solver={name!r} is unknown; {told}" in str(caught.value)
        assert name not in sv.solvers.SOLVERS
        assert {solver for solver, _ in IN_PAPERS.values()} <= set(sv.solvers.SOLVERS)

    def test_replace(self) -> None:
        solver = sv.solvers.CD(inner=80, step=0.5).replace(inner=40, step=None)
        assert solver == sv.solvers.CD(inner=40)
        with pytest.raises(sv.InputError, match="inner=0 must be"):
            solver.replace(inner=0)

    @pytest.mark.parametrize("kind", SOLVERS.values(), ids=SOLVERS)
    def test_the_penalties_and_the_form_without_privacy_are_those_of_its_designs(self, kind: Any) -> None:
        forms = algorithms.forms(kind.name)
        splits = {split for form in forms for split in form.splits}
        parameters = {"none": {}, "l1_ball": {"radius": 1.0}, "l2_ball": {"radius": 1.0}}
        parameters |= {"elastic_net": {"alpha": 0.1, "l1_ratio": 0.5}}

        def designed(penalty: str, epsilon: float) -> bool:
            columns = "central" not in splits
            problem = Problem(
                loss=Named(name="squared"),
                regulariser=Named(name=penalty, parameters=parameters.get(penalty, {"alpha": 0.1})),
                split="columns" if columns else "central",
                parties=(("anna", 500), ("ben", 500)) if columns else (("anna", 500),),
                features=6,
                bounds=Bounds.declare(entry_bound=1.0, label_bound=1.0),
                epsilon=epsilon,
                delta=1e-5,
                columns=(4, 2) if columns else (),
            )
            try:
                algorithms.make_plan(problem, kind(), run="run", coin="coin")
            except sv.InputError:
                return False
            return True

        every = Options.penalties
        assert tuple(penalty for penalty in every if designed(penalty, 1.0)) == kind.penalties
        plain = any(form.private is not True and not form.published for form in forms)
        assert any(designed(penalty, math.inf) for penalty in every) == plain


class TestEstimators:
    @pytest.mark.parametrize("kind", ESTIMATORS)
    def test_a_constructor_has_the_parameters_of_the_problem_alone(self, kind: Any) -> None:
        own = inspect.signature(kind).parameters
        assert len(own) <= 23
        assert not set(own) & {name for solver in SOLVERS.values() for name in solver.names()}

    @pytest.mark.parametrize("kind", ESTIMATORS)
    @pytest.mark.parametrize("solver", ["auto", "cd", sv.solvers.CD(inner=80, curvatures=[0.5, 1.0])])
    def test_clone_and_pickle(self, kind: Any, solver: Any) -> None:
        model = kind(epsilon=2.0, solver=solver)
        for again in (clone(model), pickle.loads(pickle.dumps(model)), clone(clone(model))):
            assert again.solver == solver
            assert again.get_params(deep=False).keys() == model.get_params(deep=False).keys()
            assert again.epsilon == 2.0

    def test_an_object_is_shown(self) -> None:
        model = sv.PrivateLasso(solver=sv.solvers.CD(inner=80))
        assert repr(model) == "PrivateLasso(solver=CD(inner=80))"

    def test_nested_parameters_are_seen(self) -> None:
        model = sv.PrivateLasso(solver=sv.solvers.CD(inner=80))
        given = model.get_params()
        assert given["solver__inner"] == 80
        assert given["solver__clip"] is None
        assert "solver__inner" not in model.get_params(deep=False)
        assert "solver__inner" not in sv.PrivateLasso(solver="cd").get_params()

    def test_nested_parameters_put_another_object_in_its_place(self) -> None:
        first = sv.solvers.CD(inner=80, order="random")
        model = sv.PrivateLasso(solver=first)
        assert model.set_params(solver__inner=40, alpha=0.5) is model
        assert model.solver == sv.solvers.CD(inner=40, order="random")
        assert model.alpha == 0.5
        assert first.inner == 80
        model.set_params(solver__order=None)
        assert model.solver == sv.solvers.CD(inner=40)

    def test_a_name_becomes_an_object(self) -> None:
        assert sv.PrivateLasso(solver="cd").set_params(solver__inner=40).solver == sv.solvers.CD(inner=40)
        model = sv.PrivateLasso().set_params(solver="scd", solver__rounds=3)
        assert model.solver == sv.solvers.SCD(rounds=3)
        assert model.set_params(solver="auto").solver == "auto"

    @pytest.mark.parametrize(
        ("solver", "parameters", "told"),
        [
            ("auto", {"solver__inner": 4}, r"solver__inner=4: solver='auto' has no options.*name one.*solver='newton'"),
            ("cd", {"solver__iner": 4}, r"'iner' is no option of solver='cd'; did you mean 'inner'"),
            ("cd", {"solver__inner": 0}, r"inner=0 must be a whole number"),
            ("magic", {"solver__inner": 4}, r"solver='magic' is unknown"),
            (3, {"solver__inner": 4}, r"solver=3 must be 'auto', a name \(newton, .*\) or an object"),
            (sv.solvers.CD, {"solver__inner": 4}, r"a class: write CD\(\)"),
        ],
    )
    def test_a_nested_parameter_that_cannot_be_set(self, solver: Any, parameters: Any, told: str) -> None:
        model = sv.PrivateLasso(solver=solver)
        with pytest.raises(sv.InputError, match=told):
            model.set_params(**parameters)
        assert model.solver is solver

    def test_an_unknown_parameter_is_told_by_scikit_learn(self) -> None:
        with pytest.raises(ValueError, match="Invalid parameter 'rounds'"):
            sv.PrivateRidge().set_params(rounds=3)
        with pytest.raises(TypeError, match="rounds"):
            sv.PrivateRidge(rounds=3)  # type: ignore[call-arg]

    def test_a_search_over_the_options_of_a_solver(self, data: Any) -> None:
        model = sv.PrivateRidge(
            epsilon=50.0, row_norm=3.0, label_bound=12.0, insecure_seed=1, solver=sv.solvers.Newton(rounds=2)
        )
        search = GridSearchCV(model, {"solver__rounds": [2, 5], "solver__gram_share": [None, 0.3]}, cv=2)
        search.fit(data.X, data.y)
        assert search.best_estimator_.solver.rounds == search.best_params_["solver__rounds"]
        assert search.best_estimator_.plan_.rounds in (2, 5)
        assert model.solver == sv.solvers.Newton(rounds=2)

    def test_in_a_pipeline(self, data: Any) -> None:
        pipeline = make_pipeline(
            FunctionTransformer(), sv.PrivateRidge(row_norm=3.0, label_bound=12.0, solver="newton")
        )
        pipeline.set_params(privateridge__solver__rounds=4).fit(data.X, data.y)
        assert pipeline[-1].plan_.rounds == 4

    def test_a_name_is_that_solver_with_its_own_rules(self, data: Any) -> None:
        common: dict[str, Any] = {"row_norm": 3.0, "label_bound": 12.0, "insecure_seed": 1}
        federation = sv.Federation.central(data.X, data.y)
        for kind in (sv.solvers.Newton, sv.solvers.Gradient, sv.solvers.CD):
            one, other = (sv.PrivateRidge(solver=each, **common).plan(federation) for each in (kind.name, kind()))
            assert one.model_copy(update={"run": other.run}) == other

    def test_an_option_of_another_form_of_the_solver(self, data: Any) -> None:
        federation = sv.Federation.by_columns([data.X[:, :2], data.X[:, 2:]], data.y)
        model = sv.PrivateRidge(entry_bound=3.0, label_bound=12.0, solver=sv.solvers.ADMM(proximal=1.0))
        with pytest.raises(sv.InputError, match=r"proximal=1\.0 means nothing to solver='admm' here; it takes rounds"):
            model.fit(federation)
        model.set_params(epsilon=math.inf, solver=sv.solvers.ADMM(row_share=0.5))
        with pytest.raises(sv.InputError, match=r"row_share=0\.5 means nothing to solver='admm' here; it takes rounds"):
            model.fit(federation)

    def test_a_run_for_features_is_permitted_by_its_solver(self, data: Any) -> None:
        parts = [data.X[:, :2], data.X[:, 2:]]
        federation = sv.Federation.by_columns(parts, data.y, labels="public")
        model = sv.PrivateRidge(
            entry_bound=3.0, label_bound=12.0, alpha=1.0, solver=sv.solvers.ADMM(unit="feature", rounds=2)
        )
        assert model.fit(federation).plan_.protects == "feature"


class TestOnePlan:
    """The parties are asked once for what is public, and of that one plan is made."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        kinds: list[str] = []
        plain = InProcess.exchange

        def exchange(self: InProcess, messages: Any) -> Any:
            kinds.extend(decode(message).kind for message in messages.values())
            return plain(self, messages)

        monkeypatch.setattr(InProcess, "exchange", exchange)
        return kinds

    @pytest.mark.parametrize("solver", ["auto", "gradient", sv.solvers.Newton(rounds=2)])
    def test_facts_are_asked_for_once(self, data: Any, asked: list[str], solver: Any) -> None:
        model = sv.PrivateLogisticRegression(row_norm=3.0, solver=solver)
        model.fit(data.X, data.classes)
        assert asked.count("hello") == asked.count("plan") == 1
        asked.clear()
        model.plan(sv.Federation.by_rows([(data.X[:90], data.classes[:90]), (data.X[90:], data.classes[90:])]))
        assert asked == ["hello", "hello"]

    def test_one_plan_is_built(self, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Plan] = []
        plain = algorithms.plan_by

        def counted(*arguments: Any, **others: Any) -> Plan:
            made.append(plain(*arguments, **others))
            return made[-1]

        monkeypatch.setattr(algorithms, "plan_by", counted)
        for solver in ("auto", sv.solvers.CD(inner=6), sv.solvers.SCD(rounds=5)):
            made.clear()
            model = sv.PrivateRidge(row_norm=3.0, label_bound=12.0, alpha=0.1, solver=solver).fit(data.X, data.y)
            assert made == [model.plan_]


class TestNamesOfFeatures:
    """`feature_ranges` by the names of the columns, as in job files."""

    NAMES = ("age", "pulse", "weight", "height", "dose")

    def ranges(self, *names: str) -> dict[str, tuple[float, float]]:
        return {name: (-3.0 - place, 3.0 + place) for place, name in enumerate(names)}

    def model(self, **parameters: Any) -> Any:
        return sv.PrivateRidge(label_bound=12.0, solver=sv.solvers.Newton(rounds=2), **parameters)

    def test_they_follow_the_columns_of_a_table(self, data: Any) -> None:
        table = pd.DataFrame(data.X, columns=list(self.NAMES))
        model = self.model(feature_ranges=self.ranges(*reversed(self.NAMES))).fit(table, data.y)
        assert model.plan_.bounds.feature_high == (7.0, 6.0, 5.0, 4.0, 3.0)
        assert list(model.feature_names_in_) == list(self.NAMES)
        assert np.isfinite(model.predict(table)).all()
        assert clone(model).feature_ranges == model.feature_ranges

    def test_they_follow_the_columns_of_a_federation(self, data: Any) -> None:
        ranges = self.ranges(*reversed(self.NAMES))
        table = pd.DataFrame(data.X, columns=list(self.NAMES))
        rows = sv.Federation.by_rows([(table[:90], data.y[:90]), (table[90:], data.y[90:])])
        assert self.model(feature_ranges=ranges).plan(rows).bounds.feature_high == (7.0, 6.0, 5.0, 4.0, 3.0)
        parts = [table[["dose", "age"]], table[["pulse", "height", "weight"]]]
        columns = sv.Federation.by_columns(parts, data.y)
        plan = sv.PrivateRidge(label_bound=12.0, feature_ranges=ranges).plan(columns)
        assert plan.bounds.feature_high == (3.0, 7.0, 6.0, 4.0, 5.0)

    def test_columns_without_names_take_them_in_their_order(self, data: Any) -> None:
        model = self.model(feature_ranges=self.ranges(*self.NAMES)).fit(data.X, data.y)
        assert model.plan_.bounds.feature_high == (3.0, 4.0, 5.0, 6.0, 7.0)
        with pytest.raises(sv.InputError, match="feature_ranges has 2 pairs but the data have 5 features"):
            self.model(feature_ranges=self.ranges("age", "dose")).fit(data.X, data.y)

    def test_names_of_an_earlier_fit_are_not_those_of_this_one(self, data: Any) -> None:
        table = pd.DataFrame(data.X, columns=list(self.NAMES))
        model = self.model(feature_ranges=self.ranges(*self.NAMES)).fit(table, data.y)
        other = self.ranges("a", "b", "c", "d", "e")
        model.set_params(feature_ranges=other)
        assert model.fit(sv.Federation.central(data.X, data.y)).plan_.bounds.feature_high == (3.0, 4.0, 5.0, 6.0, 7.0)

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"pulse": None}, r"feature_ranges has no range for: pulse\. Give every feature its low and high"),
            ({"puls": (0, 1)}, r"feature_ranges: 'puls' is no feature; did you mean 'pulse'\? The features are: age, "),
            ({"pulse": (0, 1, 2)}, r"feature_ranges: pulse = \(0, 1, 2\) must be a pair, its low and its high"),
            ({"pulse": 3.0}, r"feature_ranges: pulse = 3\.0 must be a pair"),
            ({"pulse": "ab"}, r"feature_ranges: pulse = 'ab' must be a pair"),
            ({"pulse": ("a", "b")}, r"feature_ranges must be a pair \(lows, highs\).*by its name"),
            ({"pulse": (1.0, 1.0)}, r"feature_ranges needs one \(low, high\) pair .* low below high"),
        ],
    )
    def test_ranges_that_do_not_fit_the_columns(self, data: Any, changes: dict[str, Any], told: str) -> None:
        ranges: dict[str, Any] = self.ranges(*self.NAMES) | changes
        ranges = {name: pair for name, pair in ranges.items() if pair is not None}
        table = pd.DataFrame(data.X, columns=list(self.NAMES))
        with pytest.raises(sv.InputError, match=told):
            self.model(feature_ranges=ranges).fit(table, data.y)
