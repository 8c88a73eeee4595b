"""How results look where they are the value of a notebook's cell: small tables of HTML, without a style or a script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", below: str = "") -> str:
    """A table, the first column of names on the left; whatever a text holds is no markup."""
    made = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    top = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = f"<thead><tr>{_cells('th', heads)}</tr></thead>" if any(heads) else ""
    return f"<table>{top}{head}<tbody>{made}</tbody></table>" + (f"<p>{html.escape(below)}</p>" if below else "")


def _cells(kind: str, texts: Sequence[str]) -> str:
    first, *rest = (html.escape(text) for text in texts)
    return f'<{kind} style="text-align:left">{first}</{kind}>' + "".join(f"<{kind}>{text}</{kind}>" for text in rest)
