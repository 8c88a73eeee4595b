"""`sottovoce predict`, `evaluate`, `card`, `sheet` and `coefficients`: what is done with a fitted model."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli import console as terminal
from sottovoce.app.cli.console import AsJson, ModelPath, Overwrite, argument, cli_option
from sottovoce.app.cli.training import report_interruption
from sottovoce.app.texts import cell, render
from sottovoce.errors import InputError
from sottovoce.files import check_writable, write_stream, write_text

if TYPE_CHECKING:
    from sottovoce.app.jobs import EvaluationJob, Job
    from sottovoce.app.outputs import RunState
    from sottovoce.app.runs import Say
    from sottovoce.data.schema import Schema
    from sottovoce.estimators import PrivateLinearModel


def predict(
    model: ModelPath,
    data: Annotated[Path, argument("DATA", "Records: CSV, Parquet, LIBSVM; or a job.")],
    output: Annotated[Path | None, cli_option("Write here; default: the standard output.", "--output", "-o")] = None,
    proba: Annotated[bool, cli_option("Add the probability of each class.", "--proba")] = False,
    recipient: Annotated[
        str, typer.Option(help="Who learns joint predictions: this command (coordinator), or a party by its name.")
    ] = "coordinator",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a fitted model.

    Columns are matched by name, in any order; other columns, the label for one, are ignored. The result is a CSV
    with one line per record, in the order of the file, beside the identifiers that the schema names. DATA may be a
    folder or a pattern, in quotes, of files that are read and answered piece by piece.

    - `sottovoce predict job.json new-patients.csv`
    - `sottovoce predict job.json new-patients.csv --proba --output scores.csv`

    By columns the records of the people may stay with the parties: DATA is then a TOML file with a [[party]] (name,
    file) for each, or a [federation] of parties elsewhere. Each party scores its own columns, and only the recipient
    learns the sums. Cells are empty where a party has a missing value.

    - `sottovoce predict job.json people.toml --recipient lab`
    """
    from sottovoce.app.sources import is_large
    from sottovoce.estimators.model_file import load_model

    fitted = load_model(model)
    if proba and not hasattr(fitted, "predict_proba"):
        raise InputError(f"--proba: a {type(fitted).__name__} has no probabilities; only logistic models have.")
    if output is not None:
        check_writable(output, "--output", overwrite=overwrite)
    if data.suffix.lower() == ".toml":
        columns = _predict_jointly(fitted, data, recipient, proba=proba)
        if columns is None:
            return
    elif recipient != "coordinator":
        raise InputError(f"--recipient {recipient}: all records are here; it is for a job of parties, DATA.toml.")
    elif is_large(data, cells=fitted.schema_ is not None):
        if as_json and output is None:
            raise InputError(f"--json: {data} is read in pieces, and its predictions are lines; give --output.")
        count = _predict_in_pieces(fitted, data, output, proba=proba, overwrite=overwrite)
        _report_written(count, output, as_json=as_json)
        return
    else:
        columns = _predict_file(fitted, data, proba=proba)
    if output is not None:
        write_text(output, csv_text(columns), "--output", overwrite=overwrite)
        _report_written(len(columns["prediction"]), output, as_json=as_json)
    elif as_json:
        terminal.print_json(columns)
    else:
        sys.stdout.write(csv_text(columns))


def _report_written(count: int, output: Path | None, *, as_json: bool) -> None:
    """How many predictions went to which file; nothing where they are on the standard output."""
    if as_json:
        terminal.print_json({"records": count, "written": str(output)})
    elif output is not None:
        terminal.aside().print(f"{count:,} predictions written to {output}", soft_wrap=True)


