"""What private tables hold: one noisy release, and shares, means, deviations and quantiles of every column from it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sottovoce.algorithms.description import CountedColumns, Cut, Described
from sottovoce.algorithms.description.estimates import QUANTILES, ColumnEstimates
from sottovoce.algorithms.evaluation.estimates import Metric, around
from sottovoce.data import column_kinds as kinds
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import table_columns
from sottovoce.data.levels import shown_level
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators import plots
from sottovoce.estimators.declarations import Facts, check_budget, common_names, warn_of
from sottovoce.estimators.evaluation import plain_numbers
from sottovoce.estimators.fits import Session
from sottovoce.estimators.report import warn_of_repeats
from sottovoce.federation.federation import Federation
from sottovoce.federation.journal import Journal
from sottovoce.numerals import count_text, promise_text
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.events import Relation, check_relation
from sottovoce.privacy.guarantee import PrivacyReport

ALL: Final = "all records"  # the group of all or, by class, of those of some class
FORM: Final = CountedColumns()
Columns = Mapping[int, kinds.Column]  # by place among those of all parties, the label at its holder alone
_SHARES: Final = ("missing", "none of the levels", "beyond the range")


@dataclass(frozen=True)
class Summary:
    """Of one column in one group: statistics by name, and the shares of its records in levels or parts of the range.

    Mean, deviation and quantiles are of the numbers that are not missing, each cut to its range.
    """

    statistics: Mapping[str, Metric]
    shares: Mapping[str, Metric]

    def __getitem__(self, what: str) -> Metric:
        return self.shares[what] if what in self.shares else self.statistics[what]

    def texts(self) -> dict[str, str]:
        """Each statistic and each level, as people read it; parts of ranges are for pictures."""
        levels = {} if "median" in self.statistics else self.shares
        told = {what: metric_text(found, share=what in _SHARES) for what, found in self.statistics.items()}
        return told | {what: metric_text(found, share=True) for what, found in levels.items()}


@dataclass(frozen=True)
class Description:
    """What one release says of every column. All of it is a function of noisy counts and of the plan.

    `columns` has by name of the column and of the group ("all records", then the classes if asked) a `Summary`. Every
    value has a 95% interval that includes sampling and noise; NaN is what cannot be told. `classes` has how many
    records are of each class, with the interval of the noise alone.
    """

    columns: Mapping[str, Mapping[str, Summary]]
    classes: Mapping[str, Metric]
    noise: float  # the standard deviation of a count's
    plan_: Plan
    privacy_: PrivacyReport

    def __getitem__(self, name: str) -> Summary:
        """Of one column, all records."""
        return self.columns[name][ALL]

    def rows(self) -> Iterator[tuple[str, str, str, Metric]]:
        """(column, group, what, value with its interval), one after the other."""
        for label, found in self.classes.items():
            yield "", label, "records", found
        for name, groups in self.columns.items():
            for group, summary in groups.items():
                for what, found in (*summary.statistics.items(), *summary.shares.items()):
                    yield name, group, what, found

    def to_pandas(self) -> Any:
        """A data frame with a row for each value: column, group, what, value, low, high."""
        import pandas as pd

        told = [(*names, found.value, found.low, found.high) for *names, found in self.rows()]
        return pd.DataFrame(told, columns=["column", "group", "what", "value", "low", "high"])

    def plot(self, figure: Any = None) -> Any:
        """Shares of each column as bars with intervals, a panel for each; classes beside one another.

        Needs matplotlib (the extra `plots`). Gives the figure.
        """
        return plots.draw_description(self.to_dict(), plots.new_figure() if figure is None else figure)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; None for what cannot be told."""
        return {
            "records": self.plan_.records,
            "classes": plain_numbers(self.classes),
            "columns": plain_numbers(self.columns),
            "noise": self.noise,
            "plan": self.plan_.digest.hex(),  # its name in the ledgers
            "privacy": self.privacy_.to_dict(),
        }

    @property
    def heading(self) -> str:
        own = self.privacy_.weakest
        rests = f" ({own.mark})" if own.mark else ""
        return f"{count_text(self.plan_.records)} records, {promise_text(own.epsilon, own.delta)}{rests}"

    def __str__(self) -> str:
        """A line for each statistic and each level, groups side by side."""
        table = [("", ALL, *self.classes), ("records", "", *map(metric_text, self.classes.values()))]
        table = table if self.classes else []
        for name, groups in self.columns.items():
            texts = [summary.texts() for summary in groups.values()]
            rest = [""] * (len(self.classes) + 1 - len(texts))
            table += [(f"{name}: {what}", *(own[what] for own in texts), *rest) for what in texts[0]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "\n".join([f"{self.heading}; 95% intervals", *lines])

    def _repr_html_(self) -> str:
        return f"<p>{_escape(self.heading)}</p>{self.to_html()}"

    def to_html(self) -> str:
        """A part for each column, with pictures of its shares; it names nothing from elsewhere."""
        parts = []
        for name, groups in self.columns.items():
            parts.append(f'<div class="card"><h3>{_escape(name)}</h3>')
            for group, summary in groups.items():
                count = f": {metric_text(self.classes[group])} records" if group in self.classes else ""
                parts.append(f'<div class="group"><h4>{_escape(group)}{count}</h4>{_small_bars(summary.shares)}<table>')
                texts = summary.texts().items()
                parts += (f"<tr><td>{_escape(what)}</td><td>{text}</td></tr>" for what, text in texts)
                parts.append("</table></div>")
            parts.append("</div>")
        return "".join(parts)


def _escape(text: str) -> str:
    """Names are no markup, and nothing of them acts."""
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in text))


