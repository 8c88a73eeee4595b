"""`sottovoce align`."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli.console import AsJson, aside, out, print_json

if TYPE_CHECKING:
    from sottovoce.federation.coordinator import Coordinator


def align(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A TOML file with [federation].", show_default=False)],
    matched_by: Annotated[
        str, typer.Option(help="Who compares the blinded lists: the coordinator, or a party by its name.")
    ] = "coordinator",
    count: Annotated[
        bool, typer.Option("--count", help="By rows: count the people that each two parties share; nothing is aligned.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the people that all parties have, and give every party their order, by private set intersection.

    Each party names its column of identifiers (`id` in its party file) and the parties that it aligns with
    (policy.align, or policy.count_shared), and has pinned their keys ([peers]). No identifier leaves a party, and its
    file is not rewritten: it keeps the places of the common records beside it, and serves these from then on.

    Parties learn the length of every list and the common people, nothing about anybody else. The coordinator learns
    lengths and how many are common; of three and more parties also how many any of them share. With
    `--matched-by lab` it does not: then `lab` learns that, and which of its own people each other party has.

    - `sottovoce align job.toml`
    - `sottovoce align job.toml --matched-by lab`
    - `sottovoce align job.toml --count`
    """
    from sottovoce.app.jobs import load_alignment_job
    from sottovoce.app.runs import open_wire
    from sottovoce.door.intersection import COORDINATOR
    from sottovoce.errors import InputError
    from sottovoce.federation.coordinator import Coordinator

    loaded = load_alignment_job(job)
    if matched_by not in (COORDINATOR, *loaded.federation.parties):
        raise InputError(
            f"--matched-by {matched_by}: it must be {COORDINATOR}, or one of {', '.join(loaded.federation.parties)}."
        )
    if count and matched_by != COORDINATOR:
        raise InputError(f"--matched-by {matched_by}: people are counted by the coordinator; leave it out.")
    wire = open_wire(loaded.federation, loaded.resolve, lambda text: aside().print(text, soft_wrap=True))
    try:
        coordinator = Coordinator(wire)
        start = time.monotonic()
        try:
            told = _counted(coordinator, wire.parties) if count else _aligned(coordinator, wire.parties, matched_by)
        finally:
            coordinator.dismiss()
        said = wire.communication
        told |= {
            "seconds": time.monotonic() - start,
            "uplink_bytes": said.uplink_bytes,
            "downlink_bytes": said.downlink_bytes,
        }
    finally:
        wire.close()
    if as_json:
        print_json(told)
    else:
        _show(told)


def _aligned(coordinator: Coordinator, parties: tuple[str, ...], matcher: str) -> dict[str, Any]:
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.federation.alignment.coordinator import new_terms

    with progress_bar("aligning", aside()) as advance:
        found = coordinator.align(new_terms(parties, matcher), advance)
    return {"parties": dict(found.sizes), "common": found.common, "matched_by": matcher}


def _counted(coordinator: Coordinator, parties: tuple[str, ...]) -> dict[str, Any]:
    """For each pair that agrees the number of people; for the others why not."""
    from sottovoce.door.intersection import COUNT
    from sottovoce.errors import RefusedError
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.federation.alignment.coordinator import new_terms

    sizes, pairs = dict[str, int](), list[dict[str, Any]]()
    for one, other in itertools.combinations(parties, 2):
        try:
            with progress_bar(f"{one} and {other}", aside()) as advance:
                found = coordinator.align(new_terms((one, other), purpose=COUNT), advance)
        except RefusedError as error:
            pairs.append({"pair": [one, other], "refused": str(error)})
            continue
        sizes |= found.sizes
        pairs.append({"pair": [one, other], "shared": found.common})
    return {"parties": sizes, "shared": pairs}


def _show(told: dict[str, Any]) -> None:
    from sottovoce.app.texts import readable_size

    console = out()
    sizes = ", ".join(f"{name} {size:,}" for name, size in told["parties"].items())
    console.print(f"identifiers: {sizes}", soft_wrap=True)
    for pair in told.get("shared", ()):
        names = " and ".join(pair["pair"])
        what = f"share {pair['shared']:,} people" if "shared" in pair else f"were not counted: {pair['refused']}"
        console.print(f"{names} {what}", soft_wrap=True)
    if any(pair.get("shared") for pair in told.get("shared", ())):
        console.print(
            "a person whom two parties have pays at both: their epsilons add up. What is said of one person in one "
            "party does not hold for these.",
            soft_wrap=True,
        )
    if "common" in told:
        console.print(f"common to all: {told['common']:,}; every party has them in the same order, and checked that")
        console.print(_revealed(told["matched_by"], list(told["parties"])), soft_wrap=True)
    console.print(
        f"{told['seconds']:.1f} s; {readable_size(told['uplink_bytes'])} from the parties, "
        f"{readable_size(told['downlink_bytes'])} to them",
        soft_wrap=True,
    )


def _revealed(matcher: str, parties: list[str]) -> str:
    """Who has learned what."""
    from sottovoce.door.intersection import COORDINATOR

    each = "each party learned the lengths of all lists and which of its own people are common to all"
    if matcher == COORDINATOR:
        more = " and how many people any of the parties share" if len(parties) > 2 else ""
        return f"{each}; this coordinator learned the lengths and the number{more}, and nobody's identifier"
    more = f"; {matcher} also which of its own people each other party has" if len(parties) > 2 else ""
    return f"{each}{more}; this coordinator learned the lengths and the number of common people"
