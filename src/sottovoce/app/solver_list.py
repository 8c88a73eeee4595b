"""The solvers as a list: what each serves and which options it has, from the registry and from their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from sottovoce import algorithms, losses
from sottovoce.errors import InputError, did_you_mean
from sottovoce.plan.split import SPLITS
from sottovoce.solvers import SOLVERS
from sottovoce.solvers.options import Option

Promise = Literal["private", "published", "without privacy"]

_PROMISES: Final[tuple[Promise, ...]] = get_args(Promise)
_BY_PRIVACY: Final[dict[bool | None, tuple[Promise, ...]]] = {
    True: ("private",),
    False: ("without privacy",),
    None: ("private", "without privacy"),
}
_PARAMETERS = {"huber": {"threshold": 1.0}}


@dataclass(frozen=True)
class SolverForm:
    """One way to run a solver, with what it promises, the options that choose it, and those that it takes."""

    name: str
    title: str
    splits: tuple[str, ...]
    promises: tuple[Promise, ...]
    chosen_by: dict[str, str]
    options: tuple[str, ...]


@dataclass(frozen=True)
class SolverEntry:
    """One solver."""

    name: str
    object: str
    summary: str
    remarks: str
    splits: tuple[str, ...]
    losses: tuple[str, ...]
    penalties: tuple[str, ...]
    promises: tuple[Promise, ...]
    options: tuple[Option, ...]
    forms: tuple[SolverForm, ...]


def list_solvers() -> tuple[SolverEntry, ...]:
    """All solvers, in the order of the registry."""
    return tuple(map(describe_solver, algorithms.SOLVERS))


def describe_solver(name: str) -> SolverEntry:
    """The solver of that name."""
    if name not in SOLVERS:
        raise InputError(
            f"solver={name!r} is unknown{did_you_mean(name, tuple(SOLVERS))} There are: {', '.join(SOLVERS)}."
        )
    kind = SOLVERS[name]
    known = {name: losses.get(name, **_PARAMETERS.get(name, {})) for name in losses.names()}
    forms = tuple(
        SolverForm(
            name=form.form,
            title=form.title,
            splits=form.splits,
            promises=("published",) if form.published else _BY_PRIVACY[form.private],
            chosen_by=dict(form.when),
            options=kind.names() if form.options is None else form.options,
        )
        for form in algorithms.forms(name)
    )
    splits = tuple(split for split in map(str, SPLITS) if any(split in form.splits for form in forms))
    return SolverEntry(
        name=name,
        object=kind.__name__,
        summary=kind.summary(),
        remarks=kind.remarks(),
        splits=splits,
        losses=tuple(
            loss for loss in known if any(algorithms.mismatch(name, known[loss], split) is None for split in splits)
        ),
        penalties=kind.penalties,
        promises=tuple(promise for promise in _PROMISES if any(promise in form.promises for form in forms)),
        options=kind.described(),
        forms=forms,
    )
