"""Whatever others wrote is text on every page: names of parties, features, classes, accounts and analysts, refusals."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jinja2 import UndefinedError
from markdown_it import MarkdownIt

import sottovoce as sv
from browser import PROGRAM, browser
from sottovoce.app import texts as rendering
from sottovoce.app.page import Occasion, Picture, ledger_page, make_card, page
from sottovoce.app.results import card_page, description_page, evaluation_page
from sottovoce.app.sheets import SHEETS, Facts
from sottovoce.app.texts import harmless
from sottovoce.app.view import server as view
from sottovoce.app.view.watched import Watch
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Balance, Ledger

pytestmark = pytest.mark.filterwarnings("ignore:Glyph .* missing from font")  # of the picture of an evaluation
PLAIN = "plain"
HOSTILE = "<img src=x onerror=\"alert('1')\">&amp;[a](b)|*c* _d_ `e`\x1b[2J\u202e"
MARKUP = HOSTILE.partition("\x1b")[0]
BEFORE = Balance(3.0, 0.0, 3.0, 1e-5, 1e-5, 0.0, 0)


def fitted(name: str) -> sv.PrivateLogisticRegression:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 2))
    y = np.where(X @ [1, -1] > 0, name, "other").astype(object)
    federation = sv.Federation.by_rows([(X[:30], y[:30]), (X[30:], y[30:])], names=[name, "south"])
    model = sv.PrivateLogisticRegression(
        feature_ranges=([-1, -1], [1, 1]), classes=("other", name), solver=sv.solvers.Gradient(rounds=3)
    ).fit(federation)
    model.feature_names_in_ = np.array([name, "b"], dtype=object)
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, sv.PrivateLogisticRegression]:
    return {name: fitted(name) for name in (PLAIN, HOSTILE)}


def report(model: Any, name: str, _: Path) -> str:
    rested = Balance(3.0, 1.0, 2.7, 1e-5, 1e-5, 0.2, 1, rests_on=(name,))
    about = dict.fromkeys(("dataset", "purpose", "analyst", "note"), name)
    told = Occasion(about=about, ledgers=[(name, BEFORE, rested)], receipts={name: name}, model_hash=name)
    return page(model, told, title=name)


def operators(model: Any, name: str, _: Path) -> str:
    watch, plan = Watch("coordinator", name), model.plan_
    watch.tell("expected", ends=(name,))
    watch.tell("refused", end=name, asked=name, code="refused", why=name)
    seen, _ = watch.seen()
    shown = {"plan": plan.digest.hex(), "epsilon": 1.0, "delta": 1e-5, "relation": name, "parties": [name, "south"]}
    budget = {"party": name, "total": 2.0, "left_before": 2.0, "left": 1.0, "share_before": 0.0, "share": 0.5}
    more = {"plan": shown, "signatures": {name: True}, "why": name, "budgets": [budget]}
    progress = seen["progress"] | {"of": 3, "title": name}
    return view.render_page({**seen, **more, "progress": progress}, plan)


def ledger(_: Any, name: str, folder: Path) -> str:
    text = "".join(letter for letter in name if letter.isprintable())
    made = Ledger.create(folder / f"{text.replace('/', '')}.db")
    made.open("all", 3.0, 1e-5)
    account = made.open(text, 2.0, 1e-5, under="all")
    about = dict.fromkeys(("dataset", "purpose", "analyst", "note"), name)
    account.reserve("a" * 64, [Gaussian(0.1)], summary=name, about=about, rests_on=(name,))
    return ledger_page(made)


def evaluated(model: Any, name: str) -> sv.Evaluation:
    X = pd.DataFrame(np.random.default_rng(1).uniform(-1, 1, (60, 2)), columns=[name, "b"])
    return sv.evaluate(model, X, np.where(X["b"] > 0, name, "other").astype(object), epsilon=50.0)


def told(model: Any, name: str) -> dict[str, Any]:
    found = evaluated(model, name).to_dict()
    return found | {"people": "same", "with_fit": found["privacy"], "fit_mark": name}


def without_picture(made: str) -> str:
    """What matplotlib draws differs from noise to noise."""
    start, end = made.index('<figure class="picture"'), made.index("</figure>")
    assert "<img" not in made[start:end]
    return made[:start] + made[end:]


def as_html(model: Any, name: str, _: Path) -> str:
    return without_picture(card_page(model, told(model, name), title=name))


def evaluation(model: Any, name: str, folder: Path) -> str:
    text = "".join(letter for letter in name if letter.isprintable())
    account = Ledger.create(folder / f"evaluation{len(name)}.db").open(text, 2.0, 1e-5)
    found = evaluated(model, name)
    account.reserve(found.plan_.digest.hex(), [Gaussian(0.1)], summary=name)
    made = evaluation_page(found, {name: account}, title=name)
    return without_picture(re.sub(r"Calibration: .*?</table>", "", made, flags=re.DOTALL))  # as many bins as stand out


def description(_: Any, name: str, folder: Path) -> str:
    schema = sv.Schema(
        {name: {"levels": [name, "other"]}, "b": {"levels": [name, "c"]}, f"{name}2": {"levels": [name]}}
    )
    table = {column: [name] * 50 for column in schema.columns}
    account = Ledger.create(folder / f"description{len(name)}.db").open("all", 90.0, 1e-5)
    found = sv.describe(table, epsilon=50.0, schema=schema, ledger=account)
    return description_page(found, {name: account}, title=name)


def as_markdown(model: Any, name: str, _: Path) -> str:
    made = make_card(model, told(model, name))
    pictures = {part.what: "picture.svg" for parts in made.values() for part in parts if isinstance(part, Picture)}
    return rendering.render("card.md", title=name, sections=made, pictures=pictures)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.texts = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts += data


def html(text: str) -> tuple[list[Any], str]:
    """The elements of a page with the names of their attributes, and its texts."""
    parser = _Elements()
    parser.feed(text)
    return parser.found, parser.texts


def markdown(text: str) -> tuple[list[Any], str]:
    """The same of Markdown."""
    found, texts = [], ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found.append(token.type)
        inside = [each for each in token.children or () if each.type not in ("text", "text_special")]
        found += [each.type for each in inside]
        texts += "".join(each.content for each in token.children or () if each not in inside)
    return found, texts


KINDS: dict[Callable[[Any, str, Path], str], Callable[[str], tuple[list[Any], str]]] = {
    report: html,
    operators: html,
    ledger: html,
    as_html: html,
    evaluation: html,
    description: html,
    as_markdown: markdown,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_name_changes_no_element_and_is_shown_as_it_is(kind: Any, models: Any, tmp_path: Path) -> None:
    plain, _ = KINDS[kind](kind(models[PLAIN], PLAIN, tmp_path))
    made = kind(models[HOSTILE], HOSTILE, tmp_path)
    found, texts = KINDS[kind](made)
    assert len(plain) > 30
    assert found == plain
    assert texts.count(MARKUP) > 4
    assert harmless(HOSTILE) in texts
    assert not {"\x1b", "\u202e"} & set(made)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A planted fault: templates that escape nothing."""
    rendering._environment.cache_clear()
    monkeypatch.setattr(rendering, "_ESCAPES", {".html": str, ".md": str, ".toml": str})
    yield
    rendering._environment.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_template_that_escapes_nothing_is_found_out(kind: Any, models: Any, tmp_path: Path, careless: None) -> None:
    plain, _ = KINDS[kind](kind(models[PLAIN], PLAIN, tmp_path))
    made = kind(models[HOSTILE], HOSTILE, tmp_path)
    assert KINDS[kind](made)[0] != plain
    assert "\x1b" in made


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'sections' is undefined"):
        rendering.render("card.md", title="a card")