def _small_bars(shares: Mapping[str, Metric]) -> str:
    """A bar for each share with its interval, side by side."""
    told = {name: found for name, found in shares.items() if math.isfinite(found.value)}
    if not told:
        return "<p>Nothing stands out of the noise.</p>"
    wide, unit, drawn = 240.0 / len(told), 60.0 / max(0.01, *(found.high for found in told.values())), ""
    for place, found in enumerate(told.values()):
        x, (value, low, high) = wide * place, (unit * end for end in vars(found).values())
        drawn += f'<rect x="{x:.1f}" y="{60 - value:.1f}" width="{0.85 * wide:.1f}" height="{value:.1f}"/>'
        drawn += f'<path d="M{x + 0.42 * wide:.1f} {60 - low:.1f}V{60 - high:.1f}" stroke="#5b6675"/>'
    listed = "; ".join(f"{_escape(name)}: {metric_text(found, share=True)}" for name, found in told.items())
    picture = f'<svg viewBox="0 0 240 60" width="100%" fill="#7a9cc0"><title>{listed}</title>{drawn}</svg>'
    return f"{picture}<p>{' … '.join(map(_escape, dict.fromkeys([next(iter(told)), next(reversed(told))])))}</p>"


def metric_text(found: Metric, *, share: bool = False) -> str:
    """A value and its interval, of a share in percent."""
    if not math.isfinite(found.value):
        return "cannot be told"
    if share:
        return f"{100 * found.value:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f})"
    return "{} ({} to {})".format(*map(_short_number, vars(found).values()))


