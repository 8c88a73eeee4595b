from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from sottovoce.data.files import read_table
from sottovoce.errors import InputError
from sottovoce.lab import synthetic
from sottovoce.lab.synthetic import FEATURE_NAMES, FEATURE_RANGES, FEATURES, LABEL, clinics, columns, write_csv

LOWS, HIGHS = (np.array(part) for part in FEATURE_RANGES)


def column(X: np.ndarray, name: str) -> np.ndarray:
    return X[:, FEATURE_NAMES.index(name)]


def test_synthetic_is_said() -> None:
    assert "Synthetic" in str(synthetic.__doc__)


@pytest.mark.parametrize(("parties", "records"), [(1, 1), (1, 50), (4, 20_000), (7, 7), (10, 11), (3, 1000)])
def test_sizes_add_up_and_differ(parties: int, records: int) -> None:
    town = clinics(parties, records)
    sizes = [len(clinic.y) for clinic in town]
    assert len(town) == parties
    assert sum(sizes) == records
    assert min(sizes) >= 1
    assert [clinic.name for clinic in town] == [f"clinic-{k + 1}" for k in range(parties)]
    if records >= 100 * parties:
        assert len(set(sizes)) == parties


def test_same_seed_same_data_other_seed_other_data() -> None:
    for first, second, other in zip(clinics(seed=3), clinics(seed=3), clinics(seed=4), strict=True):
        np.testing.assert_array_equal(first.X, second.X)
        np.testing.assert_array_equal(first.y, second.y)
        assert not np.array_equal(first.X, other.X)


def test_clinics_are_not_copies_of_each_other() -> None:
    town = clinics(parties=4, records=4000)
    rows = {tuple(row) for clinic in town for row in clinic.X}
    assert len(rows) > 3990


@pytest.mark.parametrize("seed", range(5))
def test_values_are_plausible(seed: int) -> None:
    town = clinics(seed=seed)
    X, y = np.concatenate([clinic.X for clinic in town]), np.concatenate([clinic.y for clinic in town])
    assert X.shape == (20_000, len(FEATURES))
    assert (X >= LOWS).all()
    assert (X <= HIGHS).all()
    # The ranges are meant for everybody: few real measurements may be cut by them.
    measured = [j for j, feature in enumerate(FEATURES) if feature.decimals or feature.high > 30]
    assert ((X[:, measured] <= LOWS[measured]) | (X[:, measured] >= HIGHS[measured])).mean(axis=0).max() < 0.02
    assert set(np.unique(y)) == {0.0, 1.0}
    assert 0.25 <= y.mean() <= 0.35
    for name in ("sex", "smoker"):
        assert set(np.unique(column(X, name))) == {0.0, 1.0}
    for j, feature in enumerate(FEATURES):
        np.testing.assert_array_equal(X[:, j], X[:, j].round(feature.decimals))


@pytest.mark.parametrize(
    ("first", "second", "at_least", "at_most"),
    [
        ("systolic_pressure", "diastolic_pressure", 0.4, 0.9),
        ("fasting_glucose", "hba1c", 0.7, 0.97),
        ("age", "systolic_pressure", 0.2, 0.7),
        ("body_mass_index", "hba1c", 0.3, 0.9),
        ("prior_admissions", "length_of_stay", 0.1, 0.7),
        ("body_mass_index", "hdl_cholesterol", -0.6, -0.1),
    ],
)
def test_features_hang_together(first: str, second: str, at_least: float, at_most: float) -> None:
    X = np.concatenate([clinic.X for clinic in clinics()])
    assert at_least < np.corrcoef(column(X, first), column(X, second))[0, 1] < at_most


def test_clinics_differ_mildly() -> None:
    town = clinics()
    rates = [clinic.y.mean() for clinic in town]
    ages = [column(clinic.X, "age").mean() for clinic in town]
    assert 0.03 < max(rates) - min(rates) < 0.2
    assert 1 < max(ages) - min(ages) < 15


