"""`sottovoce solvers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.app.cli.console import AsJson, out, print_json, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sottovoce.app.solver_list import Entry


def solvers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One solver, with its options.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the solvers and what they serve, or one solver with its options.

    A job names its solver in the table `[solver]`, as `name`, with its options beside it. Without one it is chosen by
    public quantities, and an option that is left out follows its rule: there is nothing to tune.

    - `sottovoce solvers`
    - `sottovoce solvers cd`
    - `sottovoce solvers cd --json`
    """
    from sottovoce.app.solver_list import entries, entry

    found = entries() if name is None else (entry(name),)
    if as_json:
        print_json({"solvers": [each.to_dict() for each in found]} if name is None else found[0].to_dict())
    elif name is None:
        show_all(found, out())
    else:
        show_one(found[0], out())


def show_all(found: tuple[Entry, ...], console: Console) -> None:
    """One line for each solver."""
    listing = table("solver", "what it does", "split", "options")
    listing.columns[0].no_wrap = True
    for each in found:
        listing.add_row(
            each.name, each.summary, ", ".join(each.splits), ", ".join(option.name for option in each.options)
        )
    console.print(listing)
    console.print("\n`sottovoce solvers NAME` has the losses, penalties and options of one.")


def show_one(found: Entry, console: Console) -> None:
    """What a solver serves, and its options with what they allow and the rule that holds where they are left out."""
    console.print(f"{found.name}: {found.summary}.", style="bold")
    if found.remarks:
        console.print(found.remarks)
    for what, text in (
        ("in Python", f"sottovoce.solvers.{found.object}(...)"),
        ("split", ", ".join(found.splits)),
        ("losses", ", ".join(found.losses)),
        ("penalties", ", ".join(found.penalties)),
        ("promises", ", ".join(found.promises)),
    ):
        console.print(f"  {what}: {text}")
    listing = table("option", "allowed", "what it does", "left out")
    listing.columns[0].no_wrap = True
    for option in found.options:
        listing.add_row(option.name, option.kind, option.meaning, option.default)
    console.print()
    console.print(listing)
    if len(found.forms) > 1:
        console.print()
        console.print(_forms(found))


def _forms(found: Entry) -> Table:
    """How it can be run, where what is run depends on the problem or on an option."""
    listing = table("form", "split", "promise", "what it is", "options it takes")
    listing.columns[0].no_wrap = True
    for form in found.forms:
        chosen = "".join(f", {option}={value!r}" for option, value in form.chosen_by.items())
        listing.add_row(
            f"{form.name}{chosen}",
            ", ".join(form.splits),
            ", ".join(form.promises),
            form.title,
            ", ".join(form.options),
        )
    return listing
