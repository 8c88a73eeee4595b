"""`sottovoce plan` and `sottovoce fit`."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from sottovoce.app.cli.console import (
    OUT_OF_MEMORY,
    AsJson,
    JobPath,
    Overwrite,
    aside,
    bar,
    option,
    out,
    print_json,
    seconds_text,
    show_promises,
    table,
)
from sottovoce.app.cli.viewing import LogJson, NoView, ViewOptions, ViewPort, watched_fit
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.app.jobs import EvaluationJob, Job
    from sottovoce.app.outputs import RunState
    from sottovoce.app.previews import Preview
    from sottovoce.app.runs import JobRun
    from sottovoce.app.view.watched import WatchedWire
    from sottovoce.data.parts_in_file import PreparedRows
    from sottovoce.estimators import PrivateLinearModel
    from sottovoce.plan.plan import Plan

CHARGE_COLUMNS: Final = ("party", "account", "total>", "left now>", "left after>", "used after")


def plan(
    job: JobPath,
    epsilon: Annotated[
        list[float] | None, option("Compare these budgets, and simulate accuracy.", metavar="NUMBERS")
    ] = None,
    like: Annotated[Path | None, option("A public file to simulate on, with the columns of the job's data.")] = None,
    plot: Annotated[Path | None, option("Draw the simulated accuracy into this file.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show what a job would promise, take and cost. Nothing is charged.

    The guarantee against each adversary, the noise, rounds, bytes, time, and what each ledger would have left.
    With `records` and `features` declared in the job no data file is opened; else only its shape is read.
    The data are `[data]` (one file), several `[[party]]` or a `[federation]` of remote ones; with a table `[columns]`
    the parties have different columns of the same people, else different people.

    With several epsilons the noise and the ledgers at each, and how much worse the model would be: simulated on made-up
    records of the same shape, or on a public file that you name. No private record is read for it.

    - `sottovoce plan job.toml`
    - `sottovoce plan job.toml --json`
    - `sottovoce plan job.toml --epsilon 0.1 0.5 1 3 --plot accuracy.png`
    """
    from sottovoce.app.cli.comparing import compare
    from sottovoce.app.jobs import load_job
    from sottovoce.app.previews import plan_job

    if epsilon:
        compare(load_job(job), epsilon, like, plot, overwrite=overwrite, as_json=as_json)
        return
    if like is not None or plot is not None:
        raise InputError("--like and --plot belong to a simulation; give epsilons, --epsilon 0.1 0.5 1 3.")
    shown = plan_job(load_job(job))
    if as_json:
        print_json(shown.to_dict())
        return
    console = out()
    show_preview(shown, console)
    console.print(f"\nNothing was charged{'' if shown.files_opened else ' and no data file was opened'}.")