def test_a_linear_model_on_rescaled_data_predicts_the_outcome() -> None:
    town = clinics()
    X, y = np.concatenate([clinic.X for clinic in town]), np.concatenate([clinic.y for clinic in town])
    X = 2 * (X - LOWS) / (HIGHS - LOWS) - 1
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:15_000], order[15_000:]
    model = LogisticRegression(max_iter=1000).fit(X[train], y[train])
    assert 0.75 < roc_auc_score(y[test], model.decision_function(X[test])) < 0.95
    assert model.score(X[test], y[test]) > max(y[test].mean(), 1 - y[test].mean()) + 0.05


def test_columns_are_the_same_people() -> None:
    town, (holders, y) = clinics(records=500, seed=2), columns(records=500, seed=2)
    assert [holder.name for holder in holders] == ["clinic", "lab", "insurer"]
    joined = np.hstack([holder.X for holder in holders])
    held = [name for holder in holders for name in holder.feature_names]
    assert sorted(held) == sorted(FEATURE_NAMES)
    whole = np.concatenate([clinic.X for clinic in town])
    np.testing.assert_array_equal(joined, whole[:, [FEATURE_NAMES.index(name) for name in held]])
    np.testing.assert_array_equal(y, np.concatenate([clinic.y for clinic in town]))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_csv_round_trip(tmp_path: Path, suffix: str) -> None:
    clinic = clinics(records=300)[0]
    write_csv(clinic, tmp_path / f"clinic.csv{suffix}")
    table = read_table(tmp_path / f"clinic.csv{suffix}", label=LABEL)
    np.testing.assert_array_equal(table.X, clinic.X)
    np.testing.assert_array_equal(table.y, clinic.y)
    assert table.feature_names == FEATURE_NAMES


@pytest.mark.parametrize(("parties", "records", "seed"), [(0, 10, 0), (5, 4, 0), (2, 10, -1)])
def test_bad_arguments(parties: int, records: int, seed: int) -> None:
    with pytest.raises(InputError, match="at least one party"):
        clinics(parties, records, seed)


def numbers_of(name: str, *, new: bool = False) -> list[int]:
    return [int(row[0]) for row in synthetic.example_rows(name, new=new)[1:]]


def test_example_files_of_a_town_have_columns_of_the_same_people() -> None:
    people = {name: numbers_of(name) for name in synthetic.HOLDERS}
    common = set.intersection(*map(set, people.values()))
    assert 2_500 < len(common) < 2_650
    assert all(len(set(own)) == len(own) for own in people.values())
    assert people["clinic"] != people["lab"]
    headers = [synthetic.example_rows(name)[0] for name in synthetic.HOLDERS]
    assert [name for header in headers for name in header[1:] if name != "outcome"] == list(FEATURE_NAMES)
    assert ["outcome" in header for header in headers] == [True, False, False]
    ages = {int(row[0]): row[1] for row in synthetic.example_rows("clinic")[1:]}
    whole, _ = columns(synthetic.EXAMPLE_CLINICS, synthetic.EXAMPLE_RECORDS, seed=1)
    assert all(float(ages[number]) == whole[0].X[number - 1, 0] for number in list(ages)[:50])


def test_example_files_of_new_people_have_no_label_and_nobody_known() -> None:
    assert "outcome" not in synthetic.example_rows("clinic", new=True)[0]
    assert set(numbers_of("lab", new=True)) == set(numbers_of("insurer", new=True))
    assert not set(numbers_of("lab", new=True)) & set(numbers_of("lab"))


def test_example_files_of_clinics_share_a_few_people() -> None:
    one, two, three = (set(numbers_of(f"clinic-{k}")) for k in (1, 2, 3))
    assert len(one & two) == len(two & three) == synthetic.EXAMPLE_TWICE
    assert not one & three


def test_a_name_without_an_example_is_told_which_have_one() -> None:
    with pytest.raises(InputError, match="name='clinic-4' has no example file; these have: clinic-1"):
        synthetic.example_rows("clinic-4")
