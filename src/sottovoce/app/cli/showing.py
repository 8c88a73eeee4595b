"""How a plan, several budgets side by side and a finished fit are shown at the terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from sottovoce import algorithms
from sottovoce.app.cli.console import aside, bar, out, print_json, seconds_text, show_promises, table
from sottovoce.app.jobs import Job
from sottovoce.app.page import known_labels, releases
from sottovoce.app.previews import Preview, plan_job
from sottovoce.app.runs import PartyFacts, read_facts
from sottovoce.app.texts import readable_size
from sottovoce.data.files import format_of, read_table
from sottovoce.data.parts_in_file import PreparedRows
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.declarations import common_names
from sottovoce.estimators.plots import picture
from sottovoce.estimators.progress import progress_bar
from sottovoce.files import check_writable, write_data
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import percent

CHARGE_COLUMNS: Final = ("party", "account", "total>", "left now>", "left after>", "used after")
_ALARMS: Final = 0.05  # false alarms of the test that a comparison shows


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
    size = readable_size(prepared.size)
    if prepared.where == "file":
        return f"{size} in a file in {prepared.folder}"
    if prepared.workers:
        return f"at {prepared.workers} workers of the cluster, {readable_size(prepared.size / prepared.workers)} each"
    return f"{size} {'on the device' if prepared.where == 'device' else 'in memory'}"


def show_problem(made: Plan, console: Console) -> None:
    """What is fitted to how many records, and where they are."""
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


def compare(
    job: Job, epsilons: list[float], like: Path | None, plot: Path | None, *, overwrite: bool, as_json: bool
) -> None:
    """Several epsilons side by side, with simulated accuracy."""
    axes = None if plot is None else _axes(plot)
    if plot is not None:
        check_writable(plot, "--plot", overwrite=overwrite)
    (previews, work), beside = _plan_all(job, epsilons, like), aside()
    beside.print(f"{work.fits} fits of {sum(work.sizes):,} records, {seconds_text(work.seconds())}")
    with progress_bar("simulating", beside) as advance:
        simulated = work.run(advance)
    if axes is not None and plot is not None:
        drawn = picture(simulated.plot(axes).figure, plot.suffix.lower())
        write_data(plot, drawn, "--plot", overwrite=overwrite)
    if as_json:
        plans = [shown.to_dict() for shown in previews]
        print_json({"epsilon": list(work.epsilons), "plans": plans, "simulation": simulated.to_dict()})
        return
    console = out()
    _show_comparison(previews, work.epsilons, console)
    titles, rows = simulated.cells()
    listing = table("epsilon>", "found at most>", *(f"{title}>" for title in titles[1:]), title="Simulated")
    for row, shown in itertools.zip_longest(rows, previews):
        listing.add_row(row[0], percent(1.0 if shown is None else _detection_rate(shown)), *row[1:])
    console.print()
    console.print(listing)
    console.print(f"- found at most: how often a test with {percent(_ALARMS)} false alarms finds a given person")
    for remark in simulated.remarks:
        console.print(f"- {remark}")
    opened = any(shown.files_opened for shown in previews)
    console.print(f"\nNothing was charged{'' if opened else ' and no data file was opened'}.")


def _plan_all(job: Job, epsilons: Sequence[float], like: Path | None) -> tuple[list[Preview], Any]:
    """The plans of a job at these epsilons, the smallest first, and the simulation to be run. No record is read."""
    from sottovoce.lab.made_up import LookAlike, MadeUp
    from sottovoce.lab.simulation import SimulatedFits, check_epsilons

    facts, notes = read_facts(job)
    budgets = check_epsilons(epsilons)
    jobs = [job.model_copy(update={"privacy": job.privacy.model_copy(update={"epsilon": each})}) for each in budgets]
    previews = [plan_job(each, (facts, notes)) for each in jobs]
    names = common_names({fact.party: vars(fact) for fact in facts}, job.split)
    schema, problem = job.known_schema, previews[0].plan
    if schema is not None and names:
        schema = schema.of_features(names)
    if like is None:
        source: Any = MadeUp.of(problem, schema)
    else:
        source = LookAlike.of(_read_look_alike(job, like, names, facts) if schema is None else like, schema)
    return previews, SimulatedFits(jobs[0].estimator(), problem, schema, source, budgets)


def _read_look_alike(job: Job, path: Path, names: Sequence[str], facts: Sequence[PartyFacts]) -> tuple[Any, Any]:
    """The numbers of a public file in the columns of the job, and its labels, the label as in the job's own files."""
    label = next((source.label for source in job.sources.values() if source.label is not None), -1)
    features = sum(fact.features for fact in facts) if job.split.same_people else facts[0].features
    table = read_table(path, label=label) if format_of(path).tabular else read_table(path, features=features)
    rows = table.X
    if names and set(names) <= set(table.feature_names):
        rows = rows[:, [table.feature_names.index(name) for name in names]]
    if rows.shape[1] != features:
        raise InputError(
            f"--like {path} has {rows.shape[1]} features and the job {features}; give a file with the same columns."
        )
    return rows, table.y


