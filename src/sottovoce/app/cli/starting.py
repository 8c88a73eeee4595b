"""`sottovoce demo`, `example`, `schema`, `describe`, `job` and `solvers`: first steps, before a model is fitted."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer

from sottovoce.app.cli.console import AsJson, Overwrite, argument, aside, cli_option, out, print_json, table
from sottovoce.errors import InputError
from sottovoce.files import check_writable, write_text

if TYPE_CHECKING:
    from sottovoce.app.outputs import RunState
    from sottovoce.app.runs import Say
    from sottovoce.solvers.options import Option


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the demo works; what an earlier demo left there is replaced.")
    ] = Path("sottovoce-demo"),
    keep: Annotated[
        bool, cli_option("Keep the clinics running afterwards, until Ctrl-C, to train again.", "--keep")
    ] = False,
) -> None:
    """Four clinics train a model together, on synthetic records, in well under a minute.

    Each clinic is a process of its own with its own file and ledger; they speak to the coordinator over mutually
    authenticated connections. A second training is then refused, since the budget does not allow it.

    - `sottovoce demo`
    - `sottovoce demo --folder /tmp/demo --keep`
    """
    from sottovoce.app.demo import run

    run(folder, out(), keep=keep)


def example(
    name: Annotated[str, typer.Argument(metavar="NAME", help="clinic-1, clinic-2, clinic-3, clinic, lab or insurer.")],
    file: Annotated[Path, argument("FILE", "The CSV file to write.")],
    new: Annotated[bool, cli_option("People to predict for, whose labels nobody has.", "--new")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a file of made-up people to try a federation with; they are drawn by arithmetic and about nobody.

    The clinics 1 to 3 have different people. The clinic, the lab and the insurer of a town have different columns of
    mostly the same people, each in its own order and with a column `id` that says who they are.

    - `sottovoce example clinic-1 clinic-1.csv`
    - `sottovoce example lab lab.csv`
    - `sottovoce example lab new-people.csv --new`
    """
    from sottovoce.lab.synthetic import example_rows

    rows = example_rows(name, new=new)
    write_text(file, "".join(",".join(row) + "\n" for row in rows), "file", overwrite=overwrite)
    out().print(f"{file}: {len(rows) - 1:,} made-up people, {len(rows[0])} columns", soft_wrap=True)


