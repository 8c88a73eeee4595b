"""Texts from others: names, labels, refusals and features reach terminals, pages and spreadsheets as plain text."""

from __future__ import annotations

import csv
import functools
import io
import logging

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.app.cli.console import _console, aside, complain, out, show_log, table
from sottovoce.app.cli.fitted import csv_text
from sottovoce.app.page import page
from sottovoce.app.texts import cell, harmless
from sottovoce.app.view.watched import Watch, say_event

NASTY = "north\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202eevil\u2028"
ACTS = "\x1b\x07\x9b\r\x08\u202e\u2028"


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "-", "- none"]
)
def test_a_text_that_a_spreadsheet_would_compute_is_quoted(text: str) -> None:
    made = csv_text({"prediction": [text, "no"], text: [0.5, -1.5]})
    rows = list(csv.reader(io.StringIO(made)))
    assert rows[0][1].startswith("'")
    assert rows[1][0].startswith("'")
    assert harmless(text, keep="") in rows[1][0]
    assert [row[1] for row in rows[1:]] == ["0.5", "-1.5"]


@pytest.mark.parametrize("text", ["-1", "+1", "-1.5e-3", "-inf", "yes", "a=b", "1-2", "über"])
def test_numbers_and_plain_texts_stay_as_they_are(text: str) -> None:
    assert cell(text) == text


def test_predictions_of_a_model_with_nasty_labels(tmp_path, invoke) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 2))
    y = np.where(X @ [1, -1] + 0.2 * rng.standard_normal(60) > 0, "=HYPERLINK(1)", NASTY)
    model = sv.PrivateLogisticRegression(1.0, 1e-3, entry_bound=1.0, insecure_seed=1, classes=("=HYPERLINK(1)", NASTY))
    model.fit(X, y)
    model.feature_names_in_ = np.array(["a", "b"], dtype=object)
    model.save(tmp_path / "model.json")
    (tmp_path / "new.csv").write_text("a,b,\x1b[31mred\n0.5,-0.5,0\n-0.5,0.5,0\n")
    result = invoke("predict", tmp_path / "model.json", tmp_path / "new.csv", "--proba")
    cells = [cell for row in csv.reader(io.StringIO(result.stdout)) for cell in row]
    assert not any(cell.startswith("=") for cell in cells)
    assert not set(ACTS) & set(result.stdout + result.stderr)
    assert "\\x1b[31mred" in result.stderr  # the column that is not the model's


def test_whatever_is_printed_acts_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("sottovoce")
    before = list(log.handlers)
    try:
        show_log()
        for console in (out(), aside()):
            console.print(NASTY, soft_wrap=True)
            listing = table("who", title="parties")
            listing.add_row(NASTY)
            console.print(listing, soft_wrap=True)
        complain(f"party {NASTY} refuses")
        logging.getLogger("sottovoce.readers").warning("of %s", NASTY)
    finally:
        log.handlers[:] = before
    shown = capsys.readouterr()
    assert not set(ACTS) & set(shown.out + shown.err)
    assert (shown.out + shown.err).count("north\\x1b[2J") == 6
    assert harmless("two\nlines") == "two\nlines"


def test_a_letter_that_a_terminal_cannot_show_silences_nothing() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    watch, console = Watch("party", "north"), _console(stream)
    watch.add(functools.partial(say_event, functools.partial(console.print, soft_wrap=True), "party"))
    for why in ("no column z\u00fcrich", "no budget"):
        watch.tell("refused", end="north", asked="a plan", code="refused", why=why)
    stream.flush()
    assert stream.buffer.getvalue() == b"refused: no column z\\xfcrich\nrefused: no budget\n"  # type: ignore[attr-defined]


def test_a_page_has_no_markup_and_nothing_that_acts_from_others() -> None:
    rng = np.random.default_rng(0)
    X, name = rng.uniform(-1, 1, (60, 2)), f"<script>{NASTY}"
    y = np.where(X @ [1, -1] + 0.2 * rng.standard_normal(60) > 0, 1.0, 0.0)
    model = sv.PrivateLogisticRegression(1.0, 1e-3, entry_bound=1.0, classes=(0.0, 1.0), insecure_seed=1)
    model.fit(sv.Federation.by_rows([(X[:30], y[:30]), (X[30:], y[30:])], names=[name, "south"]))
    model.feature_names_in_ = np.array([f"<b>{NASTY}", "b"], dtype=object)
    made = page(model)
    assert "<script>" not in made
    assert "<b>north" not in made
    assert "&lt;script&gt;north\\x1b[2J" in made
    assert not set(ACTS) & set(made)
