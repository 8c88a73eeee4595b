"""Texts that come from others (names, labels, refusals, features), made harmless where they are shown or written.

So in pages and files from the folder `templates`: whatever is put into a template is escaped as its format needs it. In
HTML and Markdown a value is no markup and acts on nothing; in TOML it is a value of TOML. Only what is marked safe
stands as it is (`Markup`, `| safe`): styles, scripts and pictures of this program, and names that were checked.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import markupsafe
from markupsafe import Markup

from sottovoce import __version__
from sottovoce.files import toml_key, toml_value
from sottovoce.numerals import number_text

if TYPE_CHECKING:
    from jinja2 import Environment

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
    acts = {ord(c) for c in text if c in _TURNS or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    return text.translate({code: chr(code).encode("unicode_escape").decode() for code in acts - set(map(ord, keep))})


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


_FOLDER: Final = Path(__file__).parent / "templates"
_ESCAPES: Final[Mapping[str, Callable[[Any], str]]] = {
    ".html": lambda value: markupsafe.escape(harmless(str(value))),
    ".md": lambda value: markdown(str(value)),
    ".toml": toml_value,
}


def render(name: str, /, **values: Any) -> str:
    """The text of a template; it knows what wrote it and when, and a value that it does not get is an error."""
    written = {"version": __version__, "now": f"{datetime.now(UTC):%Y-%m-%d %H:%M}"}
    return _environment(Path(name).suffix).get_template(name).render(written | values)


@functools.cache
def read(name: str) -> Markup:
    """A style or a script, as it stands in the folder."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))  # noqa: S704  # a file of this program


@functools.cache
def _environment(suffix: str) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    escape = _ESCAPES[suffix]
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),  # noqa: S704  # it escapes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.filters.update(number=format, key=lambda name: Markup(toml_key(name)))  # noqa: S704  # it escapes
    made.filters.update(digits=number_text)
    made.globals["style"] = read("style.css")
    return made