def fit(
    job: JobPath,
    as_json: AsJson = False,
    quiet: Annotated[bool, option("No estimate, progress or summary.", "--quiet", "-q")] = False,
    overwrite: Overwrite = False,
    resume: Annotated[bool, option("Go on with an interrupted run, or fail.", "--resume")] = False,
    restart: Annotated[bool, option("Give an interrupted run up; it stays charged.", "--restart")] = False,
    view: ViewPort = None,
    no_view: NoView = False,
    log_json: LogJson = None,
) -> None:
    """Train a model, and write it with its privacy report (JSON) and a readable page (HTML).

    Prints the plan first, then progress with the time left. Every ledger is charged before the first value leaves
    its party. No metric of the training data is computed: use records that were held out.
    A job NAME.toml gives NAME.json, NAME.privacy.json and NAME.privacy.html, unless its [output] says otherwise; a
    file that is there already is replaced with `--overwrite` alone, which is checked before anything is charged.
    `sottovoce demo` writes a job to start from, `sottovoce-demo/job.toml`.

    The file of a job may be a folder or a pattern, "people/*.parquet", or larger than memory: then one pass prepares
    its rows into a file beside the ledger (folder, keep), which is gone when the fit is over.

    Where ledgers pay, the state of the fit is in NAME.run until its results are written. A fit that was stopped goes on
    from there by itself when it is started again: the same plan, the same model, charged once. `--resume` fails where
    there is nothing to go on with; `--restart` begins anew, and what the old run was charged stays spent. A second
    start while the first runs is refused.

    Where parties are elsewhere a page for operators is served at 127.0.0.1 while it runs, and its address printed;
    not with `--quiet` or `--no-view`. With the data here it is served with `--view`.

    - `sottovoce fit job.toml`
    - `sottovoce fit job.toml --json --quiet`
    - `sottovoce fit job.toml --resume`
    """
    from sottovoce.app import outputs, runs
    from sottovoce.app.jobs import load_job

    beside, loaded = aside(), load_job(job)
    table = ViewOptions(view, no_view, log_json).of_fit(loaded, quiet=quiet)
    quiet = quiet or table.log == "-"
    with outputs.begin_run(loaded, resume=resume, restart=restart, overwrite=overwrite) as state:
        for plan in state.journal.given_up:
            beside.print(f"note: given up: {outputs.describe_lost_cost(plan)}", soft_wrap=True)
        if state.journal.outputs:
            _write_stored(loaded, state, as_json=as_json, quiet=quiet)
            return
        outputs.check_outputs(loaded, overwrite=state.overwrite)
        for text in filter(None, (loaded.set_elsewhere, state.resumed)):
            beside.print(text, soft_wrap=True)
        with (
            report_interruption(loaded, state),
            watched_fit(loaded, table, lambda text: None if quiet else beside.print(text, soft_wrap=True)) as watched,
            runs.open_job(loaded, watched.hear, state, watched.over) as run,
        ):
            model, seconds = _run_fit(run, state, watched, quiet=quiet)
        after = {party: account.balance() for party, account in state.accounts.items()}
        occasion = outputs.describe_occasion(model, state.before, after, seconds)
        texts = outputs.make_texts(model, occasion)
        state.journal.keep_outputs(texts)
        paths = outputs.write_texts(loaded, texts, overwrite=state.overwrite)
        state.journal.remove()
    if as_json:
        print_json(
            {
                **outputs.make_report(model, occasion),
                "seconds": seconds,
                "ledgers": {party: vars(balance) for party, balance in after.items()},
                "written": {key: str(path) for key, path in paths.items()},
            }
        )
    elif not quiet:
        show_summary(model, paths, {party: balance.left for party, balance in after.items()}, seconds, out())


def _run_fit(run: JobRun, state: RunState, watched: WatchedWire, *, quiet: bool) -> tuple[PrivateLinearModel, float]:
    """Show what will be done, and do it; the model and the seconds that it took."""
    from sottovoce.app import outputs, previews, runs
    from sottovoce.estimators.progress import progress_bar

    beside, shown = aside(), previews.make_preview(run, charged=state.journal.begun)
    for note in shown.notes:
        beside.print(f"note: {note}")
    progress: AbstractContextManager[Any] = nullcontext(lambda *_: None)
    if not quiet:
        show_preview(shown, beside, remarks=False)
        progress = progress_bar(f"training by {shown.plan.algorithm}", beside, run.training.federation.lend)
    previews.require_budget(shown)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with progress as advance:
                model = runs.fit_model(run, watched.progress(advance))
        except (RefusedError, BudgetError, LedgerError):
            if (journal := run.training.session.coordinator.journal).begun:
                beside.print(f"note: {journal.path} has the state of this run: {outputs.WHAT_TO_DO}", soft_wrap=True)
            raise
    seconds = time.perf_counter() - start
    for warning in caught:
        beside.print(f"note: {warning.message}")
    for party, why in model.missing_parts_.items():
        beside.print(
            f"note: joint predictions are not possible, {party} has no part of the model: {why}", soft_wrap=True
        )
    return model, seconds


@contextmanager
def report_interruption(job: Job | EvaluationJob, state: RunState) -> Iterator[None]:
    """Say what a run has cost that is interrupted, or that memory is too small for."""
    try:
        yield
    except KeyboardInterrupt:
        aside().print(f"stopped; {_describe_charge(job, state)}", soft_wrap=True)
        raise
    except MemoryError:
        raise InputError(f"{OUT_OF_MEMORY} {_describe_charge(job, state).capitalize()}.") from None