def _predict_file(fitted: PrivateLinearModel, data: Path, *, proba: bool) -> dict[str, list[Any]]:
    """The columns of the result for records in one file."""
    from sottovoce.app.sources import read_features
    from sottovoce.data.cells import table_columns

    rows: Any
    kept: tuple[str, ...] = ()
    if (schema := fitted.schema_) is not None:
        rows = table_columns(data)
        kept = _kept(schema, tuple(rows))
        ignored = [name for name in rows if name not in (*schema.columns, *kept)]
    else:
        names = list(getattr(fitted, "feature_names_in_", []))
        rows, ignored = read_features(names, fitted.n_features_in_, data, whole=True)
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in kept}
    if ignored:
        terminal.aside().print(f"note: not features of the model, ignored: {', '.join(ignored)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no column names; read_features matched them
        columns["prediction"] = fitted.predict(rows).tolist()
        if proba:
            shares = fitted.predict_proba(rows).T.tolist()
            labels = (f"probability of {name}" for name in fitted.classes_.tolist())
            columns |= dict(zip(labels, shares, strict=True))
    return columns


def _kept(schema: Schema | None, names: Sequence[str]) -> tuple[str, ...]:
    """The identifiers that a table has, which go into its predictions as they are, to be joined by them."""
    known = () if schema is None else schema.identifiers
    return tuple(name for name in names if name in known and not name.startswith(("prediction", "probability of ")))


def _predict_in_pieces(
    fitted: PrivateLinearModel, data: Path, output: Path | None, *, proba: bool, overwrite: bool
) -> int:
    """Write the result for records in files piece by piece, and return how many there are."""
    from sottovoce.app.sources import predict_pieces
    from sottovoce.data.files import cell_rows, column_names
    from sottovoce.estimators.progress import progress_bar

    kept = () if fitted.schema_ is None else _kept(fitted.schema_, column_names(data))
    names, count = [*kept, "prediction"], 0
    cells = cell_rows(data, kept) if kept else itertools.repeat(())
    progress: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(lambda *_: None)
    if output is not None and (console := terminal.aside()).is_terminal:  # somebody looks
        progress = progress_bar("predicting", console)
    if proba:
        names += [f"probability of {name}" for name in fitted.classes_.tolist()]
    with contextlib.nullcontext(sys.stdout) if output is None else write_stream(output, "--output", overwrite) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(cell, names))
        with progress as advance:
            for labels, shares in predict_pieces(fitted, data, advance):
                columns = [labels.tolist(), *(shares.T.tolist() if proba else ())]
                whole = zip(itertools.islice(cells, len(labels)), zip(*columns, strict=True), strict=True)
                writer.writerows([_cell_text(value) for value in (*own, *row)] for own, row in whole)
                count += len(labels)
    return count


def _predict_jointly(
    fitted: PrivateLinearModel, path: Path, recipient: str, *, proba: bool
) -> dict[str, list[Any]] | None:
    """The columns of the result for people with records at several parties; None if a party is the recipient."""
    from sottovoce.app import runs
    from sottovoce.app.jobs import load_people_job
    from sottovoce.federation.prediction import COORDINATOR, Predictions

    job = load_people_job(path)
    if job.federation is None and recipient != COORDINATOR:
        raise InputError(f"--recipient {recipient}: the files of all parties are here; it is for parties elsewhere.")
    if not fitted.plan_.split.same_people:
        raise InputError("a job of people is for a model by columns; give predict a file of records instead.")
    federation = runs.connect_columns(job, fitted, lambda text: terminal.aside().print(text, soft_wrap=True))
    with contextlib.closing(federation):
        if recipient != COORDINATOR:
            fitted.predict_for(federation, recipient)
            terminal.aside().print(f"{recipient} has the predictions; nothing of them came here", soft_wrap=True)
        else:
            scores = fitted.scores(federation)
        ids = None if federation.remote else federation._parties[0].written_ids  # where the files are here
        federation.dismiss()
    if recipient != COORDINATOR:
        return None
    made = Predictions(bytes.fromhex(fitted.charged_as_), scores, fitted.plan_).table(proba=proba)
    return made if ids is None else {str(job.party[0].id): list(ids), **made}


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.17g}" if isinstance(value, float) else cell(str(value))


def csv_text(columns: dict[str, list[Any]]) -> str:
    """Columns as a CSV; what is missing is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([_cell_text(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def evaluate(
    model: ModelPath,
    job: Annotated[Path, argument("TEST", "A TOML file about test records.")],
    output: Annotated[
        Path | None, cli_option("Write metrics, curves and the guarantee here, as JSON.", "--output", "-o")
    ] = None,
    page: Annotated[Path | None, cli_option("Write a page with tables, pictures and the cost here (.html).")] = None,
    plot: Annotated[Path | None, cli_option("Draw metrics, curves and counts to this file (.png, .svg, .pdf).")] = None,
    by: Annotated[str | None, cli_option("Tell the groups of this column apart too; as `by` in TEST.", "--by")] = None,
    overwrite: Overwrite = False,
    restart: Annotated[bool, cli_option("Give an interrupted evaluation up; it stays charged.", "--restart")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell how good a fitted model is on private test records.

    TEST has a table [privacy] with the evaluation's own epsilon, before it `people = "same"` if the test people are
    those of the fit and `by = "sex"` to tell the groups of a column of the schema apart, and the test records: [data],
    a [[party]] for each file of this process, or a [federation] of parties elsewhere, split as those of the fit.
    Ledgers are charged before anything is released.

    Where ledgers pay, the state of the evaluation is in NAME.run, beside TEST, until its results are written and
    printed. One that was stopped goes on when it is started again: the same numbers, charged once.

    - `sottovoce evaluate job.json test.toml --output evaluation.json`
    - `sottovoce evaluate job.json test.toml --page evaluation.html --plot evaluation.png`
    """
    from sottovoce.app import runs
    from sottovoce.app.jobs import load_evaluation_job
    from sottovoce.app.results import evaluation_page
    from sottovoce.estimators.evaluation import evaluate as evaluate_model
    from sottovoce.estimators.groups import read_groups
    from sottovoce.estimators.model_file import load_model, plain, to_json

    fitted, test = load_model(model), load_evaluation_job(job)
    column = by or test.by
    read_groups(fitted, column, None)  # refused before parties are waited for

    def ask(state: RunState, say: Say) -> dict[str, str]:
        with runs.open_test(test, fitted, say, state) as federation:
            budget = test.privacy.model_dump(exclude_unset=True)
            result = evaluate_model(fitted, federation, **budget, people=test.people, by=column)
        text = json.dumps(plain(result.to_dict()), indent=2) + "\n"
        made = evaluation_page(result, state.accounts, title=f"Evaluation: {model.stem}")
        return {"evaluation": text, "said": str(result), "page": made}

    evaluated = hashlib.sha256(to_json(fitted).encode()).hexdigest()
    paths, asked = {"--output": output, "--page": page, "--plot": plot}, {"evaluated": evaluated}
    asked |= {} if column is None else {"by": column}
    Telling("evaluation", paths, restart, overwrite, as_json).once(test, asked, ask)


