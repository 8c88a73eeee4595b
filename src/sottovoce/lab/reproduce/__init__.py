"""The experiments of five papers run again, our numbers beside theirs: `sottovoce reproduce dp-cd`.

Where a paper has no experiment, what it claims is measured instead: the true epsilon beside the claimed one, the bytes
beside the claimed growth. Noise comes from fixed seeds, so a run can be repeated; models of these runs promise nothing.
"""

from __future__ import annotations

import math
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from sottovoce import algorithms
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.federation.federation import Federation
from sottovoce.lab.datasets import PublicDataset, load
from sottovoce.privacy.guarantee import Adversary
from sottovoce.solvers.names import in_letters

NAMES: Final = ("dp-cd", "dp-scd", "admm", "frank-wolfe", "sgd")
SUPPLIED = ("year_prediction_msd", "gisette")  # large and not fetched without being asked: the user supplies them
# The tuned settings and the published numbers of the papers, by their names.
SETTINGS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))


class MissingDataError(InputError):
    """A data set is not at hand; the message names the file to supply."""


@dataclass(frozen=True)
class Row:
    """One number: published (None where no number was printed or recovered) and ours, with how ours was made."""

    series: str  # "" where `at` says it all
    at: float | str
    published: float | None
    ours: float
    how: str
    spread: float | None = None  # standard deviation over the runs


