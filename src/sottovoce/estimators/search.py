"""A search over anything under one budget: a secret number of private fits, and only the best is shown."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from sottovoce.algorithms import Solution
from sottovoce.algorithms.model_selection import Candidates, ComparedLosses
from sottovoce.arguments import is_number
from sottovoce.errors import InputError, LeakError, SottovoceError
from sottovoce.estimators.base import PrivateLinearModel
from sottovoce.estimators.declarations import warn_of
from sottovoce.estimators.fits import Fit, Purchase, check_gaussian
from sottovoce.estimators.report import assumptions, warn_of_repeats
from sottovoce.federation.federation import Federation, as_account
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.calibration import part_of, repeated_mu_for
from sottovoce.privacy.events import SAMPLER_SHARE, Event, Relation, Repeated, distance, inside
from sottovoce.privacy.guarantee import FALSE_ALARMS, VIEWS, Guarantee, PrivacyReport, profile_of, with_errors

FIXED = {
    **dict.fromkeys(("epsilon", "delta", "ledger", "insecure_seed"), "is the search's own"),
    **dict.fromkeys(("relation", "calibration", "resources"), "is one for all trials; set it on the estimator"),
    **dict.fromkeys(
        ("schema", "classes", "class_weight", "label_bound", "loss", "threshold"),
        "decides what a score means; set it on the estimator",
    ),
}
WORDS = (
    "the search ran where the data are, and only the best of a secret number of trials was kept (mean {mean:g}, each "
    "of epsilon {epsilon:.3g}): nobody is shown the others, how many there were, or how long they took"
)


class TrialScore(Purchase):
    """By how much the mean loss of a trial's model is below that of the model that says 0 of everybody."""

    form = ComparedLosses()
    share = 0.1  # of the mu squared of a trial

    def problem(self, fit: Fit) -> Problem:  # its rows may be prepared otherwise than the fit's
        return fit.plan.changed_problem(epsilon=self.epsilon, regulariser=Named(name="none"), layout="rows")

    def options(self, fit: Fit) -> Candidates:
        model, preparation = fit.model, self.problem(fit).preparation
        weights = preparation.weights_of(model.coef_.ravel(), float(np.ravel(model.intercept_)[0]))
        return Candidates(np.array([np.zeros_like(weights), weights]))

    def use(self, fit: Fit, solution: Solution) -> None:
        self.value = float(-solution.model[0] / fit.plan.records)


