"""A prior that an estimator was given, for the data that it is fitted on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sottovoce.data.cells import label_key
from sottovoce.errors import InputError
from sottovoce.plan.problem import Problem
from sottovoce.solvers import Options
from sottovoce.solvers.prior import Prior, as_prior


def prior_for(solver: Options, problem: Problem, names: tuple[str, ...]) -> Options:
    """The solver with its prior as a value, read where it is a path, its coefficients in the order of the features.

    What does not fit is told before anything is charged; none of it depends on records.
    """
    prior: Any = solver.get_params()["prior"]
    if problem.split.same_people:
        raise InputError(
            "prior: over columns no party has a record's whole score, and the slope of the prior's score would need a "
            "secure product of its own. Fit in one place or by rows, or leave the prior out."
        )
    if problem.scaled_loss.outputs > 1:
        raise InputError("prior: it is for two classes or for numbers, and this problem has more classes.")
    if problem.most_records is not None:
        raise InputError("prior: it is for people with one record each; leave it out, or most_records.")
    if problem.scaled_loss.kind not in ("classification", "regression") or problem.bounds.weight_bound is not None:
        raise InputError("prior: it is for two classes or for numbers, without weights of records; leave it out.")
    if isinstance(prior, str):
        from sottovoce.estimators.model_file import load_model

        model = load_model(prior)
        if model.plan_.models == "kept":
            raise InputError(f"prior={prior!r}: its coefficients are with the parties; take a model that has them.")
        prior = as_prior(model)
    return solver.replace(prior=for_features(prior, problem, names))


def for_features(prior: Prior, problem: Problem, names: tuple[str, ...]) -> Prior:
    """The same prior for these features and classes; of a model that has other ones it is refused."""
    if prior.source != "numbers":
        own, ours = (
            None if these is None else set(map(label_key, these)) for these in (prior.classes, problem.classes)
        )
        if own != ours:
            raise InputError(f"prior: its classes are {prior.classes}, and those of the fit {problem.classes}.")
    if not prior.features or not names or prior.features == names:
        return prior
    if len(set(names)) < len(names) or sorted(prior.features) != sorted(names):
        others = sorted(set(prior.features) ^ set(names))
        raise InputError(
            f"prior: it has other features than the fit, such as {', '.join(others[:5])}; give coefficients for the "
            "features of this fit, (coef, intercept), with 0 for those that are new."
        )
    by_name = dict(zip(prior.features, prior.coef, strict=True))
    return replace(prior, coef=tuple(by_name[name] for name in names), features=names)