@dataclass(frozen=True)
class Telling:
    """What is told of one release: asked for once, written and printed once; one that was stopped goes on."""

    kind: str
    paths: Mapping[str, Path | None]  # by option
    restart: bool
    overwrite: bool
    as_json: bool

    def once(
        self, job: Job | EvaluationJob, asked: Mapping[str, Any], ask: Callable[[RunState, Say], dict[str, str]]
    ) -> None:
        """Its texts by `ask`, a JSON object under its kind, which the journal keeps until all of them are told."""
        from sottovoce.app import outputs
        from sottovoce.estimators.plots import SUFFIXES, new_figure

        plot, beside = self.paths["--plot"], terminal.aside()
        if plot is not None and plot.suffix.lower() not in SUFFIXES:
            raise InputError(f"--plot {plot} must end in {', '.join(SUFFIXES)}.")
        with outputs.hold_run(job, asked=asked, restart=self.restart) as state:
            for plan in state.journal.given_up:
                beside.print(f"note: given up: {outputs.describe_lost_cost(plan)}", soft_wrap=True)
            texts: Mapping[str, str] = state.journal.outputs
            if texts:
                beside.print(f"this {self.kind} had ended when it was stopped; nothing was asked or charged")
            else:
                for what, path in self.paths.items():
                    if path is not None:
                        check_writable(path, what, overwrite=self.overwrite)
                if plot is not None:
                    new_figure()  # it can be drawn
                for text in filter(None, (state.resumed, job.uncounted and f"note: {job.uncounted}")):
                    beside.print(text, soft_wrap=True)
                with report_interruption(job, state):
                    texts = ask(state, lambda text: beside.print(text, soft_wrap=True))
                state.journal.keep_outputs(texts)
            self._write(texts)
            state.journal.remove()

    def _write(self, texts: Mapping[str, str]) -> None:
        from sottovoce.app.outputs import write_once
        from sottovoce.estimators import plots

        result = json.loads(texts[self.kind])
        draw = plots.draw if self.kind == "evaluation" else plots.draw_description
        made: dict[str, Callable[[Path], bytes]] = {
            "--output": lambda _: texts[self.kind].encode(),
            "--page": lambda _: texts["page"].encode(),
            "--plot": lambda path: plots.picture(draw(result, plots.new_figure()), path.suffix.lower()),
        }
        try:
            for what, path in self.paths.items():
                if path is not None:
                    write_once(path, made[what](path), what, overwrite=self.overwrite)
            terminal.print_result(result, texts["said"], as_json=self.as_json)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except (InputError, OSError) as error:
            why = f"the standard output cannot be written ({error.strerror})." if isinstance(error, OSError) else error
            raise InputError(
                f"{why} The {self.kind} is done and paid for: start the same again, at no further cost."
            ) from None