def schema(
    file: Annotated[Path, argument("FILE", "A table: CSV or Parquet.")],
    label: Annotated[str | None, cli_option("The label column.")] = None,
    output: Annotated[Path | None, cli_option("Write here; default: the standard output.", "--output", "-o")] = None,
    public: Annotated[bool, cli_option("The file is public: copy ranges and levels out of it.", "--public")] = False,
    smooth: Annotated[bool, cli_option("Let every number act along a curve, not a line.", "--smooth")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draft a schema for a table, from its header and the types of its columns, for a person to fill in.

    No range and no level is copied from the file: they would tell its records. What is left empty must be filled in
    from public knowledge, and until then the schema is refused. `sottovoce job` then drafts a job that names it.

    - `sottovoce schema patients.csv --label readmitted --output schema.toml`
    - `sottovoce schema census-public.csv --public`
    """
    from sottovoce.app.sources import draft_schema

    if output is not None:
        check_writable(output, "--output", overwrite=overwrite)
    _write_draft(draft_schema(file, label=label, public=public, smooth=smooth), output, overwrite=overwrite)
    fill = "look it over" if public else "fill in what is empty, from public knowledge"
    if label is None:
        fill += ", name the label"
    _show_next(f"{fill}, then `sottovoce job {file} --schema {output or 'schema.toml'} --output job.toml`")


def draft(
    file: Annotated[Path, argument("FILE", "A table: CSV or Parquet.")],
    schema: Annotated[Path, cli_option("The schema of its columns, filled in.", "--schema")],
    output: Annotated[Path | None, cli_option("Write here; default: the standard output.", "--output", "-o")] = None,
    test: Annotated[bool, cli_option("Test records: draft the file that `evaluate` takes.", "--test")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draft a job for a table and its schema, every key with a comment, for a person to change.

    `plan` and `fit` take it. With --test it is about test records, and `evaluate` takes it. Only the header and the
    number of records are read. For several organisations `sottovoce provision` drafts the files.

    - `sottovoce job patients.csv --schema schema.toml --output job.toml`
    - `sottovoce job others.csv --schema schema.toml --test --output test.toml`
    """
    from sottovoce.app.cli.drafts import draft_job

    if output is not None:
        check_writable(output, "--output", overwrite=overwrite)
    text, then = draft_job(file, schema, output, test=test)
    _write_draft(text, output, overwrite=overwrite)
    _show_next(then)


def _write_draft(text: str, output: Path | None, *, overwrite: bool) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, "--output", overwrite=overwrite)


def describe_tables(
    data: Annotated[Path, argument("DATA", "A table: CSV or Parquet; or a job, DATA.toml.")],
    epsilon: Annotated[float, typer.Option(help="The budget of the description.")],
    delta: Annotated[float, typer.Option(help="The delta of the budget.")] = 1e-5,
    schema: Annotated[Path | None, cli_option("The schema of a table; a job has its own.")] = None,
    ledger: Annotated[Path | None, cli_option("The ledger to charge for a table; a job has its own.")] = None,
    by: Annotated[str | None, cli_option("The label column: tell everything for each class too.")] = None,
    output: Annotated[Path | None, cli_option("Write all numbers here, as JSON.", "--output", "-o")] = None,
    page: Annotated[Path | None, cli_option("Write a page with small pictures here (.html).")] = None,
    plot: Annotated[Path | None, cli_option("Draw the shares to this file (.png, .svg, .pdf).")] = None,
    overwrite: Overwrite = False,
    restart: Annotated[bool, cli_option("Give an interrupted description up; it stays charged.", "--restart")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe the columns of private tables, before a model is fitted: one noisy release, charged before it.

    Of each column the missing and unmatched shares, mean, deviation, quantiles and a small histogram, with 95%
    intervals. DATA is a table with its schema, or a job, such as that of a later fit: its [schema], and its [data],
    [[party]] tables or [federation]. Where ledgers pay, one that was stopped goes on when it is started again.

    - `sottovoce describe patients.csv --schema schema.toml --epsilon 0.2 --page patients.html`
    - `sottovoce describe job.toml --epsilon 0.2 --by readmitted`
    """
    from sottovoce.app import outputs, runs
    from sottovoce.app.cli.fitted import Telling
    from sottovoce.app.jobs import load_tables_job
    from sottovoce.app.results import description_page
    from sottovoce.estimators.description import describe
    from sottovoce.estimators.model_file import plain

    options: dict[str, dict[str, str]] | None = None
    if data.suffix.lower() != ".toml":
        if schema is None:
            raise InputError(f"--schema: {data} is a table, and a schema says what its columns hold; give it.")
        own = {"file": data.name} | ({} if ledger is None else {"ledger": str(ledger.absolute())})
        options = {"data": own, "schema": {"file": str(schema.absolute())}}
    elif schema is not None or ledger is not None:
        raise InputError(f"--schema, --ledger: {data} is a job, which has its own; leave them out.")
    job = load_tables_job(data, options)

    def ask(state: RunState, say: Say) -> dict[str, str]:
        with runs.open_federation(job, say, state) as federation:
            try:
                found = describe(federation, epsilon=epsilon, delta=delta, schema=job.known_schema, by=by)
            finally:
                outputs.store_receipts(job, federation.receipts)
        text = json.dumps(plain(found.to_dict()), indent=2) + "\n"
        made = description_page(found, state.accounts, title=f"Description: {data.stem}")
        return {"description": text, "said": str(found), "page": made}

    paths = {"--output": output, "--page": page, "--plot": plot}
    asked = {"described": [epsilon, delta, by]}
    Telling("description", paths, restart, overwrite, as_json).once(job, asked, ask)


def _show_next(what: str) -> None:
    aside().print(f"next: {what}", soft_wrap=True)


def solvers(
    name: Annotated[str | None, argument("[NAME]", "One solver, with its options.")] = None, as_json: AsJson = False
) -> None:
    """List the solvers and what they serve, or one solver with its options.

    A job names its solver in the table `[solver]`, as `name`, with its options beside it. Without one it is chosen by
    public quantities, and an option that is left out follows its rule: there is nothing to tune.

    - `sottovoce solvers`
    - `sottovoce solvers cd`
    - `sottovoce solvers cd --json`
    """
    from sottovoce.algorithms import SOLVERS

    console = out()
    if name is None:
        entries = list(map(describe_solver, SOLVERS))
        if as_json:
            print_json({"solvers": [asdict(entry) for entry in entries]})
            return
        listing = table("solver", "what it does", "split", "options")
        listing.columns[0].no_wrap = True
        for entry in entries:
            options = ", ".join(one.name for one in entry.options)
            listing.add_row(entry.name, entry.summary, ", ".join(entry.splits), options)
        console.print(listing)
        console.print("\n`sottovoce solvers NAME` has the losses, penalties and options of one.")
        return
    entry = describe_solver(name)
    if as_json:
        print_json(asdict(entry))
        return
    console.print(f"{entry.name}: {entry.summary}.", style="bold")
    if entry.remarks:
        console.print(entry.remarks)
    console.print(f"  in Python: sottovoce.solvers.{entry.object}(...)")
    console.print(f"  split: {', '.join(entry.splits)}")
    for what in ("losses", "penalties", "promises"):
        console.print(f"  {what}: {', '.join(getattr(entry, what))}")
    listing = table("option", "allowed", "what it does", "left out")
    listing.columns[0].no_wrap = True
    for one in entry.options:
        listing.add_row(one.name, one.kind, one.meaning, one.default)
    console.print()
    console.print(listing)
    if len(entry.forms) == 1:
        return
    listing = table("form", "split", "promise", "what it is", "options it takes")
    listing.columns[0].no_wrap = True
    for form in entry.forms:
        chosen = "".join(f", {key}={value!r}" for key, value in form.chosen_by.items())
        names = (", ".join(form.splits), ", ".join(form.promises), form.title, ", ".join(form.options))
        listing.add_row(f"{form.name}{chosen}", *names)
    console.print()
    console.print(listing)


Promise = Literal["private", "published", "without privacy"]

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


def describe_solver(name: str) -> SolverEntry:
    """The solver of that name: what it serves and which options it has, from the registry and from its class."""
    from sottovoce import algorithms, losses
    from sottovoce.plan.split import SPLITS
    from sottovoce.solvers import by_name
    from sottovoce.solvers.names import IN_PAPERS

    kind = type(by_name(name))
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
    called = ", ".join(title for title, (solver, _) in IN_PAPERS.items() if solver == name)
    return SolverEntry(
        name=name,
        object=kind.__name__,
        summary=kind.summary(),
        remarks=" ".join(filter(None, (kind.remarks(), called and f"In papers: {called}."))),
        splits=splits,
        losses=tuple(
            loss for loss in known if any(algorithms.mismatch(name, known[loss], split) is None for split in splits)
        ),
        penalties=kind.penalties,
        promises=tuple(promise for promise in get_args(Promise) if any(promise in form.promises for form in forms)),
        options=kind.described(),
        forms=forms,
    )
