"""What papers call the solvers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sottovoce.errors import did_you_mean

_AS_PRINTED, _CLEAR = ", with calibration='paper' as published", ", with epsilon=inf"
IN_PAPERS: Final[Mapping[str, tuple[str, str]]] = {  # the solver, and how it is asked for
    "DP-CD": ("cd", _AS_PRINTED),
    "DP-SCD": ("scd", _AS_PRINTED),
    "primal DP-SCD": ("scd-primal", _AS_PRINTED),
    "SeqDP-SCD": ("scd-sequential", _AS_PRINTED),
    "SGD1": ("sgd", _AS_PRINTED),
    "SGD2": ("gradient", _AS_PRINTED),
    "DP-FW": ("frank-wolfe", _AS_PRINTED),
    "PriDE": ("one-shot", _AS_PRINTED),
    "ADMM sharing": ("admm", _AS_PRINTED),
    "FDML": ("fdml", _CLEAR),
    "dFW": ("frank-wolfe", f"{_CLEAR} and step='printed' over columns"),
    "SDCA": ("scd", _CLEAR),
    "CoCoA": ("scd", f"{_CLEAR} by rows"),
    "DP-GCD": ("greedy-cd", ""),
    "DP-SGD": ("sgd", ""),
}


def in_letters(name: str) -> str:
    """A name without case, spaces and hyphens, as people write those of papers."""
    return "".join(filter(str.isalnum, name.lower()))


def meant_solver(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown solver: the one that papers call so, or else the nearest name."""
    for called, (solver, how) in IN_PAPERS.items():
        if in_letters(name) == in_letters(called):
            return f"; {called} is {solver!r} here{how}."
    if in_letters(name) == "bcfw":
        return "; BCFW has no privacy and is no solver, but `sottovoce.lab.bcfw.solve`."
    return did_you_mean(name, tuple(known))
