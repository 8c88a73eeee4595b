"""Sheets about a fitted model that others sign, check or publish, filled from what is public about it.

For data protection, to be signed; the answers to the points of NIST SP 800-226; an entry for the registry of
deployments of differential privacy (opendp/deployments-registry-data), in its form. All of them are made of the same
facts: what a plan, a model file, a ledger and an evaluation say. What nobody has said is told as not said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from sottovoce import __version__
from sottovoce.app.page import SIGN, declared_columns, public_facts, raise_belief, releases
from sottovoce.app.texts import render
from sottovoce.estimators import PrivateLinearModel, plots
from sottovoce.numerals import count_text, interval_text, number_text, promise_text
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import CHANGES
from sottovoce.privacy.guarantee import VIEWS, Guarantee, gaussian_missed, percent
from sottovoce.privacy.ledger import Account

NOT_SAID: Final = "not said"
COMPARED: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # epsilons beside which the one of a model stands


class Answer(NamedTuple):
    """A question and its answer; one that nobody gave is marked."""

    question: str
    text: str
    said: bool = True


def said(question: str, text: str | None) -> Answer:
    """An answer that somebody may not have given."""
    return Answer(question, text or NOT_SAID, bool(text))


class DeclaredColumn(NamedTuple):
    """A column: what it holds, where that was taken from, and whether it needs care."""

    name: str
    holds: str
    source: str
    sensitive: bool


@dataclass(frozen=True)
class Facts:
    """What is public about a model, in words: each fact once, whatever sheet it stands in."""

    model: PrivateLinearModel
    evaluation: Mapping[str, Any] | None = None
    account: Account | None = None
    model_hash: str = ""

    @cached_property
    def about(self) -> Mapping[str, str]:
        return self.model.plan_.about.texts()

    @cached_property
    def weakest(self) -> Guarantee:
        guarantee: Guarantee = self.model.privacy_.weakest
        return guarantee

    @cached_property
    def columns(self) -> list[DeclaredColumn]:
        notes = {} if self.model.schema_ is None else self.model.schema_.notes
        declared = [(name, holds) for _, name, holds in declared_columns(self.model)]
        if self.model.schema_ is not None and self.model.schema_.label is not None:
            declared.append((self.model.schema_.label, "the label"))
        of = {name: notes.get(name, {}) for name, _ in declared}
        return [
            DeclaredColumn(name, holds, of[name].get("source", ""), of[name].get("sensitive", False))
            for name, holds in declared
        ]

    @property
    def promise(self) -> str:
        weakest = self.weakest
        if not weakest.promises:
            return "no promise"
        rests = f"; it {weakest.mark}" if weakest.mark else ""
        return f"{promise_text(weakest.epsilon, weakest.delta)}, against everybody{rests}"

    @property
    def rests(self) -> str:
        """All that the promise rests on, and what holds where sums are not as secure as assumed."""
        weakest = self.weakest
        secure = (f"nobody breaks the encryption, {'; '.join(weakest.assumes)}",) if weakest.assumes else ()
        return f"{'; '.join((*self.model.privacy_.assumptions, *secure))}. {weakest.if_broken}".strip()

    @property
    def unit(self) -> str:
        if self.weakest.unit == "feature":
            return "one column of one party; no person is protected"
        unit = self.weakest.unit
        return f"one {unit}: nobody can tell the data from those in which that {unit} {CHANGES[self.weakest.relation]}"

    @property
    def place(self) -> str:
        plan = self.model.plan_
        return str(plan.split.place.format(len(plan.parties)))

    @property
    def trust(self) -> str:
        """Who has to be trusted with what."""
        if not self.model.plan_.split.several:
            return "Whoever holds the records sees them in the clear; nobody else sees anything but the results."
        views = self.model.privacy_.views(several=True)
        numbers = (promise_text(view.epsilon, view.delta) if view.promises else "no promise" for view in views)
        each = (
            f"Against {view.view or VIEWS[view.adversary]}: {said}." for view, said in zip(views, numbers, strict=True)
        )
        return " ".join(("Each party sees its own records alone.", *each))

    @property
    def mechanisms(self) -> str:
        plan = self.model.plan_
        each = {
            f"{title} ({count} by the {release.mechanism} mechanism)" for title, release, count, _ in releases(plan)
        }
        return "; ".join(sorted(each))

    @property
    def quality(self) -> str | None:
        told = self.evaluation
        if told is None:
            return None
        return f"on {count_text(told['records'])} test records, with 95% intervals: {_metrics_text(told)}"

    @property
    def groups(self) -> str | None:
        """The quality in each group."""
        told = self.evaluation or {}
        return "; ".join(f"{told['by']} {group['name']}: {_metrics_text(group)}" for group in told.get("groups", ()))

    @property
    def spent(self) -> str | None:
        """What all releases on the same people add up to, where their ledger is at hand."""
        if self.account is None:
            return None
        has = self.account.balance()
        total, plans = promise_text(has.total, has.delta), f"{has.plans} {'plan' if has.plans == 1 else 'plans'}"
        return f"epsilon = {number_text(has.spent)} of {total}, {plans}, in the account {self.account.dataset}"

    def compared(self) -> list[tuple[str, str, str]]:
        """Epsilons, with what an attacker could find at most and how far a belief of 10% can grow, in order."""
        weakest = self.weakest
        if not weakest.promises:
            return []
        own = (
            f"{number_text(weakest.epsilon)} (this one)",
            percent(weakest.detected(0.05)),
            percent(raise_belief(weakest, 0.1)),
        )
        rows = [(weakest.epsilon, own)]
        for epsilon in COMPARED:
            if math.isclose(epsilon, weakest.epsilon, rel_tol=0.05):
                continue
            mu = mu_for(epsilon, weakest.delta)
            found = 1 - float(gaussian_missed(mu, 0.05))
            rare = 1 - float(gaussian_missed(mu, SIGN))
            rows.append((epsilon, (f"{epsilon:g}", percent(found), percent(0.1 * rare / (0.1 * rare + 0.9 * SIGN)))))
        return [row for _, row in sorted(rows)]


def _metrics_text(told: Mapping[str, Any]) -> str:
    """The metrics that could be told."""
    known = ((name, found) for name, found in told["metrics"].items() if None not in found.values())
    return ", ".join(f"{plots.title_of(name)} {interval_text(**found)}" for name, found in known) or "cannot be told"


def protection_answers(facts: Facts) -> dict[str, list[Answer]]:
    """What a data protection officer asks, by sections."""
    about, model, plan = facts.about, facts.model, facts.model.plan_
    return {
        "Who and what for": [
            said("Controller and processors", about.get("controller")),
            said("Government, industry or non-profit", about.get("sector")),
            said("Contact for people in the data", about.get("contact")),
            said("Purpose", about.get("purpose")),
            said("Legal basis", about.get("basis")),
            said("Recipients, other countries", about.get("recipients")),
            said("Kept for", about.get("retention")),
            said("Run by", about.get("analyst")),
        ],
        "Whose data": [
            said("Data set", about.get("dataset")),
            Answer("Protected", facts.unit),
            *(Answer(name, text) for name, text in public_facts(plan, model) if name in ("Records", "Labels")),
            Answer("Where the data are", facts.place[:1].upper() + facts.place[1:]),
            said("Region", about.get("region")),
            said("Columns that need care", ", ".join(each.name for each in facts.columns if each.sensitive)),
        ],
        "What is promised": [
            Answer("Promise of this model", facts.promise),
            said("All on the same people so far", facts.spent),
            said("Why this epsilon", about.get("reason")),
        ],
        "How good the model is": [said("Quality", facts.quality), said("By group", facts.groups)],
        "If somebody withdraws": [
            said("What is done", about.get("withdrawal")),
            Answer(
                "What the model still shows",
                "A trained model stays as it is: what it shows of somebody who withdrew is limited by its promise. "
                + model.privacy_.withdrawal(),
            ),
        ],
        "Security": [
            Answer("Software", f"sottovoce {__version__}, solver {plan.algorithm}"),
            Answer("Plan, as in ledgers", model.charged_as_),
            said("Model file, SHA-256", facts.model_hash),
            Answer("Not covered", "who had the records in the clear, backups, and how long a computation took"),
        ],
    }


def nist_answers(facts: Facts) -> dict[str, list[Answer]]:
    """What NIST SP 800-226 asks of a system, point by point."""
    plan, weakest = facts.model.plan_, facts.weakest
    answers = [
        Answer("Privacy parameters", facts.promise),
        said("Total over all releases on these people", facts.spent),
        Answer("Unit of privacy", facts.unit),
        Answer(
            "Bounded or unbounded neighbours",
            f"{weakest.relation}: data sets that differ in one {weakest.unit} that {CHANGES[weakest.relation]}; how "
            f"many there are ({count_text(plan.records)}) is public",
        ),
        Answer("Mechanisms", facts.mechanisms),
        Answer(
            "Composition",
            "exact for Gaussian releases; charged in a ledger before anything is released. The whole trade-off is "
            "stated, of which epsilon and delta are one point.",
        ),
        said("Utility, with its uncertainty", facts.quality),
        said("Bias: errors by group", facts.groups),
        Answer("Trust model", facts.trust),
        Answer("What it rests on", facts.rests),
        Answer("Floating point", "noise is drawn on an integer grid, and sums over records are exact on public grids"),
        Answer("Timing and other side channels", "not covered: how long an answer takes may follow from the records"),
        Answer("Randomness", weakest.void or "of the operating system, without a seed"),
        Answer("Preprocessing and tuning", _preparation(facts)),
        Answer(
            "Access control, storage", "not covered: who may read the records where they lie is the holder's affair"
        ),
        said("Data collection, retention", facts.about.get("retention")),
        Answer("Local model, synthetic data", "not offered"),
        Answer("Evidence", f"sottovoce audit --solver {plan.algorithm} attacks the solver; proofs are beside the code"),
    ]
    return {"Point by point": answers}


def _preparation(facts: Facts) -> str:
    bought = ", ".join(getattr(facts.model, "ranges_", ()))
    more = f" The ranges of {bought} were bought with a part of the budget." if bought else ""
    return (
        "bounds, classes and levels are declared, and not taken from the records; penalties and ranges that a fit "
        f"chooses are paid from its budget.{more}"
    )


def _page(title: str, answers: Callable[[Facts], dict[str, list[Answer]]], facts: Facts, *, signed: bool) -> str:
    """Questions and answers as a page that prints on two sides, with lines to sign where it is `signed`."""
    return render(
        "sheet.html",
        title=title,
        facts=facts,
        sections=answers(facts),
        sign=("Name and office", "Place and date", "To be looked at again on", "Signature") if signed else (),
    )


def registry_entry(facts: Facts) -> dict[str, Any]:
    """An entry of the registry of deployments, all three tiers, by its template; a draft until people complete it."""
    about, plan, weakest = facts.about, facts.model.plan_, facts.weakest
    several = plan.split.several
    numbers = {"epsilon": weakest.epsilon, "delta": weakest.delta} if weakest.promises else {}
    slug = "".join(c if c.isalnum() else "-" for c in about.get("dataset", "model").lower()).strip("-") or "model"
    missing = "Not available"
    return {
        "url_slug": slug,
        "deployment": {
            "basic": {
                "name": about.get("dataset", missing),
                "data_curators": [
                    {
                        "data_curator_name": about.get("controller", missing),
                        "data_curator_type": about.get("sector", missing),
                    }
                ],
                "description": f"A linear model ({plan.loss.name}) trained under differential privacy, {facts.place}.",
                "intended_use": about.get("purpose", missing),
                "data_product_type": "Machine learning model",
                "data_product_region": about.get("region", missing),
                "publication_date": f"{datetime.now(UTC):%Y-%m-%d}",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"{plan.features} numbers and a label for each of {plan.records} records, clipped to "
                "declared bounds",
                "unprotected_quantities": "the number of records, names and bounds of columns, classes, and the plan",
            },
            "privacy_loss": {
                "privacy_unit": weakest.unit,
                "privacy_unit_details": facts.unit,
                "number_of_privacy_units": plan.records,
                "privacy_parameters": numbers,
                "privacy_parameters_details": weakest.sentence(),
            },
            "deployment_model": {
                "model_name": "Federated" if several else "Central",
                "model_name_details": facts.place,
                "trust_assumptions": facts.rests,
                "actors": facts.trust,
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _preparation(facts),
                "mechanisms": facts.mechanisms,
                "composition": "exact composition of Gaussian releases, charged in a ledger before any release",
                "post_processing": "the model is computed from the released sums alone",
                "justification": about.get("reason", missing),
                "utility": facts.quality or missing,
                "additional_information": f"sottovoce {__version__}; plan {facts.model.charged_as_}",
            },
            "administrative": {"status": "Draft", "registry_authors": [about.get("analyst", missing)], "tier": 3},
        },
    }


def registry_sheet(facts: Facts) -> str:
    """The entry as YAML: texts in double quotes, as in JSON, which YAML reads alike."""
    return "\n".join(_yaml_lines(registry_entry(facts))) + "\n"


def _yaml_lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield f"{indent}{key}:"
            yield from _yaml_lines(each, indent + "  ")
        elif isinstance(each, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {json.dumps(item, ensure_ascii=False)}" for item in each)  # flow style
        else:
            text = json.dumps(each, ensure_ascii=False)
            small = isinstance(each, float) and "." not in text  # 1e-06 would be a text in YAML 1.1
            yield f"{indent}{key}: {text.replace('e', '.0e') if small else text}"


Write = Callable[[Facts], str]
_ASKED: Final[Mapping[str, Callable[[Facts], dict[str, list[Answer]]]]] = {
    "protection": protection_answers,
    "nist": nist_answers,
}
SHEETS: Final[Mapping[str, tuple[str, Write]]] = {
    "protection": (".html", lambda facts: _page("Data protection sheet", protection_answers, facts, signed=True)),
    "nist": (".html", lambda facts: _page("Answers to NIST SP 800-226", nist_answers, facts, signed=False)),
    "registry": (".yaml", registry_sheet),
}


def unanswered(facts: Facts, kind: str) -> list[Answer]:
    """What a sheet asks and nobody has said."""
    sections = _ASKED.get(kind, protection_answers)(facts)
    return [answer for answers in sections.values() for answer in answers if not answer.said]