@dataclass(frozen=True)
class PaperTable:
    """Rows that measure one thing. `axis` says what `at` is; `heads` name the two numbers."""

    title: str
    measure: str
    axis: str
    rows: tuple[Row, ...]
    heads: tuple[str, str] = ("published", "ours")
    log: bool = False
    note: str = ""

    @property
    def series(self) -> dict[str, list[Row]]:
        """The rows of each series, in their order."""
        names = dict.fromkeys(row.series for row in self.rows)
        return {name: [row for row in self.rows if row.series == name] for name in names}

    def cells(self, most: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and rows as texts, a setting where it changes; of a longer series `most` rows, from first to last."""
        named, before, texts = any(self.series), "", []
        for name, rows in self.series.items():
            step = (len(rows) - 1) / (most - 1)
            shown = rows if len(rows) <= most else [rows[round(step * place)] for place in range(most)]
            for row in shown:
                at = row.at if isinstance(row.at, str) else format_number(row.at)
                ours = format_number(row.ours) if row.spread is None else f"{row.ours:.3g} ± {row.spread:.2g}"
                how, before = "" if row.how == before else row.how, row.how
                texts.append(((name,) if named else ()) + (at, format_number(row.published), ours, how))
        return (("of",) if named else ()) + (self.axis, *self.heads, "settings"), texts


@dataclass(frozen=True)
class Setup:
    """How much to run, where the data are and whom to tell what runs now."""

    quick: bool = False
    folder: Path | None = None
    say: Callable[[str], None] = field(default=lambda _: None)

    def load(self, name: str, split: str = "train") -> PublicDataset:
        """A public data set; downloaded where it is not found, unless it is one of SUPPLIED."""
        try:
            return load(name, split=split, folder=self.folder, download=name not in SUPPLIED)
        except InputError as error:
            raise MissingDataError(str(error)) from None

    def of(self, full: Any, quick: Any) -> Any:
        """The one of two settings that was asked for."""
        return quick if self.quick else full


Verdict = Literal["holds", "holds with another constant", "false", "not decided"]


@dataclass(frozen=True)
class Claim:
    """What a paper says, where, and whether it holds, with the numbers that decide it."""

    where: str  # such as "Lemma 3, eq. 11"
    says: str
    verdict: Verdict
    measured: str


def judge(where: str, says: str, holds: bool | None, measured: str) -> Claim:
    """A claim that holds, is false or, for None, holds with another constant."""
    verdicts: dict[bool | None, Verdict] = {True: "holds", False: "false", None: "holds with another constant"}
    return Claim(where, says, verdicts[holds], measured)


@dataclass(frozen=True)
class Paper:
    """A paper's experiment: its parts by name, in order, and what of it cannot be reproduced, with the reason.

    `figures` has, by its number in the paper ("1", "table 2"), the parts that make a figure or table again. `claims`
    are worked out, in seconds.
    """

    source: str
    parts: dict[str, Callable[[Setup], PaperTable]]
    not_reproduced: tuple[str, ...] = ()
    figures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    claims: Callable[[Setup], tuple[Claim, ...]] = field(default=lambda _: ())


@dataclass(frozen=True)
class Reproduction:
    """The tables of a paper by their parts, the verdicts on its claims, and what could not be made."""

    name: str
    source: str
    tables: dict[str, PaperTable]
    not_reproduced: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    @property
    def pictures(self) -> dict[str, tuple[PaperTable, ...]]:
        """The tables that are drawn together, by a name: those of a figure of the paper, and each other by its part."""
        figures = {
            number if number.startswith("table") else f"figure {number}": tuple(
                self.tables[part] for part in parts if part in self.tables
            )
            for number, parts in paper(self.name).figures.items()
        }
        alone = set(self.tables).difference(*paper(self.name).figures.values())
        others = {part: (table,) for part, table in self.tables.items() if part in alone}
        return {name: tables for name, tables in (figures | others).items() if tables}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


ALSO: Final = {  # what else papers and people call them, in letters alone
    **dict.fromkeys(("sgd1", "sgd2", "multipartysgd"), "sgd"),
    **dict.fromkeys(("bcfw", "bcfwas", "dfw", "pride"), "frank-wolfe"),
    **dict.fromkeys(("scd", "sdca", "seqdpscd"), "dp-scd"),
    **dict.fromkeys(("admmsharing",), "admm"),
}


def paper(name: str) -> Paper:
    """The paper of this name, in any case and spelling, or of one of those in `ALSO`."""
    called = {in_letters(each): each for each in NAMES} | ALSO
    found = called.get(in_letters(name))
    if found is None:
        raise InputError(f"NAME={name!r} is no paper known here. Known are: {', '.join(NAMES)}.")
    known: Paper = import_module(f"sottovoce.lab.reproduce.{found.replace('-', '_')}").PAPER
    return known


def run_paper(
    name: str,
    setup: Setup | None = None,
    *,
    only: str | None = None,
    figure: str | None = None,
    done: Callable[[PaperTable], None] | None = None,
) -> Reproduction:
    """Run the parts of a paper, `only` one, or those of a `figure`; `done` gets each table as soon as it is made.

    A part whose data are not at hand is named in `not_reproduced`, with the file to supply; if it was asked for by
    `only`, or if no part could be made, that is an error. The claims belong to a run of all parts.
    """
    chosen, setup = paper(name), setup or Setup()
    parts: tuple[str, ...] = tuple(chosen.parts)
    if only is not None:
        if only not in chosen.parts:
            raise InputError(f"only={only!r} is no part of {name}. Its parts are: {', '.join(chosen.parts)}.")
        parts = (only,)
    elif figure is not None:
        if figure not in chosen.figures:
            known = f"known are: {', '.join(chosen.figures)}" if chosen.figures else "the paper has none"
            raise InputError(f"figure={figure!r} is no figure of {name}; {known}.")
        parts = chosen.figures[figure]
    tables, missing = dict[str, PaperTable](), []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(delta|epsilon)=")  # above 1/N where the paper has it so
        for part in parts:
            setup.say(f"{name}, {part}")
            try:
                tables[part] = chosen.parts[part](setup)
            except MissingDataError as error:
                if only:
                    raise
                missing.append(f"{part}: {error}")
                continue
            if done:
                done(tables[part])
        if not tables:
            raise MissingDataError(" ".join(missing))
        setup.say(f"{name}, claims")
        claims = chosen.claims(setup) if only is None and figure is None else ()
    return Reproduction(name, chosen.source, tables, (*chosen.not_reproduced, *missing), claims)


def true_epsilon(model: PrivateLinearModel, federation: Federation, adversary: Adversary) -> float:
    """What the releases of a model's plan cost against an adversary, whatever a paper claims of them."""
    plan = model.plan(federation)
    return algorithms.epsilons(plan, plan.relation)[adversary]


def format_number(value: float | None) -> str:
    """A number as a cell: four digits or a whole number, "-" where there is none."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