def _describe_charge(job: Job | EvaluationJob, state: RunState) -> str:
    """Whether a run that stops now was charged: by the ledgers that are here, of parties elsewhere by its state."""
    now = {party: account.balance().plans for party, account in state.accounts.items()}
    charged = job.federation is not None or now != {party: balance.plans for party, balance in state.before.items()}
    if charged and state.journal.begun:
        return "the same command goes on where it was, and is charged once"
    if job.federation is not None:
        return "the ledgers of its parties tell whether it was charged"
    return "what was charged stays charged" if charged else "nothing was charged"


def _write_stored(job: Job, state: RunState, *, as_json: bool, quiet: bool) -> None:
    """Write the results of a fit that had ended when it was stopped. Nobody is asked and nothing is charged."""
    from sottovoce.app import outputs

    texts = state.journal.outputs
    paths = outputs.write_texts(job, texts, overwrite=state.overwrite)
    state.journal.remove()
    if as_json:
        print_json({**json.loads(texts["report"]), "written": {key: str(path) for key, path in paths.items()}})
    elif not quiet:
        out().print("this fit had ended when it was stopped; nothing was asked or charged, and its results are written")
        for key, path in paths.items():
            out().print(f"{key}: {path}", soft_wrap=True)


def show_preview(shown: Preview, console: Console, *, remarks: bool = True) -> None:
    """The guarantee, the releases, the cost and the ledgers of a plan; `remarks` adds refusals and notes."""
    made = shown.plan
    show_problem(made, console)
    console.print("\nGuarantee", style="bold")
    show_promises(shown.report, console, several=made.split.several)
    if shown.first is not None:
        console.print(f"\n{shown.first}", soft_wrap=True)
    for each in shown.plans:
        if each.private:
            title = release_title(each, shown.plans)
            console.print()
            console.print(table(*release_columns(each), title=title, rows=release_rows(each)))
    console.print()
    _show_cost(shown, console)
    if shown.charges:
        console.print()
        console.print(table(*CHARGE_COLUMNS, title="Ledgers, in epsilon", rows=charge_rows(shown, console)))
        if made.split.same_people:
            console.print("A person is in every party, so each ledger is charged what all parties release together.")
    console.print(f"Solver: {shown.plan.algorithm}, {shown.why}")
    if shown.sums:
        console.print(f"Sums: {shown.sums}")
    if not remarks:
        return
    for refusal in dict.fromkeys(charge.refusal for charge in shown.charges if charge.refusal):
        who = ", ".join(charge.party for charge in shown.charges if charge.refusal == refusal)
        console.print(f"refused by {who}: {refusal}")
    for note in shown.notes:
        console.print(f"note: {note}")


def _show_cost(shown: Preview, console: Console) -> None:
    """Rounds, bytes, time and memory, and where prepared rows will be stored."""
    from sottovoce.app.texts import readable_size

    cost, parties = shown.cost, len(shown.plan.parties)
    if cost.rounds is None:
        console.print("Cost: without privacy the run stops when it has converged, which no plan can tell.")
        return
    up, down, dealt = cost.uplink_bytes or 0, cost.downlink_bytes or 0, cost.dealt_bytes or 0
    console.print(
        f"Cost: {cost.rounds} rounds, about {readable_size(up)} from the parties and {readable_size(down)} to them, "
        f"{seconds_text(cost.seconds or 0.0)} of {'reading and ' if cost.reading else ''}computing and about "
        f"{readable_size(cost.memory_bytes or 0)} of memory on this machine"
    )
    for each in shown.prepared:
        console.print(f"prepared rows: {storage_text(each)}", soft_wrap=True)
    if shown.plan.channel.secure:
        text = f"Secure: a party sends about {readable_size(up / parties)} and gets {readable_size(down / parties)}"
        if dealt:
            share, dealer = readable_size(dealt / parties), shown.plan.channel.dealer
            text += f"; {share} of what it gets is dealt by {dealer}, {readable_size(dealt)} in all"
        console.print(text, soft_wrap=True)


