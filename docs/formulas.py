"""Formulas as the proofs write them, `μ² = T (Δ_g / std_g)²`, as MathML, which browsers set without scripts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import NamedTuple


def _marked(how: str) -> str:
    """The letters and digits that are raised or lowered as they stand, as in 2⁻²ᵇ and xᵢ."""
    return "".join(c for c in map(chr, range(0x2100)) if unicodedata.decomposition(c).startswith(how))


_TOKEN = re.compile(
    rf"""(?P<raised>[{_marked("<super>")}'\u2032]+)
    |(?P<lowered>[{_marked("<sub>")}]+)
    |(?P<space>[ ]+)
    |(?P<number>\d+(?:\.\d+)?(?:e-\d+)?)
    |(?P<code>`[^`]*`)
    |(?P<words>(?<=[_^])[A-Za-z]{{2,}}|[A-Za-z]{{2,}}(?:(?:[ ]a)?[ -][A-Za-z]{{2,}})*)
    |(?P<letter>[^\W\d_][\u0300-\u036f]?)
    |(?P<bracket>[]()[{{}}⟨⟩,√]|\|+)
    |(?P<sign><=|.)""",
    re.VERBOSE,
)
_TAGS = {"number": "mn", "words": "mtext", "letter": "mi"}
_CLOSING = {"(": ")]", "[": ")]", "{": "}", "⟨": "⟩"}  # an interval may be half open
_WRITTEN = {"'": "\u2032", "<=": "≤", "-": "\u2212", "Σ": "∑", "||": "‖"}


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def formula(block: str) -> str:
    """Lines that stand alone; what starts at the same place in two of them is aligned."""
    lines = [list(_Line(line).cells()) for line in block.split("\n")]
    places = [place for cells in lines for place, _ in cells]
    stops = [0, *sorted({place for place in places if place and places.count(place) > 1}), 10_000]
    rows = ""
    for cells in lines:
        columns = ([made for place, made in cells if low <= place < high] for low, high in pairwise(stops))
        rows += f"<mtr>{''.join(f'<mtd>{_space(6).join(column)}</mtd>' for column in columns)}</mtr>"
    return f'<div class="formula"><math><mtable displaystyle="true">{rows}</mtable></math></div>\n'


class _Line:
    """Reads a line from left to right."""

    def __init__(self, text: str) -> None:
        self.left = [_Token(str(found.lastgroup), found[0], found.start()) for found in _TOKEN.finditer(text)]
        self.left.append(_Token("end", "", len(text)))

    def cells(self) -> Iterator[tuple[int, str]]:
        """What stands between gaps of two spaces or more, and where it starts."""
        while self.left[0].kind != "end":
            place, made = self.left[0].place, ""
            while self.left[0].kind != "end" and not self.left[0].text.startswith("  "):
                made += self.term()
            if made:
                yield place, made
            if self.left[0].kind == "space":
                self.left.pop(0)

    def term(self) -> str:
        """A thing with its indices and powers."""
        base, lowered, raised = self.thing(), "", ""
        while self.left[0].kind in ("raised", "lowered") or self.left[0].text in ("_", "^"):
            kind, text, _ = self.left.pop(0)
            script = self.script() if kind == "sign" else _letters(unicodedata.normalize("NFKC", text))
            if kind == "lowered" or text == "_":
                lowered += script
            else:
                raised += script
        if base == _sign("Σ") and lowered:
            base, lowered = f"<munder>{base}<mrow>{lowered}</mrow></munder>", ""
        if lowered and raised:
            return f"<msubsup>{base}<mrow>{lowered}</mrow><mrow>{raised}</mrow></msubsup>"
        if lowered or raised:
            tag = "msub" if lowered else "msup"
            return f"<{tag}>{base}<mrow>{lowered or raised}</mrow></{tag}>"
        return base

    def script(self) -> str:
        """What follows _ or ^: something in braces or brackets, or a name with its sign and commas."""
        if self.left[0].text == "{":
            self.left.pop(0)
            return self.until("}")[0]
        if self.left[0].text in _CLOSING:
            return self.thing()
        made = _plain(*self.left.pop(0)[:2]) if self.left[0].kind == "sign" else ""
        while self.left[0].kind in _TAGS:
            kind, text, _ = self.left.pop(0)
            made += _letters(text) if len(text) < 3 else _plain(kind, text)
            if self.left[0].text == "," and self.left[1].kind in _TAGS:
                made += _sign(self.left.pop(0).text)
        return made

    def thing(self) -> str:
        """A letter, a number, words, a sign; a root, or what is in brackets."""
        kind, text, _ = self.left.pop(0)
        if text == "√" and self.left[0].text == "(":
            self.left.pop(0)
            return f"<msqrt>{self.until(')')[0]}</msqrt>"
        if text == "√":
            return f"<msqrt>{self.thing()}</msqrt>"
        if text in _CLOSING:
            inside, closing = self.until(_CLOSING[text])
            return f"<mrow>{_sign(text)}{inside}{_sign(closing)}</mrow>"
        if text == " " and self.left[0].kind == "sign":
            return ""  # signs bring their own space
        if kind == "sign" and self.left[0].text == " ":
            self.left.pop(0)
        return _plain(kind, text)

    def until(self, closing: str) -> tuple[str, str]:
        """What is in brackets, and the one that closes."""
        made = ""
        while self.left[0].text not in tuple(closing):
            if self.left[0].kind == "end":
                raise ValueError(f"a formula lacks its {closing!r}")
            made += self.term()
        return made, self.left.pop(0).text


def _plain(kind: str, text: str) -> str:
    if kind == "space":
        return _space(len(text))
    if kind == "code":
        return f"<mtext><code>{escape(text.strip('`'))}</code></mtext>"
    if kind not in _TAGS or text in _WRITTEN:
        return _sign(text)
    return f"<{_TAGS[kind]}>{text}</{_TAGS[kind]}>"


def _letters(text: str) -> str:
    """Each for itself, as in x_ij."""
    return "".join(_plain("letter" if c.isalpha() else "number" if c.isdigit() else "sign", c) for c in text)


def _sign(text: str) -> str:
    spacing = ' lspace="0" rspace="0"' if text in ("|", "||", ",") else ""
    return f'<mo stretchy="false"{spacing}>{escape(_WRITTEN.get(text, text))}</mo>'


def _space(width: int) -> str:
    return f'<mspace width="{width / 4}em"></mspace>'
