"""adult from its raw table with a schema alone: `python benchmarks/tables.py`, with `SOTTOVOCE_DATA` set.

Numbers with loose public ranges, categories with the levels of the documentation, missing cells a level of their own,
the sampling weight no feature. The default solver, nothing tuned; test log-loss and accuracy, means over the seeds.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.data.readers import read_columns

LEVELS = {
    "workclass": """Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay
        Never-worked""",
    "education": """Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th
        Masters 1st-4th 10th Doctorate 5th-6th Preschool""",
    "marital-status": """Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent
        Married-AF-spouse""",
    "occupation": """Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty
        Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv
        Protective-serv Armed-Forces""",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "native-country": """United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc)
        India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico
        Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala
        Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands""",
}
RANGES = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 9_999),
    "hours-per-week": (1, 99),
}
ADULT = sv.Schema(
    {name: {"range": pair} for name, pair in RANGES.items()}
    | {name: {"levels": listed.split(), "missing": True} for name, listed in LEVELS.items()}
    | {"sex": {"yes": "Male", "no": "Female"}, "income": {"levels": ["<=50K", ">50K"]}},
    label="income",
    identifiers=["fnlwgt"],
)


def scored(model: sv.PrivateLogisticRegression, table: Path) -> tuple[float, float]:
    """Test log-loss and accuracy."""
    positive = read_columns(table)["income"] == model.classes_[1]
    logs = model.predict_log_proba(table)
    loss = -np.where(positive, logs[:, 1], logs[:, 0]).mean()
    return float(loss), float(np.mean((logs[:, 1] > logs[:, 0]) == positive))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
    folder = Path(os.environ["SOTTOVOCE_DATA"]) / "adult"
    print(f"{len(ADULT.columns)} columns, {len(ADULT.feature_names)} features, row norm {ADULT.row_norm:.3g}")
    for epsilon in arguments.epsilon:
        found = []
        for seed in range(arguments.runs):
            model = sv.PrivateLogisticRegression(epsilon, schema=ADULT, insecure_seed=seed)
            found.append(scored(model.fit(folder / "train.csv.xz"), folder / "test.csv.xz"))
        loss, accuracy = np.mean(found, axis=0)
        print(f"epsilon {epsilon:g}, {model.plan_.algorithm}: test log-loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