def _show_comparison(previews: Sequence[Preview], epsilons: Sequence[float], console: Console) -> None:
    first = previews[0]
    show_problem(first.plan, console)
    if len({shown.plan.algorithm for shown in previews}) > 1:
        each = ", ".join(f"{shown.plan.algorithm} at {at:g}" for shown, at in zip(previews, epsilons, strict=True))
        console.print(f"solver: {each}")
    for place in range(len(first.plans)):  # every preview has as many
        console.print()
        console.print(_list_noises(previews, epsilons, place))
    if first.charges:
        listing = table("epsilon>", *CHARGE_COLUMNS, title="Ledgers, in epsilon")
        for shown, at in zip(previews, epsilons, strict=True):
            for row in charge_rows(shown, console):
                listing.add_row(f"{at:g}", *row)
        console.print()
        console.print(listing)
    for shown, at in zip(previews, epsilons, strict=True):
        for charge in shown.charges:
            if charge.refusal:
                console.print(f"refused by {charge.party} at {at:g}: {charge.refusal}")
    if first.report.weakest.computational:
        for shown, at in zip(previews, epsilons, strict=True):
            weakest = shown.report.weakest
            console.print(f"at {at:g} it {weakest.mark}. {weakest.if_broken}", soft_wrap=True)
    voids = [shown.report.weakest.void for shown in previews if shown.report.weakest.void is not None]
    for note in dict.fromkeys([*voids, *(note for shown in previews for note in shown.notes)]):
        console.print(f"note: {note}")


def _list_noises(previews: Sequence[Preview], epsilons: Sequence[float], place: int) -> Table:
    """What leaves under one of the plans of a fit, with its noise at each epsilon."""
    plans = previews[0].plans
    noises: dict[tuple[str, ...], dict[float, str]] = {}
    for shown, at in zip(previews, epsilons, strict=True):
        for *release, noise in release_rows(shown.plans[place]):
            noises.setdefault(tuple(release), {})[at] = noise
    columns = (*release_columns(plans[place])[:-1], *(f"noise at {at:g}>" for at in epsilons))
    listing = table(*columns, title=release_title(plans[place], plans))
    for row, noise_at in noises.items():
        listing.add_row(*row, *(noise_at.get(at, "") for at in epsilons))
    return listing


def _detection_rate(shown: Preview) -> float:
    """How often a test finds a person at most: always, where nothing is promised to one."""
    promise = shown.report.weakest
    return 1.0 if promise.void is not None or promise.unit == "feature" else promise.detected(_ALARMS)


def _axes(path: Path) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib: install sottovoce[plots].") from None
    figure = Figure(layout="constrained")
    if path.suffix[1:].lower() not in (known := figure.canvas.get_supported_filetypes()):
        raise InputError(f"--plot {path} must end in one of .{', .'.join(sorted(known))}; .png is usual.")
    return figure.subplots()
