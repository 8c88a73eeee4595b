"""The experiments of five papers run again, our numbers beside theirs: `sottovoce reproduce dp-cd`.

Where a paper has no experiment, what it claims is measured instead: the true epsilon beside the claimed one, the bytes
beside the claimed growth. Noise comes from fixed seeds, so a run can be repeated; models of these runs promise nothing.
"""

from __future__ import annotations

import math
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
from sottovoce.files import check_no_ledger
from sottovoce.lab.datasets import PublicDataset, load
from sottovoce.privacy.guarantee import Adversary
from sottovoce.solvers import in_letters

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
    drawn: bool = True


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


Verdict = Literal["holds", "holds with another constant", "false"]


@dataclass(frozen=True)
class Claim:
    """What a paper says, where, and whether it holds, with the numbers that decide it."""

    where: str  # such as "Lemma 3, eq. 11"
    says: str
    verdict: Verdict
    measured: str


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


ALSO: Final = {  # what else papers and people call them, in letters alone
    "multipartysgd": "sgd",
    "sgd1": "sgd",
    "sgd2": "sgd",
    "bcfw": "frank-wolfe",
    "bcfwas": "frank-wolfe",
    "dfw": "frank-wolfe",
    "pride": "frank-wolfe",
    "cd": "dp-cd",
    "scd": "dp-scd",
    "sdca": "dp-scd",
    "seqdpscd": "dp-scd",
    "admmsharing": "admm",
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
        warnings.filterwarnings("ignore", message="delta=")  # above 1/N where the paper has it so
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


def draw_tables(made: Reproduction, path: Path) -> None:
    """A panel for each table as PNG: published numbers are hollow, ours filled; lines where `at` is a number."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("--plot needs matplotlib: install sottovoce[plots].") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [table for table in made.tables.values() if table.drawn] or list(made.tables.values())
    columns = min(2, len(tables))
    deep = -(-len(tables) // columns)
    each = [4.0 if _numeric(table) else max(2.0, 1.1 + 0.2 * len(table.rows)) for table in tables]
    heights = [max(each[row * columns : (row + 1) * columns]) for row in range(deep)]
    figure, axes = plt.subplots(
        deep, columns, figsize=(6.4 * columns, sum(heights)), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    for axis, table in zip(axes.flat, tables, strict=False):
        (_draw_lines if _numeric(table) else _draw_dots)(axis, table)
        axis.set_title(table.title, fontsize=9, loc="left")
    figure.tight_layout()
    check_no_ledger(path)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _numeric(table: PaperTable) -> bool:
    return all(isinstance(row.at, (int, float)) for row in table.rows)


def _draw_lines(axis: Any, table: PaperTable) -> None:
    places = [float(row.at) for row in table.rows]
    for color, name in enumerate(dict.fromkeys(row.series for row in table.rows)):
        rows, drawn = [row for row in table.rows if row.series == name], {"color": f"C{color}", "ms": 5}
        line = [row for row in rows if math.isfinite(row.ours)]
        axis.plot(
            [row.at for row in line], [row.ours for row in line], "o-", label=f"{name}: {table.heads[1]}", **drawn
        )
        known = [row for row in rows if row.published is not None]
        if known:
            x, y = [row.at for row in known], [row.published for row in known]
            axis.plot(x, y, "s--", mfc="none", lw=0.8, label=f"{name}: {table.heads[0]}", **drawn)
    if max(places) >= 50 * min(places) > 0 or (table.log and min(places) > 0):
        axis.set_xscale("log")
        axis.set_xticks(sorted(set(places)), [format_number(place) for place in sorted(set(places))], minor=False)
        axis.tick_params(axis="x", which="minor", labelbottom=False)
    if table.log:
        axis.set_yscale("log")
    axis.set_xlabel(table.axis)
    axis.set_ylabel(table.measure)
    axis.legend(fontsize=6, ncols=2 if len(axis.lines) > 4 else 1)


def _draw_dots(axis: Any, table: PaperTable) -> None:
    labels = [f"{row.at}: {row.series}" if row.series else str(row.at) for row in table.rows]
    places = range(len(labels) - 1, -1, -1)
    for which, marker, filled in ((0, "s", "none"), (1, "o", None)):
        found = [
            (value, place)
            for row, place in zip(table.rows, places, strict=True)
            if (value := (row.published, row.ours)[which]) is not None and math.isfinite(value)
        ]
        if found:
            x, y = zip(*found, strict=True)
            axis.plot(x, y, marker, mfc=filled, ms=6, color=f"C{which}", label=table.heads[which])
    for row, place in zip(table.rows, places, strict=True):
        if math.isinf(row.ours):
            axis.text(
                0.98, place, "infinite", transform=axis.get_yaxis_transform(), ha="right", va="center", fontsize=7
            )
    if table.log:
        values = [value for row in table.rows for value in (row.published, row.ours) if value and math.isfinite(value)]
        axis.set_xscale("log")
        axis.tick_params(axis="x", which="minor", labelbottom=False)
        axis.set_xlim(10 ** math.floor(math.log10(min(values)) - 0.05), 10 ** math.ceil(math.log10(max(values)) + 0.05))
    axis.set_yticks(list(places), labels, fontsize=7)
    axis.set_ylim(-0.7, len(labels) - 0.3)
    axis.grid(axis="y", lw=0.3)
    axis.set_xlabel(table.measure)
    axis.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
