"""Texts that come from others (names, labels, refusals, features), made harmless where they are shown or written."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

_FORMULA: Final = ("=", "+", "-", "@")  # with what a spreadsheet takes a cell for a formula
_TURNS: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def harmless(text: str, *, keep: str = "\n") -> str:
    r"""The text with control characters and turns of direction written out, but for those in `keep`.

    A terminal acts on them: `\x1b` begins a sequence that can erase what is shown or write elsewhere.

    >>> harmless("north\x1b[2J")
    'north\\x1b[2J'
    """
    if text.isprintable() and text.isascii():
        return text

    def acts(letter: str) -> bool:
        return letter in _TURNS or unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")

    found = [letter for letter in set(text) - set(keep) if acts(letter)]
    return text.translate({ord(letter): letter.encode("unicode_escape").decode() for letter in found})


def markdown(text: str) -> str:
    r"""The text for Markdown: nothing in it is markup, and nothing acts.

    >>> markdown("a|b *c* <d>")
    'a\\|b \\*c\\* &lt;d&gt;'
    """
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", html.escape(harmless(text, keep=""), quote=False))


def cell(text: str) -> str:
    """The text as a cell of a CSV file: what a spreadsheet would compute gets a quote before it. Numbers stay numbers.

    >>> cell("=1+1"), cell("-1"), cell("- none")
    ("'=1+1", '-1', "'- none")
    """
    made = harmless(text, keep="")
    if not text.lstrip().startswith(_FORMULA) and text[:1] not in ("\t", "\r"):
        return made
    try:
        float(text)
    except ValueError:
        return f"'{made}"
    return made


def rests_of(details: Mapping[str, Any]) -> list[str]:
    """The mark of a charge with a promise that rests on more than noise, by its details in a ledger; else none."""
    rests = details.get("rests_on", ())
    return [f"rests on secure sums: {rests[0]}"] if rests else []


def secure_balance(plans: int, rests: Sequence[str]) -> str:
    """What an account with this many plans of secure sums assumes."""
    return (
        f"{plans} of its plans {'rests' if plans == 1 else 'rest'} on secure sums. What is spent holds against anybody "
        f"who cannot break the encryption, and if {'; if '.join(rests)}. It lasts as long as these do, and what is "
        "left of the budget repairs none of them."
    )


def readable_size(count: float) -> str:
    """A number of bytes, as people say it."""
    for unit in ("bytes", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
