"""The experiments of five papers run again, our numbers beside theirs: `sottovoce reproduce dp-cd`.

Where a paper has no experiment, what it claims is measured instead: the true epsilon beside the claimed one, the bytes
beside the claimed growth. Noise comes from fixed seeds, so a run can be repeated; models of these runs promise nothing.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
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
        """Heads and rows as texts, a setting where it changes; of a longer series `most` rows and those published."""
        named, before, texts = any(self.series), "", []
        for name, rows in self.series.items():
            step = (len(rows) - 1) / (most - 1)
            marked = {k for k, row in enumerate(rows) if row.published is not None}
            shown = range(len(rows)) if len(rows) <= most else sorted(marked | {round(step * k) for k in range(most)})
            for row in (rows[k] for k in shown):
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


@dataclass(frozen=True)
class Paper:
    """A paper's experiment: what is told of it in NAME.toml beside this file, and what makes its parts, in order.

    Its `tables` and `claims` have places for numbers, as of `str.format`; data and settings are there too. `figures`
    have, by their number in the paper ("1", "table 2"), the parts that make them again; `not_reproduced` has what
    cannot be made, with the reason.
    """

    told: dict[str, Any]
    parts: dict[str, Callable[[Setup], PaperTable]] = field(default_factory=dict)
    judges: tuple[Callable[[Setup], Iterable[Claim]], ...] = ()

    @classmethod
    def of(cls, name: str) -> Paper:
        return cls(tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")))

    @property
    def figures(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.told.get("figures", {})
        return found

    def claims(self, setup: Setup) -> tuple[Claim, ...]:
        """Those of each judge whose data are at hand, worked out in seconds."""
        found = list[Claim]()
        for judge in self.judges:
            with contextlib.suppress(MissingDataError):
                found += tuple(judge(setup))
        return tuple(found)

    def table(self, name: str, rows: Iterable[Row], **numbers: Any) -> PaperTable:
        """A table of these rows, with numbers in its title and note."""
        said = {"heads": ["published", "ours"], "log": False, "note": ""} | self.told["tables"][name]
        title, note = (said[key].format(**numbers) for key in ("title", "note"))
        return PaperTable(title, said["measure"], said["axis"], tuple(rows), tuple(said["heads"]), said["log"], note)

    def claim(self, name: str, holds: bool | Verdict | None, **numbers: Any) -> Claim:
        """A claim that holds, is false, for None holds with another constant, or has the verdict given."""
        verdicts: dict[bool | None, Verdict] = {True: "holds", False: "false", None: "holds with another constant"}
        said, verdict = self.told["claims"][name], holds if isinstance(holds, str) else verdicts[holds]
        where, measured = (said[key].format(**numbers) for key in ("where", "measured"))
        return Claim(where, said["says"], verdict, measured)


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
    if only is not None and only not in chosen.parts:
        raise InputError(f"only={only!r} is no part of {name}. Its parts are: {', '.join(chosen.parts)}.")
    if figure is not None and figure not in chosen.figures:
        known = f"known are: {', '.join(chosen.figures)}" if chosen.figures else "the paper has none"
        raise InputError(f"figure={figure!r} is no figure of {name}; {known}.")
    parts = [only] if only is not None else chosen.parts if figure is None else chosen.figures[figure]
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
                where = f"`sottovoce reproduce {name} --only {part}` says where it is looked for"
                missing.append(f"{part}: {str(error).partition(':')[0]} is not at hand; {where}.")
                continue
            if done:
                done(tables[part])
        if not tables:
            raise MissingDataError(" ".join(missing))
        setup.say(f"{name}, claims")
        claims = chosen.claims(setup) if only is None and figure is None else ()
    told = chosen.told
    return Reproduction(name, told["source"], tables, (*told["not_reproduced"], *missing), claims)


def true_epsilon(model: PrivateLinearModel, federation: Federation, adversary: Adversary) -> float:
    """What the releases of a model's plan cost against an adversary, whatever a paper claims of them."""
    plan = model.plan(federation)
    return algorithms.epsilons(plan, plan.relation)[adversary]


def replay(model: Any) -> Iterator[tuple[algorithms.Ask, Any]]:
    """Each ask of a run in one place and what it was told: the coordinator's text with the released values again."""
    text = algorithms.of(model.plan_).coordinate(model.plan_)
    ask = next(text)
    for message in model.transcript_:
        if message.name == ask.query:
            yield ask, message.payload
            try:
                ask = text.send({message.sender: message.payload})
            except StopIteration:
                return


def format_number(value: float | None) -> str:
    """A number as a cell: four digits or a whole number, "-" where there is none."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
