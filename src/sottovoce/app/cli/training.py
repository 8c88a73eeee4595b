"""`sottovoce plan` and `sottovoce fit`."""

from __future__ import annotations

import functools
import json
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer.core import TyperCommand

from sottovoce.app.cli import console as terminal
from sottovoce.app.cli.console import AsJson, JobPath, LogJson, NoView, Overwrite, ViewPort, cli_option
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError

if TYPE_CHECKING:
    from sottovoce.app.jobs import EvaluationJob, Job
    from sottovoce.app.outputs import RunState
    from sottovoce.app.runs import JobRun
    from sottovoce.app.view.watched import WatchedWire
    from sottovoce.estimators import PrivateLinearModel

_ENDED: Final = "this fit had ended when it was stopped; nothing was asked or charged, and its results are written"


class SeveralEpsilons(TyperCommand):
    """`--epsilon 0.1 0.5 1` is `--epsilon 0.1 --epsilon 0.5 --epsilon 1`: the numbers behind it belong to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further number."""
        spelled: list[str] = []
        inside = False
        for word in args:
            if inside and _is_number(word) and spelled[-1] != "--epsilon":
                spelled.append("--epsilon")
            inside = word.startswith("--epsilon") or (inside and _is_number(word))
            spelled.append(word)
        found: list[str] = super().parse_args(ctx, spelled)
        return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def plan(
    job: JobPath,
    epsilon: Annotated[
        list[float] | None, cli_option("Compare these budgets, and simulate accuracy.", metavar="NUMBERS")
    ] = None,
    like: Annotated[
        Path | None, cli_option("A public file to simulate on, with the columns of the job's data.")
    ] = None,
    strength: Annotated[
        float | None,
        cli_option("Of made-up records: how often the true model is right, 0.8 if left out; of numbers its R², 0.5."),
    ] = None,
    accuracy: Annotated[
        float | None, cli_option("The least epsilon whose simulated accuracy is this; of numbers R².", metavar="NUMBER")
    ] = None,
    plot: Annotated[Path | None, cli_option("Draw the simulated accuracy into this file.")] = None,
    look: Annotated[
        bool, cli_option("Read the files of this job too, and tell you alone what does not fit.", "--look")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show what a job would promise, take and cost. Nothing is charged.

    The guarantee against each adversary, the noise, rounds, bytes, time, and what each ledger would have left.
    With `records` and `features` declared in the job no data file is opened; else only its shape is read.
    The data are `[data]` (one file), several `[[party]]` or a `[federation]` of remote ones; with a table `[columns]`
    the parties have different columns of the same people, else different people.

    With several epsilons the noise and the ledgers at each, and how much worse the model would be: simulated on made-up
    records of the same shape, or on a public file that you name. No private record is read for it. How strong the
    effect is in made-up records is your guess, `--strength`. With `--accuracy` the other way round: the least epsilon
    at which such a model is so good, or that none is enough.

    With `--look` the files that are here are read as a fit reads them: for each column how many cells fit no level, are
    cut, missing or no number. That tells of the records, so it is for the holder's eyes.

    - `sottovoce plan job.toml`
    - `sottovoce plan job.toml --look`
    - `sottovoce plan job.toml --json`
    - `sottovoce plan job.toml --epsilon 0.1 0.5 1 3 --strength 0.65 --plot accuracy.png`
    - `sottovoce plan job.toml --accuracy 0.78`
    """
    from sottovoce.app import doctor
    from sottovoce.app.cli import comparison
    from sottovoce.app.jobs import load_job
    from sottovoce.app.previews import plan_job

    if epsilon and accuracy is not None:
        raise InputError(f"--accuracy {accuracy:g} asks for an epsilon; leave --epsilon out.")
    if (epsilon or accuracy is not None) and like is not None and strength is not None:
        raise InputError(f"--strength {strength:g} is of made-up records; leave it out with --like.")
    if accuracy is not None:
        if plot is not None:
            raise InputError("--plot draws epsilons to compare; give them with --epsilon.")
        comparison.find_budget(load_job(job), accuracy, strength if like is None else like, as_json=as_json)
        return
    if epsilon:
        comparison.compare(
            load_job(job), epsilon, strength if like is None else like, plot, overwrite=overwrite, as_json=as_json
        )
        return
    if (like, plot, strength) != (None, None, None):
        raise InputError(
            "--like, --strength and --plot belong to a simulation; give epsilons, --epsilon 0.1 0.5 1 3, or --accuracy."
        )
    loaded = load_job(job)
    shown = plan_job(loaded)
    for finding in doctor.look(loaded) if look else ():
        terminal.aside().print(f"{finding.state:8}{finding.check}: {finding.text}", soft_wrap=True)
    if as_json:
        terminal.print_json(shown.to_dict())
        return
    console = terminal.out()
    terminal.show_preview(shown, console)
    console.print(f"\nNothing was charged{'' if shown.files_opened or look else ' and no data file was opened'}.")


def fit(
    job: JobPath,
    as_json: AsJson = False,
    quiet: Annotated[bool, cli_option("No estimate, progress or summary.", "--quiet", "-q")] = False,
    overwrite: Overwrite = False,
    resume: Annotated[bool, cli_option("Go on with an interrupted run, or fail.", "--resume")] = False,
    restart: Annotated[bool, cli_option("Give an interrupted run up; it stays charged.", "--restart")] = False,
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
    from sottovoce.app.view.watched import watched_fit

    beside, loaded = terminal.aside(), load_job(job)
    table = terminal.change_view(loaded.view, view, no_view, log_json, if_asked=quiet or loaded.federation is None)
    quiet = quiet or table.log == "-"
    with outputs.hold_run(loaded, resume=resume, restart=restart, overwrite=overwrite) as state:
        for plan in state.journal.given_up:
            beside.print(f"note: given up: {outputs.describe_lost_cost(plan)}", soft_wrap=True)
        if texts := state.journal.outputs:  # it had ended when it was stopped: nobody is asked and nothing is charged
            paths = outputs.write_texts(loaded, texts, overwrite=state.overwrite)
            state.journal.remove()
            if as_json:
                terminal.print_json(
                    {**json.loads(texts["report"]), "written": {key: str(path) for key, path in paths.items()}}
                )
            elif not quiet:
                terminal.out().print(_ENDED)
                for key, path in paths.items():
                    terminal.out().print(f"{key}: {path}", soft_wrap=True)
            return
        outputs.check_outputs(loaded, overwrite=state.overwrite)
        uncounted = loaded.uncounted and not quiet and f"note: {loaded.uncounted}"
        for text in filter(None, (loaded.set_elsewhere, state.resumed, uncounted)):
            beside.print(text, soft_wrap=True)
        with (
            report_interruption(loaded, state),
            watched_fit(loaded, table, lambda text: None if quiet else beside.print(text, soft_wrap=True)) as watched,
            runs.open_job(loaded, watched.hear, state, watched.over) as run,
        ):
            model, seconds = _run_fit(run, state, watched, quiet=quiet)
        after = {party: account.balance() for party, account in state.accounts.items()}
        texts = outputs.make_texts(model, state.before, after, seconds)
        state.journal.keep_outputs(texts)
        paths = outputs.write_texts(loaded, texts, overwrite=state.overwrite)
        state.journal.remove()
    if as_json:
        terminal.print_json(
            {
                **json.loads(texts["report"]),
                "seconds": seconds,
                "ledgers": {party: vars(balance) for party, balance in after.items()},
                "written": {key: str(path) for key, path in paths.items()},
            }
        )
    elif not quiet:
        terminal.show_summary(
            model, paths, {party: balance.left for party, balance in after.items()}, seconds, terminal.out()
        )


def _run_fit(run: JobRun, state: RunState, watched: WatchedWire, *, quiet: bool) -> tuple[PrivateLinearModel, float]:
    """Show what will be done, and do it; the model and the seconds that it took."""
    from sottovoce.app import outputs, previews, runs
    from sottovoce.estimators.progress import progress_bar

    beside, shown = terminal.aside(), previews.make_preview(run, charged=state.journal.begun)
    for note in shown.notes:
        beside.print(f"note: {note}")
    progress: AbstractContextManager[Any] = nullcontext(lambda *_: None)
    if not quiet:
        terminal.show_preview(shown, beside, remarks=False)
        progress = progress_bar(f"training by {shown.plan.algorithm}", beside, run.training.federation.lend)
    for charge in shown.charges:
        if charge.after is None:  # a ledger of this process refuses while no other party has been charged
            who = f"party {charge.party!r}, account {charge.account!r}"
            raise BudgetError(f"{who}: {charge.refusal} Nothing was charged.")
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with progress as advance:
                model = runs.fit_model(run, functools.partial(watched.advance, also=advance))
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
        terminal.aside().print(f"stopped; {_describe_charge(job, state)}", soft_wrap=True)
        raise
    except MemoryError:
        raise InputError(f"{terminal.OUT_OF_MEMORY} {_describe_charge(job, state).capitalize()}.") from None


def _describe_charge(job: Job | EvaluationJob, state: RunState) -> str:
    """Whether a run that stops now was charged: by the ledgers that are here, of parties elsewhere by its state."""
    now = {party: account.balance().plans for party, account in state.accounts.items()}
    charged = job.federation is not None or now != {party: balance.plans for party, balance in state.before.items()}
    if charged and state.journal.begun:
        return "the same command goes on where it was, and is charged once"
    if job.federation is not None:
        return "the ledgers of its parties tell whether it was charged"
    return "what was charged stays charged" if charged else "nothing was charged"
