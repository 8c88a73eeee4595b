from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import sottovoce as sv
from sottovoce.app.sheets import SHEETS, Facts, nist_answers, protection_answers, registry_entry, unanswered
from sottovoce.errors import InputError
from sottovoce.plan.plan import About

# Paths of the registry's form (opendp/deployments-registry-data, schemas/deployments-schema.yaml, 2026), with what an
# entry may say there where that is a list.
FORM: dict[str, tuple[str, ...]] = {
    "url_slug": (),
    **dict.fromkeys(
        (f"deployment.basic.{name}" for name in ("name", "data_curators", "description", "intended_use")), ()
    ),
    "deployment.basic.data_product_type": ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
    "deployment.basic.data_product_region": (),
    "deployment.basic.data_product_sector": (),
    "deployment.basic.publication_date": (),
    "deployment.dp_variant.variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    "deployment.dp_variant.data_domain": (),
    "deployment.dp_variant.unprotected_quantities": (),
    **dict.fromkeys(
        (
            f"deployment.privacy_loss.{name}"
            for name in (
                "privacy_unit",
                "privacy_unit_details",
                "number_of_privacy_units",
                "privacy_parameters_details",
            )
        ),
        (),
    ),
    "deployment.privacy_loss.privacy_parameters.epsilon": (),
    "deployment.privacy_loss.privacy_parameters.delta": (),
    "deployment.deployment_model.model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
    "deployment.deployment_model.model_name_details": (),
    "deployment.deployment_model.trust_assumptions": (),
    "deployment.deployment_model.actors": (),
    "deployment.deployment_model.release_type": ("One release", "Many releases"),
    "deployment.deployment_model.data_source_type": ("Static", "Dynamic"),
    "deployment.deployment_model.access_type": ("Interactive", "Non-interactive"),
    **dict.fromkeys(
        (
            f"deployment.implementation.{name}"
            for name in (
                *("preprocessing_and_hyperparameter_tuning", "mechanisms", "composition", "post_processing"),
                *("justification", "utility", "additional_information"),
            )
        ),
        (),
    ),
    "deployment.administrative.status": ("Converted", "Draft", "Pending", "Changes Required", "Approved"),
    "deployment.administrative.registry_authors": (),
    "deployment.administrative.tier": (),
}
CURATORS = ("Government", "Industry", "Nonprofit")
NEEDED = ("name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region")


def table(records: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "age": rng.integers(18, 95, records),
        "sex": rng.choice(["F", "M"], records),
        "ill": rng.choice(["no", "yes"], records),
    }


SCHEMA = sv.Schema(
    {
        "age": {"range": (18, 95), "source": "code book, page 12"},
        "sex": {"levels": ["F", "M"], "sensitive": True},
        "ill": {"levels": ["no", "yes"]},
    },
    label="ill",
)
ABOUT = About(
    dataset="Town clinic",
    purpose="to plan beds",
    analyst="the statistics office",
    controller="the town's hospital",
    sector="Government",
    contact="the data protection office",
    basis="public interest",
    recipients="the town",
    retention="ten years",
    region="one town",
    reason="compared with 0.5 and 2 on made-up data",
    withdrawal="the model is fitted anew every year",
)


@pytest.fixture(scope="module")
def model() -> Any:
    federation = sv.Federation.central(table(), None, schema=SCHEMA)
    federation.about = ABOUT
    return sv.PrivateLogisticRegression(0.2, 1e-6).fit(federation)