def _short_number(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"


def describe(  # noqa: PLR0913
    data: Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    schema: Schema | None = None,
    by: str | None = None,
    relation: Relation = "zero-out",
    ledger: Any = None,
    insecure_seed: int | None = None,
) -> Description:
    """Describe the columns of private tables, for (epsilon, delta): table one of a paper, before a model is fitted.

    Parameters
    ----------
    data : table, path or Federation
        A data frame, an Arrow table, a mapping of columns or a file; or a federation of tables with their schema.
    epsilon, delta : float
        The budget of the description; `float("inf")` is without privacy.
    schema : Schema or None
        What the columns hold; None is that of the federation. A number whose range is private is counted by powers of
        two: that tells where its range is.
    by : str or None
        The label column: everything is told for each of its declared classes too.
    relation, ledger, insecure_seed
        What is protected, who pays before anything is released, and noise for tests, as of `evaluate`.
    """
    check_budget(epsilon, delta)
    federation, schema = _take_tables(data, schema, ledger)
    alone, private = federation.split.same_people, epsilon != math.inf
    resumable = isinstance(federation.journal, Journal) and private
    session = Session(federation, insecure_seed=insecure_seed, without_privacy=not private, resumable=resumable)
    with session.lending():
        facts = federation.declared or session.coordinator.facts(classes=False)
        columns, widths = _place_columns(schema, federation, facts)
        fields: dict[str, Any] = {"aggregation": federation.aggregation() if private else None}
        if alone:
            fields = {"columns": widths, "labels": federation.labels, "label_party": federation.label_party}
        problem = Problem(
            loss=Named(name="squared"),
            regulariser=Named(name="none"),
            split=federation.split,
            parties=tuple((name, fact["records"]) for name, fact in facts.items()),
            features=sum(widths),
            bounds=Bounds(),
            epsilon=float(epsilon),
            delta=float(delta),
            relation=check_relation(relation),
            fit_intercept=False,
            most_records=schema.most_records,
            **fields,
        )
        warn_of(problem, fits=False)
        plan = session.plan(FORM, problem, _described(columns, schema, by, held=federation.labels == "held" and alone))
        report = session.report(plan)
        if session.coordinator.journal.path is not None and not session.coordinator.journal.begun:
            session.coordinator.check(plan)
        solution = session.run(plan, FORM)
    if not federation.counted:
        warn_of_repeats(plan, report.weakest)
    noise = plan.releases[0].std * math.sqrt(plan.channel.variance)
    return Description(*_summaries_of(columns, plan, solution.model, noise), noise, plan, report)


def _take_tables(data: Any, schema: Schema | None, ledger: Any) -> tuple[Federation, Schema]:
    """The parties, and what their tables hold."""
    if isinstance(data, Federation):
        if ledger is not None:
            raise InputError("ledger must be None when data is a Federation; its parties have ledgers.")
        schema = schema or data.schema
    if not isinstance(schema, Schema):
        raise InputError(
            f"schema={schema!r} must be a Schema, which says what the columns hold: Schema.from_toml(path), or "
            "sv.Schema({...}); `sottovoce schema FILE` drafts one."
        )
    if isinstance(data, Federation):
        return data, schema
    cells, y = table_columns(data), None
    if schema.label not in cells:
        schema, y = schema.part((*schema.columns, *schema.identifiers)), np.zeros(len(next(iter(cells.values()), ())))
        y = schema.with_person(y, cells)
    return Federation.central(cells, y, ledger=ledger, schema=schema), schema


def _place_columns(schema: Schema, federation: Federation, facts: Facts) -> tuple[Columns, tuple[int, ...]]:
    """The columns of all parties one after the other, and how many codes each has; other schemas are refused.

    The label is the last code of all who know it. By rows there is one list for all parties.
    """
    alone = federation.split.same_people
    held = [schema.of_features(fact["feature_names"]) for fact in facts.values()] if alone else [schema]
    known = alone or common_names(facts, federation.split) == schema.feature_names
    if not known or sum(len(own.columns) for own in held) != len(schema.columns):
        raise InputError(
            "schema: the columns of the parties are not those of this schema. Give the same schema to the federation, "
            "to every party and to the description."
        )
    columns, widths, start = dict[int, kinds.Column](), list[int](), 0
    for number, own in enumerate(held):
        columns |= dict(enumerate(own.columns.values(), start))
        mine = not alone or number == federation.label_party
        knows = not federation.unlabelled and (mine or federation.labels != "held")
        widths.append(len(own.columns) + (schema.target is not None and knows))
        start += widths[-1]
        if schema.target is not None and knows and mine:
            columns[start - 1] = schema.target
    return columns, tuple(widths)


def _described(columns: Columns, schema: Schema, by: str | None, *, held: bool) -> Described:
    """The cells of each column, as far as the schema says them; into how many a range is cut follows."""
    cuts = list[Cut]()
    for place, column in columns.items():
        cells: dict[str, Any] = {"scale": "levels", "cells": len(_names_of(column))}
        if isinstance(column, kinds.Number):
            range_ = {"scale": getattr(column, "scale", "linear"), "low": column.low, "high": column.high}
            cells = {"scale": "powers"} if column.unknown else range_
        cuts.append(Cut(place=place, **cells))
    if by is None:
        return Described(columns=tuple(cuts))
    places = [place for place, column in enumerate(columns.values()) if column is schema.target]
    if by != schema.label or not places or cuts[places[0]].scale != "levels":
        raise InputError(f"by={by!r} must be the label column of the schema, with levels or yes and no declared.")
    if held:
        raise InputError(f"by={by!r}: one party alone knows the labels, and others cannot count by them; leave by out.")
    return Described(columns=tuple(cuts), by=places[0])


def _names_of(column: kinds.Column) -> Sequence[str]:
    """Those of the levels."""
    if isinstance(column, kinds.YesNo):
        return [shown_level(column.no), shown_level(column.yes)]
    return column.shown if isinstance(column, kinds.Category) else []


def _summaries_of(
    columns: Columns, plan: Plan, counted: Mapping[int, Any], noise: float
) -> tuple[dict[str, dict[str, Summary]], dict[str, Metric]]:
    """(summaries by column and group, how many records are of each class)."""
    whole = {ALL: ([0], float(plan.records), 0.0)}  # which counts, how many records, known but for what deviation
    groups, told = dict(whole), dict[str, dict[str, Summary]]()
    if plan.numbers.by is not None:
        cut, cells, sums = counted[plan.numbers.columns[plan.numbers.by].place]
        label = ColumnEstimates(cut, cells[0], sums, noise, float(plan.records))
        names = _names_of(columns[cut.place])
        for name, *members in ((ALL, *range(cut.cells)), *zip(names, range(cut.cells), strict=True)):
            part = np.isin(np.arange(len(label.cells)), members).astype(np.float64)
            groups[name] = (members, float(part @ label.known), math.sqrt(float(label.variance(part))))
    for place, (cut, cells, sums) in sorted(counted.items()):
        own, window = told.setdefault(columns[place].name, {}), range(0)
        for name, (members, records, loose) in (groups if len(cells) > 1 else whole).items():
            own_cells, own_sums = (part[members].sum(axis=0) for part in (cells, sums))
            joined = noise * math.sqrt(len(members))
            found = ColumnEstimates(cut, own_cells, own_sums, joined, records, loose)
            window = found.window() if name == ALL and cut.scale != "levels" else window
            own[name] = _summary_of(_names_of(columns[place]), found, window)
    return told, {name: around(size, loose) for name, (_, size, loose) in groups.items() if name != ALL}


def _summary_of(levels: Sequence[str], found: ColumnEstimates, window: range) -> Summary:
    """What people read of a column."""
    if found.cut.scale == "levels":
        shares = dict(zip(levels, found.shares(), strict=False))
        return Summary({"missing": found.missing, "none of the levels": found.outside}, shares)
    told = {"missing": found.missing}
    if found.cut.summed:
        mean, deviation = found.moments()
        told |= {"beyond the range": found.outside, "mean": mean, "standard deviation": deviation}
    told |= {name: found.quantile(share) for name, share in QUANTILES.items()}
    bars = found.bars(window)
    return Summary(told, {f"{_short_number(low)} to {_short_number(high)}": share for low, high, share in bars})