@pytest.mark.parametrize("name", ["north", "a.b", "q\"uo'te\\", "line\nbreak\x7f", "# no comment", HOSTILE])
def test_a_name_in_toml_is_read_back_as_it_was(name: str) -> None:
    pins = {"pins": {name: name}, "name": "own"}
    made = rendering.render("provisioning/peers.toml", federation=type("All", (), {"ends": ("own", name)}), **pins)
    assert tomllib.loads(made) == {"peers": {name: name}}


def test_a_wheel_has_every_template() -> None:
    """What git ignores is left out of one, whatever is said of packages; a folder `site` would be."""
    root = Path(rendering.__file__).parents[3]
    if not (root / ".git").exists():
        pytest.skip("no repository")
    folder = Path(rendering.__file__).with_name("templates")
    names = [str(path.relative_to(root)) for path in folder.rglob("*.*")]
    planted = "src/sottovoce/app/templates/site/job.toml"
    told = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=root,
        input="\n".join([*names, planted]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.splitlines() == [planted]


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")
def test_pages_fit_on_a_phone_and_on_paper(tmp_path: Path) -> None:
    """With all that is wide: standard errors with odds ratios, levels, charges with plans. A <pre> is the control."""
    rng = np.random.default_rng(0)
    work = ["Self-employed-not-incorporated", "Federal-government", "Private"]
    table = {
        "age": rng.uniform(18, 98, 4_000),
        "work": rng.choice(work, 4_000),
        "long_name_of_a_column": rng.random(4_000),
    }
    table["ill"] = np.where((table["age"] - 58) / 20 + rng.logistic(size=4_000) > 0, "yes", "no")
    declared = {"age": {"range": (18, 98)}, "work": {"levels": work}, "long_name_of_a_column": {"range": (0, 1)}}
    schema = sv.Schema({**declared, "ill": {"levels": ["no", "yes"]}}, label="ill")
    ledger = Ledger.create(tmp_path / "people.ledger")
    account = ledger.open("people", 9.0, 1e-5)
    found = sv.describe(table, epsilon=0.5, delta=1e-6, schema=schema, by="ill", ledger=account)
    model = sv.PrivateLogisticRegression(3.0, 1e-6, schema=schema, standard_errors=True, ledger=account).fit(table)
    result = sv.evaluate(model, table, epsilon=1.0, delta=1e-6, by="work", people="same", ledger=account)
    pages = {
        "report": page(model, Occasion(ledgers=[("people", BEFORE, account.balance())])),
        "card": card_page(model, result.to_dict()),
        "ledger": ledger_page(ledger),
        "evaluation": evaluation_page(result, {"data": account}),
        "description": description_page(found, {"data": account}),
        "several parties": page(fitted("a hospital with a long name")),
        "sheet": SHEETS["protection"][1](Facts(model, evaluation=result.to_dict(), account=account)),
    }
    assert all("<pre>" not in text for text in pages.values())
    pages["control"] = pages["report"].replace("</h1>", f"</h1><pre>{model.coefficients()}</pre>")
    with browser() as tab:
        for name, text in pages.items():
            (tmp_path / f"{name}.html").write_text(text)
            for media, width in (("screen", 390), ("print", 718)):  # A4 between its margins
                tab.open(f"file://{tmp_path}/{name}.html", width=width)
                tab.call("Emulation.setEmulatedMedia", media=media)
                wide = tab.value("document.documentElement.scrollWidth") > width
                assert wide == (name == "control"), (name, media)
                tab.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.filterwarnings("ignore:about .* of the scores")
def test_all_pages_say_the_numbers_of_one_fit_alike(tmp_path: Path) -> None:
    """The epsilon that calibration finds for three plans has many digits, and deltas may have."""
    a = np.linspace(0, 1, 1_500)
    table = {"a": a, "ill": (a + np.arange(1_500) % 2 > 1).astype(int)}
    schema = sv.Schema({"a": {"range": (0, 1)}, "ill": {"levels": [0, 1]}}, label="ill")
    ledger = Ledger.create(tmp_path / "people.ledger")
    account = ledger.open("people", 2.345678, 1e-5)
    budget: dict[str, Any] = {"epsilon": 0.765432, "delta": 1.23456e-6}
    found = sv.describe(table, **budget, schema=schema, ledger=account)
    model = sv.PrivateLogisticRegression(**budget, schema=schema, ledger=account).fit(table)
    result = sv.evaluate(model, table, **budget, people="same", ledger=account)
    report = page(model, Occasion(ledgers=[("data", account.balance(), account.balance())]))
    firsts = {"<b>0.7654</b><span>epsilon, against everybody</span>", "<b>1.235e-06</b><span>delta</span>"}
    texts = {
        "report": report,
        "card": card_page(model, result.to_dict()),
        "evaluation": evaluation_page(result, {"data": account}),
        "description": description_page(found, {"data": account}),
    }
    for name, text in texts.items():
        counted = "test records" if name == "evaluation" else "records"
        assert not {each for each in (*firsts, f"<b>1,500</b><span>{counted}</span>") if each not in text}, name
        assert not re.search(r"epsilon = 0\.76(?!54 |54,|54\))|delta = 1\.2(?!35e-06)|>1500<", text), name
    accuracy = f"{result['accuracy'].value:.4g}"
    assert all(accuracy in text for text in (texts["card"], texts["evaluation"], str(result)))
    for text in (str(model.privacy_), str(result), found.heading):
        assert "0.7654" in text
        assert "1.235e-06" in text
    balance = account.balance()
    for text in (report, texts["evaluation"], ledger_page(ledger)):
        assert f"{balance.left:.4g}" in text
        assert "2.346" in text


@pytest.mark.filterwarnings("ignore:about .* of the scores")
def test_a_page_of_any_result_is_written_by_one_function(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 3_000)
    table = {"a": a, "ill": (a + np.arange(3_000) % 2 > 1).astype(int)}
    schema = sv.Schema({"a": {"range": (0, 1)}, "ill": {"levels": [0, 1]}}, label="ill")
    ledger = Ledger.create(tmp_path / "people.ledger")
    account, other = ledger.open("people", 9.0, 1e-5), ledger.open("others", 9.0, 1e-5)
    model = sv.PrivateLogisticRegression(1.0, 1e-6, schema=schema, ledger=account).fit(table)
    result = sv.evaluate(model, table, epsilon=1.0, delta=1e-6, ledger=other)
    for number, (each, options, said) in enumerate(
        (
            (model, {}, "<h1>Privacy report</h1>"),
            (model, {"card": True}, "<h1>Model card</h1>"),
            (model, {"card": result}, "Brier score"),
            (result, {"ledger": other}, "account others of people.ledger"),
            (result, {}, "No ledger is known here."),
            (ledger, {}, "<h1>Ledger people.ledger</h1>"),
        )
    ):
        sv.write_page(each, tmp_path / f"{number}.html", **options)
        assert said in (tmp_path / f"{number}.html").read_text()
    with pytest.raises(sv.InputError, match="was not charged for plan"):
        sv.write_page(result, tmp_path / "new.html", ledger=account)
    with pytest.raises(sv.InputError, match="result=dict must be"):
        sv.write_page({}, tmp_path / "new.html")
    again = sv.PrivateLogisticRegression(1.0, 1e-6, schema=schema, ledger=account).fit(table)
    with pytest.raises(sv.InputError, match="of another model"):
        sv.write_page(again, tmp_path / "new.html", card=result)