def flat(value: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {at: value}
    return {
        path: each for key, below in value.items() for path, each in flat(below, f"{at}.{key}" if at else key).items()
    }


def test_an_entry_of_the_registry_has_its_form(model: Any) -> None:
    written = yaml.safe_load(SHEETS["registry"][1](Facts(model)))
    assert written == registry_entry(Facts(model))
    paths = flat(written)
    assert set(paths) <= set(FORM)
    assert set(NEEDED) <= set(written["deployment"]["basic"])
    for path, value in paths.items():
        assert not FORM[path] or value in FORM[path], path
    assert written["deployment"]["basic"]["data_curators"] == [
        {"data_curator_name": "the town's hospital", "data_curator_type": "Government"}
    ]
    assert ABOUT.sector in CURATORS
    assert written["deployment"]["privacy_loss"]["number_of_privacy_units"] == 600
    assert 0.19 < written["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] <= 0.2


def test_what_was_said_stands_in_the_sheet_and_what_was_not_is_marked(model: Any) -> None:
    answers = {each.question: each for group in protection_answers(Facts(model)).values() for each in group}
    assert answers["Controller and processors"].text == ABOUT.controller
    assert answers["What is done"].text == ABOUT.withdrawal
    assert answers["Columns that need care"].text == "sex"
    assert model.privacy_.withdrawal() in answers["What the model still shows"].text
    assert not answers["Quality"].said
    assert [each.question for each in unanswered(Facts(model), "protection")] == [
        *("All on the same people so far", "Quality", "By group"),
        "Model file, SHA-256",
    ]
    page = SHEETS["protection"][1](Facts(model, model_hash="ab"))
    assert page.count('class="open"') > 3
    assert "code book, page 12" in page
    assert "Signature" in page
    assert "Signature" not in SHEETS["nist"][1](Facts(model))
    asked = [each.question for each in nist_answers(Facts(model))["Point by point"]]
    assert {"Unit of privacy", "Trust model", "Floating point", "Bias: errors by group"} <= set(asked)


def test_compared_epsilons_are_in_order_and_this_one_is_among_them(model: Any) -> None:
    rows = Facts(model).compared()
    assert [row[0] for row in rows] == ["0.1", "0.2 (this one)", "0.5", "1", "2", "4", "8"]
    found = [float(row[1].rstrip("%")) for row in rows]
    assert found == sorted(found)
    assert found[0] > 5


def test_texts_of_others_are_no_markup(model: Any) -> None:
    plan = model.plan_
    try:
        model.plan_ = plan.model_copy(update={"about": {"controller": "<script>alert(1)</script>"}})
        for suffix, write in SHEETS.values():
            text = write(Facts(model))
            assert ("<script>" in text) == (suffix == ".yaml")
            if suffix == ".yaml":
                assert yaml.safe_load(text)["deployment"]["basic"]["data_curators"][0]["data_curator_name"].endswith(
                    ">"
                )
    finally:
        model.plan_ = plan


def test_the_command_names_what_nobody_said(model: Any, tmp_path: Path, invoke: Any) -> None:
    model.save(tmp_path / "m.json")
    ledger = tmp_path / "people.ledger"
    sv.Ledger.create(ledger).open("people", epsilon=3, delta=1e-5)
    told = invoke("sheet", tmp_path / "m.json", "--ledger", ledger)
    assert "not said: Quality, By group" in told.output
    assert "epsilon = 0 of epsilon = 3, delta = 1e-05, 0 plans" in (tmp_path / "m.protection.html").read_text()
    assert invoke("sheet", tmp_path / "m.json", code=2).exit_code == 2  # there is a file already
    invoke("sheet", tmp_path / "m.json", "--kind", "registry")
    assert (tmp_path / "m.registry.yaml").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [({"source": 3}, "source = 3"), ({"source": "a\nb"}, "source ="), ({"sensitive": "yes"}, "sensitive = 'yes'")],
)
def test_notes_of_columns_are_checked(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sv.Schema({"age": {"range": (18, 95), **entry}})


def test_notes_of_columns_stay_with_a_schema() -> None:
    assert SCHEMA.notes == {"age": {"source": "code book, page 12"}, "sex": {"sensitive": True}}
    assert sv.Schema.from_table(SCHEMA.table()).notes == SCHEMA.notes
    assert SCHEMA.part(["sex"]).notes == {"sex": {"sensitive": True}}
    assert SCHEMA.of_features(SCHEMA.feature_names).notes == SCHEMA.notes