def card(
    model: ModelPath,
    evaluation: Annotated[Path | None, cli_option("What `evaluate --output` wrote about this model.")] = None,
    output: Annotated[
        Path | None, cli_option("A page (.html) or Markdown (.md); default: NAME.card.html.", "--output", "-o")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a model card: the promise, what was declared of the data, how good the model is, its coefficients.

    All of it is public already: no record is read and nothing is charged. NAME.audit.json, which `sottovoce audit
    --plan` writes, is shown where it is there. A page holds its pictures; Markdown has them
    in files beside it, NAME.svg.

    - `sottovoce card job.json --evaluation evaluation.json`
    - `sottovoce card job.json --output card.md`
    """
    from sottovoce.app import page
    from sottovoce.app.results import card_page
    from sottovoce.estimators.model_file import load_model

    path = output or model.with_name(f"{model.stem}.card.html")
    if path.suffix.lower() not in page.FORMATS:
        raise InputError(f"--output {path} must end in {' or '.join(page.FORMATS)}.")
    fitted = load_model(model)
    measured = None if evaluation is None else page.load_evaluation(evaluation, fitted)
    if (attack := page.attack_of(model)).exists():
        fitted.privacy_ = page.load_attack(attack, fitted)
    title = f"Model card: {model.stem}"
    if path.suffix.lower() == ".md":
        sections = page.make_card(fitted, measured)
        pictures = [part for parts in sections.values() for part in parts if isinstance(part, page.Picture)]
        ends = ("", *(f".{place}" for place in range(2, len(pictures) + 1)))
        names = {part.what: f"{path.stem}{end}.svg" for part, end in zip(pictures, ends, strict=False)}
        texts = {path: render("card.md", title=title, sections=sections, pictures=names)}
        texts |= {path.with_name(names[part.what]): part.svg for part in pictures}
    else:
        texts = {path: card_page(fitted, measured, title=title)}
    for file in texts:
        check_writable(file, "--output", overwrite=overwrite)
    for file, text in texts.items():
        write_text(file, text, "--output", overwrite=overwrite)
    written = [str(file) for file in texts]
    terminal.print_result({"written": written}, f"written: {', '.join(written)}", as_json=as_json)


_Kind = StrEnum("_Kind", ("protection", "nist", "registry"))


def sheet(
    model: ModelPath,
    kind: Annotated[
        _Kind,
        typer.Option(
            help="protection: for an officer to sign; nist: answers to NIST SP 800-226; registry: an entry for the "
            "registry of deployments of differential privacy, as YAML."
        ),
    ] = _Kind.protection,
    evaluation: Annotated[Path | None, cli_option("What `evaluate --output` wrote about this model.")] = None,
    ledger: Annotated[Path | None, cli_option("The ledger of these people, for what they gave in all.")] = None,
    dataset: Annotated[str | None, cli_option("Its account, where it has several.")] = None,
    output: Annotated[
        Path | None, cli_option("Write here; default: NAME.KIND.html or .yaml.", "--output", "-o")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a sheet about a model that somebody signs, checks or publishes; it fills itself.

    What it says is in the model file: the plan, the promise, the columns with `source` and `sensitive` of the schema,
    and the texts of [about] in the job, such as controller, basis, recipients, retention, reason and withdrawal. What
    nobody said is marked. No record is read and nothing is charged.

    - `sottovoce sheet job.json --ledger people.ledger`
    - `sottovoce sheet job.json --kind registry`
    """
    from sottovoce.app import page, sheets
    from sottovoce.estimators.model_file import load_model
    from sottovoce.privacy.ledger import Ledger

    suffix, write = sheets.SHEETS[kind.value]
    path = output or model.with_name(f"{model.stem}.{kind.value}{suffix}")
    check_writable(path, "--output", overwrite=overwrite)
    fitted = load_model(model)
    facts = sheets.Facts(
        fitted,
        evaluation=None if evaluation is None else page.load_evaluation(evaluation, fitted),
        account=None if ledger is None else Ledger(ledger).account(dataset),
        model_hash=hashlib.sha256(model.read_bytes()).hexdigest(),
    )
    write_text(path, write(facts), "--output", overwrite=overwrite)
    open_points = [answer.question for answer in sheets.unanswered(facts, kind.value)]
    more = f"; not said: {', '.join(open_points)}" if open_points else ""
    terminal.print_result({"written": str(path), "not_said": open_points}, f"written: {path}{more}", as_json=as_json)


def coefficients(
    model: ModelPath,
    level: Annotated[float, cli_option("Of the intervals: 0.9 for those that hold in 90 of 100 cases.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Show a model's coefficients with standard errors and intervals that include the privacy noise.

    They are there if the job said `standard_errors = true` in [model], or named columns: `["age", "sex"]`.

    - `sottovoce coefficients job.json`
    - `sottovoce coefficients job.json --level 0.9`
    """
    from sottovoce.estimators.coefficients import WithStandardErrors
    from sottovoce.estimators.model_file import load_model

    fitted = load_model(model)
    if not isinstance(fitted, WithStandardErrors):
        raise InputError(
            f"{model} is a {type(fitted).__name__}, which has no standard errors; ridge and logistic have."
        )
    table = fitted.coefficients(level)
    terminal.print_result(table.to_dict(), str(table), as_json=as_json)
