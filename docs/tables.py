"""The tables of the documentation that are made from the classes.

A table between `<!-- table: NAME -->` and `<!-- end -->` is part of the page: `python docs/tables.py` rewrites it, and
a test refuses one that is older than the code. `<!-- insert: NAME -->` is replaced when the site is built.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sottovoce import estimators, losses
from sottovoce.app.cli.starting import SolverEntry, describe_solver
from sottovoce.app.job_file import SourceTable, keys_of, tables_in
from sottovoce.app.jobs import DealerJob, Job, PartyJob, PeopleJob, PolicyTable
from sottovoce.plan.split import ASSUMPTIONS
from sottovoce.solvers import SOLVERS, Options
from sottovoce.solvers.options import documented

DOCS = Path(__file__).parent
KINDS = [
    getattr(estimators, f"Private{name}")
    for name in ("LogisticRegression", "Ridge", "Lasso", "ElasticNet", "LinearSVC")
]
_TABLE = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LENGTH = re.compile(", in (one line of )?at most 300 characters$")  # said above the table
_INSERT = re.compile(r"<!-- insert: ([\w ]+) -->\n")


def rows(*lines: Iterable[str]) -> str:
    """A table; the first line is its head."""
    head, *others = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + "---|" * head.count(" | ") + "---|", *others]) + "\n"


def solvers() -> str:
    """One line for each solver."""
    head = ("solver", "object", "what it does", "losses", "penalties", "split", "promises")
    return rows(head, *(map(_cell, _solver(entry)) for entry in map(describe_solver, SOLVERS)))


def _solver(entry: SolverEntry) -> tuple[str, ...]:
    return (
        f"`{entry.name}`",
        f"`{entry.object}`",
        entry.summary,
        "all" if list(entry.losses) == losses.names() else ", ".join(entry.losses),
        "all" if entry.penalties == Options.penalties else ", ".join(entry.penalties),
        ", ".join(entry.splits),
        ", ".join(entry.promises),
    )


def options() -> str:
    """A table of options for each solver."""
    made = []
    for entry in map(describe_solver, SOLVERS):
        said = f"{entry.summary}. {entry.remarks}".strip()
        lines = [(f"`{option.name}`", option.kind, option.meaning, option.default) for option in entry.options]
        table = rows(("option", "allowed", "what it does", "left out"), *(map(_cell, line) for line in lines))
        made.append(f"### `{entry.object}`: {entry.name}\n\n{said}\n\n{table}")
    return "\n" + "\n".join(made) + "\n"


def parameters() -> str:
    """What all estimators take, with the defaults of those that have another."""
    said = {name: text for name, _, text in documented(estimators.PrivateLinearModel)}
    lines = []
    for field in dataclasses.fields(estimators.PrivateLinearModel):
        others: dict[str, list[str]] = {}
        for kind in KINDS:
            if (own := _default(kind, field.name)) != field.default:
                others.setdefault(_shown(own), []).append(f"`{kind.__name__}`")
        default = ", or ".join(
            [_shown(field.default), *(f"{value} for {' and '.join(names)}" for value, names in others.items())]
        )
        lines.append((f"`{field.name}`", default, said[field.name]))
    return rows(("parameter", "default", "what it is"), *(map(_cell, line) for line in lines))


def own_parameters() -> str:
    """What only some estimators take, those with the same default and meaning together."""
    shared = {field.name for field in dataclasses.fields(estimators.PrivateLinearModel)}
    found: dict[tuple[str, str, str], list[str]] = {}
    for kind in KINDS:
        said = {name: text for base in reversed(kind.__mro__) for name, _, text in documented(base)}
        for field in dataclasses.fields(kind):
            if field.name not in shared:
                same = (f"`{field.name}`", _shown(field.default), said[field.name])
                found.setdefault(same, []).append(f"`{kind.__name__}`")
    lines = [(name, ", ".join(kinds), default, text) for (name, default, text), kinds in found.items()]
    return rows(("parameter", "of", "default", "what it is"), *(map(_cell, line) for line in lines))


def file_keys() -> str:
    """Every table of the job, party, dealer and people files once, each key with what it may be."""
    found: dict[tuple[str, Any], tuple[Any, list[str]]] = {}
    for file, kind in FILES.items():
        for name, field in keys_of(kind).items():
            title = f"[[{name}]]" if "tuple" in str(field.annotation) else f"[{name}]"
            inner = next(iter(tables_in(field.annotation)), None)
            same = ((known, other) for known, other in found if known == title and other and issubclass(other, inner))
            found.setdefault(next(same, (title, inner)), (field, []))[1].append(file)
    return "\n" + "\n".join(_section(*table, *of) for table, of in found.items()) + "\n"


FILES = {"job": Job, "party": PartyJob, "dealer": DealerJob, "people": PeopleJob}


def assumptions() -> str:
    """By which key of a policy a holder agrees to what secure sums assume."""
    keys = PolicyTable.model_fields
    lines = [(name, f"`{key}`", _left_out(keys[key]), keys[key].description or "") for name, key in ASSUMPTIONS.items()]
    return rows(("assumption", "key", "left out", "what it is"), *(map(_cell, line) for line in lines))


def _section(title: str, inner: Any, field: Any, files: list[str]) -> str:
    needed = ", needed" if field.is_required() else ""
    head = f"### `{title}` ({', '.join(files)}){needed}\n\n"
    if inner is None:  # names of the reader's own
        return f"{head}By name, {field.description}.\n"
    said = (inner.__doc__ or "").strip().split("\n")[0]
    shared = SourceTable.model_fields if issubclass(inner, SourceTable) and inner is not SourceTable else {}
    keys = {key: own for key, own in inner.model_fields.items() if key not in shared}
    lines = [(f"`{key}`", _left_out(own), _LENGTH.sub("", own.description or "")) for key, own in keys.items()]
    if inner.model_config.get("extra") == "allow":
        lines.append(("others", "", _OTHERS[title.strip("[]")]))
    table = rows(("key", "left out", "what it is"), *(map(_cell, line) for line in lines))
    return f"{head}{said}{' It has the keys of `[data]` and:' if shared else ''}\n\n{table}"


_OTHERS = {
    "model": "the parameters of that estimator's problem, such as `alpha`: see [reference](reference.md)",
    "solver": "the options of that solver: see [solvers](solvers.md)",
}


def _left_out(field: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None or value == () else _shown(value)


TABLES = {
    "assumptions": assumptions,
    "solvers": solvers,
    "options": options,
    "parameters": parameters,
    "own parameters": own_parameters,
    "file keys": file_keys,
}


def written(text: str) -> str:
    """A page with its tables made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", text)


def inserted(text: str) -> str:
    """A page with the tables that the site alone shows."""
    return _INSERT.sub(lambda found: TABLES[found[1]](), text)


def _default(kind: Any, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(kind) if field.name == name)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f'`"{value}"`' if isinstance(value, str) else f"{value}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    pages = [page for page in sorted(DOCS.glob("*.md")) if _TABLE.search(page.read_text(encoding="utf-8"))]
    stale = [page for page in pages if written(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"written anew: {', '.join(page.name for page in stale) or 'nothing'}\n")
