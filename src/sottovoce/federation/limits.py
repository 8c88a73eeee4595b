"""How large a plan may be: compared with a party's own rows before anything is allocated in proportion to it.

A plan is a short text that can name large numbers. What it says of this party has to be what the party has; what it
says of others, and of itself, is below limits that are stated here. So a plan that is looked at, and refused, takes
less than 1 GiB beyond what the party has in memory, and one that is accepted what its rows and answers take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sottovoce.errors import RefusedError
from sottovoce.gate.frames import MAX_BYTES
from sottovoce.gate.query import Query, Scheduled
from sottovoce.plan.plan import Plan

MOST_PARTIES: Final = 1024
MOST_COLUMNS: Final = 2**22  # by columns, of all parties together
MOST_RELEASES: Final = 64
MOST_DRAWN: Final = 2**22  # rounds, where a public coin draws for each of them who answers
MOST_TEXT: Final = 2**24  # characters of a message, and so many for each column of the party:
TEXT_OF_A_COLUMN: Final = 256
MOST_REASON: Final = 2000  # characters of a refusal


def check_text(text: str, columns: int) -> None:
    """Refuse to read a text that is longer than any about so many columns."""
    most = MOST_TEXT + TEXT_OF_A_COLUMN * columns
    if len(text) > most:
        raise RefusedError(f"the message has a text of {len(text)} characters; a party reads at most {most}.")


def check_size(plan: Plan, party: str, shape: tuple[int, int]) -> None:
    """Refuse a plan that is about other rows than the party's, records x columns, or too large."""
    records, columns = shape
    for what, size, most in (
        ("parties", len(plan.parties), MOST_PARTIES),
        ("releases", len(plan.releases), MOST_RELEASES),
        ("columns", plan.features, MOST_COLUMNS if plan.split.same_people else max(columns, MOST_COLUMNS)),
    ):
        if size > most:
            raise RefusedError(f"the plan has {size} {what}; {party} serves at most {most}.")
    if dict(plan.parties).get(party) != records or plan.split.width(plan, party) != columns:
        raise RefusedError(f"the plan does not have {party} with its declared records and features.")


def check_answers(plan: Plan, queries: Mapping[str, Query]) -> None:
    """Refuse answers that fit in no message, and more turns than a party will draw."""
    for release in plan.releases:
        query = queries[release.query]
        if release.mechanism != "kept" and 8 * release.batches * query.length > MAX_BYTES:
            raise RefusedError(
                f"an answer to {query.name!r} has {release.batches * query.length} numbers; a message has at most "
                f"{MAX_BYTES // 8}."
            )
        if isinstance(query.answered_by, Scheduled) and plan.rounds > MOST_DRAWN:
            raise RefusedError(f"the plan draws who answers for {plan.rounds} rounds; at most {MOST_DRAWN} are drawn.")