@dataclass(eq=False, repr=False)
class PrivateRandomizedSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a random number of trials, each a whole private fit with a private score, for one epsilon in all.

    A search of mean 10 costs about twice the epsilon of one of its fits, whatever is searched (Papernot and Steinke
    2022), if only the best is ever seen: so neither the other trials nor their number are kept, logged or timed. It is
    for data in one place; the process that runs it sees every trial and is trusted.

    Parameters
    ----------
    estimator : estimator
        What is fitted, with its declared bounds; a solver with Gaussian releases alone, as the default is. Its own
        epsilon, delta and ledger do not matter.
    param_distributions : mapping, or list of mappings
        By parameter the values to draw from, a list or a distribution with `rvs`, as in scikit-learn. Every trial draws
        its own. Of a list one mapping is drawn first.
    epsilon, delta : float
        The budget of the whole search.
    mean_trials : float
        How many trials there are in the mean; their number is drawn from the logarithmic law and stays secret. More
        trials leave each a little less: of a total of 1, mean 10 leaves .50 and mean 100 leaves .41.
    ledger : path, Ledger, Account or None
        An account, charged once for the whole search before its first trial.
    insecure_seed : int or None
        Reproducible draws and noise for tests; the guarantee is then void.

    Attributes
    ----------
    best_estimator_, best_params_, best_score_
        The best trial. Its score is by how much its mean loss is below that of the model that says 0 of everybody, each
        record's difference clipped to one unit, with noise.
    privacy_
        The guarantee of all of it.
    """

    estimator: PrivateLinearModel
    param_distributions: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 1e-5
    mean_trials: float = 10.0
    ledger: Any = None
    insecure_seed: int | None = None

    @property
    def event(self) -> Repeated:
        """What the search costs; one trial, its score included, costs `mu`."""
        return Repeated(
            repeated_mu_for(float(self.epsilon), inside(self.delta), float(self.mean_trials)), self.mean_trials
        )

    @property
    def trial_epsilon(self) -> float:
        """What the budget leaves for one trial: from public numbers, before any data are touched."""
        self._check()
        return gaussian_epsilon(self.event.mu, inside(self.delta))

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw trials, charge the ledger for all of them, run them, keep the best."""
        self._check()
        if isinstance(X, Federation):
            raise InputError(
                "X is a Federation: its coordinator would see every trial, and the search may show the best alone. "
                "Divide the budget by hand: k fits of epsilon / k, or fewer by their ledgers' composition."
            )
        fresh = _generators(self.insecure_seed)
        with _Silence():
            probe: Any = clone(self.estimator).set_params(ledger=None)
            federation = probe.as_federation(X, y)
            probe.resources = probe.resources and probe.resources.quiet()
            count = draw_trial_count(self.event, next(fresh))
            trials = [self._plan_trial(probe, federation, next(fresh)) for _ in range(count)]
        plan = trials[0][1].plan
        warn_of(
            plan, trials[0][1].model.schema_
        )  # of public numbers that all trials share: once, whatever their number
        self.charged_as_ = secrets.token_hex(32)  # the search's name in the ledger
        if (account := as_account(self.ledger)) is not None:
            summary = f"search: the best of a secret number of trials, mean {self.mean_trials:g}"
            account.reserve(self.charged_as_, self._events, delta=float(self.delta), summary=summary)
        with _Silence():
            scores = [self._run_trial(fit) for _, fit in trials]
            best = scores.index(max(scores))
            self._keep(scores[best], *trials[best])
        if account is None and self.privacy_.weakest.promises:
            warn_of_repeats(plan, self.privacy_.weakest)
        return self

    def _keep(self, score: float, parameters: dict[str, Any], fit: Fit) -> None:
        """The best trial, under the guarantee of the whole search; nothing of the others."""
        self.best_score_, model = score, fit.model
        if score == -math.inf:
            raise SottovoceError("no trial gave a model; the search is charged. Give it other parameters.")
        self.best_params_, self.best_estimator_ = parameters, model
        relation, delta = self.estimator.relation, self.delta
        profile = profile_of(self._events(relation), relation)
        missed = with_errors(profile.missed, FALSE_ALARMS, SAMPLER_SHARE * delta)
        views: dict[str, Any] = {
            name: Guarantee(
                epsilon=profile.epsilon(inside(delta)),
                delta=delta,
                relation=relation,
                adversary=name,
                void=None if self.insecure_seed is None else "Draws and noise came from a known seed (insecure_seed).",
                trade_off=tuple(zip(FALSE_ALARMS, missed.tolist(), strict=True)),
            )
            for name in VIEWS
        }
        words = WORDS.format(mean=self.mean_trials, epsilon=self.trial_epsilon)
        public = {**model.privacy_.public, "search": words}
        self.privacy_ = PrivacyReport(**views, assumptions=(*assumptions(model.plan_), words), public=public)
        model.privacy_ = self.privacy_
        model.set_params(epsilon=self.epsilon)  # what it cost; the trial's own part is in its plan
        if hasattr(model, "path_"):
            model.path_ = replace(model.path_, privacy=self.privacy_)
        model.charged_as_ = self.charged_as_
        for name in {"n_features_in_", "classes_", "feature_names_in_"} & set(vars(model)):
            setattr(self, name, getattr(model, name))

    def _plan_trial(
        self, probe: Any, federation: Federation, generator: np.random.Generator
    ) -> tuple[dict[str, Any], Fit]:
        """One value of each parameter, drawn independently of all other trials, and the fit by them.

        A trial that cannot run is refused before anything is charged.
        """
        tables = self.param_distributions
        table = tables if isinstance(tables, Mapping) else tables[int(generator.integers(len(tables)))]
        parameters = {
            name: values.rvs(random_state=np.random.RandomState(generator.integers(2**32)))
            if hasattr(values, "rvs")
            else values[int(generator.integers(len(values)))]
            for name, values in table.items()
        }
        seed = None if self.insecure_seed is None else int(generator.integers(2**31))
        model = copy(probe).set_params(**parameters)
        model.set_params(epsilon=self._part(1 - TrialScore.share), delta=self.delta, insecure_seed=seed)
        fit = Fit(model, federation)
        plan, form = fit.plan, fit.form
        if plan.most_records is not None:
            raise InputError("person: a search scores trials by records, and has no rule for people with several.")
        if plan.bounds.weight_bound is not None or plan.scaled_loss.kind not in ("classification", "regression"):
            raise InputError(
                "a search scores trials of classes and of numbers, without weights; fit the model by itself."
            )
        most = math.sqrt(1 - TrialScore.share) * self.event.mu * (1 + 1e-9)
        if check_gaussian(plan, form) > most or plan.protects != "record":
            raise LeakError(f"solver={plan.algorithm!r}: a trial would cost more than its part; nothing was charged.")
        if plan.scaled_loss.outputs > 1:
            raise InputError("y has more than two classes; a search scores two classes, or numbers.")
        if fit.ranges is not None and plan.features in fit.ranges.columns:
            raise InputError(
                "label_bound: each trial would buy a range of the label, and losses in units of different ranges do "
                "not compare. Declare label_bound."
            )
        return parameters, fit

    def _part(self, share: float) -> float:
        """The epsilon of a share of one trial."""
        return part_of(self.trial_epsilon, inside(self.delta), share)

    def _run_trial(self, fit: Fit) -> float:
        """Run a trial: how good it is by its own noisy number; one that fails is worse than any other."""
        score = TrialScore(self._part(TrialScore.share))
        try:
            fit.run()
            with fit.session.lending():
                score.use(fit, fit.buy(score))
            return score.value
        except Exception:  # what records may cause is not shown, nor that it happened
            return -math.inf

    def _events(self, relation: Relation) -> tuple[Event, ...]:
        """Under another relation than the trials' own: to replace a record is to blank it, and to blank the new one."""
        factor = max(distance(relation) / distance(self.estimator.relation), 1.0)
        return (Repeated(self.event.mu * factor, self.mean_trials),)

    def _check(self) -> None:
        if not isinstance(self.estimator, PrivateLinearModel):
            raise InputError(f"estimator={type(self.estimator).__name__} must be an estimator of this library.")
        if self.estimator.calibration != "tight":
            raise InputError(f"estimator: calibration={self.estimator.calibration!r} must be 'tight' in a search.")
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not (is_number(value) and 0 < value < (math.inf if name == "epsilon" else 1)):
                raise InputError(f"{name}={value!r} must be a positive number, for a search a finite one.")
        if not (is_number(self.mean_trials) and 1 <= self.mean_trials <= 1e4):
            raise InputError(f"mean_trials={self.mean_trials!r} must be from 1 to 10000; 10 is usual.")
        given = self.param_distributions
        tables = [given] if isinstance(given, Mapping) else list(given) if isinstance(given, Sequence) else []
        if not tables or not all(isinstance(table, Mapping) and table for table in tables):
            raise InputError("param_distributions must be a mapping of parameters to values, or a list of such.")
        parameters = self.estimator.get_params(deep=False)
        for name, values in ((name, values) for table in tables for name, values in table.items()):
            if name in FIXED:
                raise InputError(f"param_distributions: {name!r} {FIXED[name]}.")
            if name == "fit_intercept" and hasattr(self.estimator, "label_bound"):
                raise InputError(
                    "param_distributions: 'fit_intercept' decides, of a regression, what a score means; set it on the "
                    "estimator."
                )
            if name not in parameters and not name.startswith("solver__"):
                raise InputError(f"param_distributions: {name!r} is no parameter of {type(self.estimator).__name__}.")
            if not hasattr(values, "rvs") and not (isinstance(values, Sequence | np.ndarray) and len(values)):
                raise InputError(f"param_distributions: {name!r} must be a list of values, or have rvs.")

    def predict(self, X: Any) -> NDArray[Any]:
        """By the best trial."""
        check_is_fitted(self, "best_estimator_")
        return np.asarray(self.best_estimator_.predict(X))

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> NDArray[Any]:
        """By the best trial."""
        check_is_fitted(self, "best_estimator_")
        return np.asarray(self.best_estimator_.decision_function(X))

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """By the best trial."""
        check_is_fitted(self, "best_estimator_")
        return np.asarray(self.best_estimator_.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), self.estimator.__sklearn_tags__()
        for name in ("estimator_type", "classifier_tags", "regressor_tags"):
            setattr(tags, name, getattr(own, name))
        tags.input_tags.sparse = own.input_tags.sparse
        return tags