def storage_text(prepared: PreparedRows) -> str:
    """How large prepared rows are, and where they will be stored."""
    from sottovoce.app.texts import readable_size

    size = readable_size(prepared.size)
    if prepared.where == "file":
        return f"{size} in a file in {prepared.folder}"
    if prepared.workers:
        return f"at {prepared.workers} workers of the cluster, {readable_size(prepared.size / prepared.workers)} each"
    return f"{size} {'on the device' if prepared.where == 'device' else 'in memory'}"


def show_problem(made: Plan, console: Console) -> None:
    """What is fitted to how many records, and where they are."""
    from sottovoce.app.page import known_labels

    where = f"at {len(made.parties)} parties, split by {made.split}" if made.split.several else "in one place"
    console.print(
        f"{made.loss.name} loss, penalty {made.regulariser.name}, solver {made.algorithm}: "
        f"{made.records:,} records, {made.features} features, {where}"
    )
    if made.split.same_people:
        widths = ", ".join(f"{name} {count}" for (name, _), count in zip(made.parties, made.columns, strict=True))
        console.print(f"features: {widths}; labels: {known_labels(made)}")


def release_title(made: Plan, plans: Sequence[Plan]) -> str:
    """Above the table of what leaves; of several plans of a fit which one it is, and its share of the budget."""
    from sottovoce import algorithms

    title = made.channel.leaves
    if len(plans) == 1:
        return title
    share = made.mu**2 / sum(each.mu**2 for each in plans)
    return f"{title}: {algorithms.of(made).title.partition(':')[0]}, {100 * share:.3g}% of mu squared"


def release_columns(made: Plan) -> tuple[str, ...]:
    """Its columns, the noise last."""
    return "release", "times>", "of", f"one {made.protects} moves it by>", "noise, std>"


def release_rows(made: Plan) -> Iterator[tuple[str, ...]]:
    """A row for each release of a private plan."""
    from sottovoce.app.page import releases

    for title, release, times, moves in releases(made):
        share = "all records" if release.rate in (None, 1.0) else f"a secret {100 * release.rate:g}%"
        yield title, f"{times}", share, f"{moves:.4g}", f"{release.std:.4g}"


def charge_rows(shown: Preview, console: Console) -> Iterator[tuple[str, ...]]:
    """A row for each ledger."""
    for charge in shown.charges:
        row = (charge.party, charge.account, f"{charge.before.total:g}", f"{charge.before.left:.4g}")
        if charge.after is None:
            yield *row, "refused", ""
        else:
            yield *row, f"{charge.after.left:.4g}", bar(charge.after.share, console)


def show_summary(
    model: PrivateLinearModel, paths: dict[str, Path], left: dict[str, float], seconds: float, console: Console
) -> None:
    """What was done and where it is."""
    from sottovoce.app.texts import readable_size

    report: Any = model.privacy_
    sizes, weakest = model.communication_, report.weakest
    promise = f"epsilon {weakest.epsilon:.4g}, delta {weakest.delta:g}, {weakest.relation}"
    if weakest.void is not None or math.isinf(weakest.epsilon):
        promise = f"NONE. {weakest.void or 'The values that left had no noise.'}"
    elif weakest.unit == "feature":
        promise = f"NONE to a person; to a feature of one party epsilon {weakest.epsilon:.4g}, delta {weakest.delta:g}"
    console.print(
        f"trained in {seconds:.1f} s: {sizes.rounds} rounds, {readable_size(sizes.uplink_bytes)} from the parties, "
        f"{readable_size(sizes.downlink_bytes)} to them"
    )
    console.print(f"promise against everybody: {promise}")
    if weakest.promises and weakest.computational:
        console.print(f"which {weakest.mark}; {'; '.join(weakest.assumes[1:])}. {weakest.if_broken}", soft_wrap=True)
        for remark in report.remarks():
            console.print(remark, soft_wrap=True)
    for party, rest in left.items():
        console.print(f"ledger of {party}: epsilon {rest:.4g} left")
    for key, path in paths.items():
        console.print(f"{key}: {path}", soft_wrap=True)