def draw_trial_count(event: Repeated, generator: np.random.Generator) -> int:
    """How many trials there are: P(k) ~ (1 - gamma)^k / k."""
    share = -math.expm1(-event.log_inverse_gamma)
    return 1 if share == 0.0 else int(generator.logseries(share))


def _generators(seed: int | None) -> Iterator[np.random.Generator]:
    """One for the number of trials and one for each, so that what a trial shows tells nothing of the number."""
    sequence = None if seed is None else np.random.SeedSequence(seed)
    while True:
        yield np.random.default_rng(secrets.randbits(128) if sequence is None else sequence.spawn(1)[0])


class _Silence:
    """Nothing that trials would warn of or log: it would tell how many there are.

    Every logger of the package is silent, whatever its own level and handlers; one that is made later has the level of
    "sottovoce". Of searches in several threads the first to begin makes it silent, and the last to end lets it speak.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _inside: ClassVar[int] = 0
    _restore: ClassVar[contextlib.ExitStack] = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            _Silence._inside += 1
            if self._inside == 1:
                self._restore.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                registered = logging.Logger.manager.loggerDict.copy()
                children = [log for name, log in registered.items() if name.startswith("sottovoce.")]
                loggers = [log for log in children if isinstance(log, logging.Logger)]
                for log in (logging.getLogger("sottovoce"), *loggers):
                    self._restore.callback(log.setLevel, log.level)
                    log.setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            _Silence._inside -= 1
            if self._inside == 0:
                self._restore.close()
