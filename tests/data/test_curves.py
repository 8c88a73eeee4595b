"""Curves of numbers: the basis, that no encoded number exceeds its norm, orders, and what a schema declares of them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.preprocessing import SplineTransformer

import sottovoce as sv
from sottovoce.data.block import Block, Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.data.column_kinds import Curve, Number
from sottovoce.data.curves import at_steps, put_in_order, smooth_basis

SCHEMA = sv.Schema(
    {
        "age": {"range": (17, 90)},
        "income": {"range": (1, 1e6), "scale": "log", "missing": True, "knots": 8},
        "dose": {"range": (-1, 3), "missing": True, "fill": 3, "knots": [0, 0.1, 2]},
        "rate": {"range": (0, 1), "shape": "linear"},
        "diet": {"levels": ["fish", "meat"]},
        "cost": {"range": (0, 10)},
    },
    label="cost",
    shape="smooth",
)
ODD = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(-(10**400), 10**400), st.text(max_size=4))


def textbook(knots: int) -> np.ndarray:
    """The basis at the knots, from its definition: eigenvectors, weights, the largest square over a dense range."""
    second = np.array(
        [[float(j == i) - 2 * (j == i + 1) + (j == i + 2) for j in range(knots)] for i in range(knots - 2)]
    )
    vectors = np.linalg.eigh(second.T @ second)[1]
    line = np.arange(knots) - (knots - 1) / 2
    vectors[:, 1] = line / np.linalg.norm(line)
    columns = vectors[:, 1:] * np.sqrt(knots) * np.array([1.0, *(0.5 / np.sqrt(np.arange(2, knots)))])
    hats = SplineTransformer(n_knots=knots, degree=1).fit(np.array([[0.0], [1.0]]))
    between = hats.transform(np.linspace(0, 1, 4001)[:, None]) @ columns
    return np.asarray(columns / np.sqrt(np.square(between).sum(axis=1).max()))


class TestBasis:
    @pytest.mark.parametrize("knots", [3, 4, 12, 50])
    def test_it_is_what_the_formula_says_but_for_signs(self, knots: int) -> None:
        np.testing.assert_allclose(np.abs(smooth_basis(knots)), np.abs(textbook(knots)), atol=1e-11)
        assert np.all(smooth_basis(knots)[-1] > 0)

    @pytest.mark.parametrize("knots", [3, 4, 12, 50])
    def test_no_number_is_longer_than_one_at_knots_or_between_and_one_is_as_long(self, knots: int) -> None:
        steps = np.concatenate([np.arange(knots), np.linspace(0, knots - 1, 5001)])
        squares = np.square(at_steps(steps, smooth_basis(knots))).sum(axis=1)
        assert squares.max() <= 1.0
        assert squares.max() >= 0.99

    def test_a_basis_that_is_not_divided_would_be_found(self) -> None:
        """Negative control: times 1.01 some number is longer than 1."""
        steps = np.linspace(0, 11, 5001)
        assert np.square(at_steps(steps, 1.01 * smooth_basis(12))).sum(axis=1).max() > 1.01

    def test_it_spans_all_values_at_knots_but_their_mean_and_begins_with_the_line(self) -> None:
        basis = smooth_basis(12)
        assert np.linalg.matrix_rank(basis) == 11
        np.testing.assert_allclose(basis.mean(axis=0), 0, atol=1e-11)
        np.testing.assert_allclose(np.diff(basis[:, 0], 2), 0, atol=1e-11)

    def test_wiggles_weigh_less_and_less(self) -> None:
        sizes = np.linalg.norm(smooth_basis(12), axis=0)
        np.testing.assert_allclose(sizes[1:] / sizes[0], 0.5 / np.sqrt(np.arange(2, 12)), rtol=1e-9)


class TestOrder:
    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(-5, 5), min_size=12, max_size=12), st.booleans())
    def test_the_nearest_curve_in_order_has_the_same_mean(self, values: list[float], rising: bool) -> None:
        basis = smooth_basis(12)
        coef = np.linalg.lstsq(basis, np.array(values) - np.mean(values), rcond=None)[0]
        made = basis @ put_in_order(coef, basis, rising=rising)
        expected = IsotonicRegression(increasing=rising).fit_transform(np.arange(12), basis @ coef)
        np.testing.assert_allclose(made, expected, atol=1e-8)
        assert made.mean() == pytest.approx(0, abs=1e-9)

    def test_one_in_order_stays_as_it_is(self) -> None:
        basis, coef = smooth_basis(5), np.array([2.0, 0.1, 0.0, 0.05])
        assert put_in_order(coef, basis, rising=True) is coef
        again = put_in_order(coef, basis, rising=False)
        assert put_in_order(again, basis, rising=False) is again
        np.testing.assert_allclose(basis @ again, 0, atol=1e-9)


class TestEncoding:
    def test_cells_become_what_is_between_their_knots(self) -> None:
        age, income, dose = (SCHEMA.columns[name] for name in ("age", "income", "dose"))
        ends = age.encode(np.array([0, 17, 90, 1000, np.nan]))
        np.testing.assert_array_equal(ends[[0, 1, 2, 3]], smooth_basis(12)[[0, 0, -1, -1]])
        np.testing.assert_array_equal(ends[4], age.encode(np.array([53.5]))[0])  # the middle
        cells = income.encode(np.array([1, 1000, 1e9, "?"], dtype=object))
        np.testing.assert_allclose(cells[1, :-1], smooth_basis(8)[3:5].mean(axis=0), atol=1e-12)
        assert cells[3].tolist() == [0] * 7 + [1]
        assert isinstance(dose, Curve)
        assert dose.places == (-1, 0, 0.1, 2, 3)
        np.testing.assert_allclose(dose.encode(np.array([0.05]))[0, :-1], smooth_basis(5)[1:3].mean(axis=0), atol=1e-12)
        np.testing.assert_array_equal(dose.encode(np.array([np.nan]))[0], [*smooth_basis(5)[-1], 1])

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.fixed_dictionaries(dict.fromkeys(SCHEMA.columns, ODD)), min_size=1, max_size=5))
    def test_a_row_is_within_the_norm_and_a_function_of_its_own_cells(self, rows: list[dict[str, Any]]) -> None:
        def encoded(some: list[dict[str, Any]]) -> np.ndarray:
            return SCHEMA.encode({name: [row[name] for row in some] for name in some[0]})

        together = encoded(rows)
        np.testing.assert_array_equal(together, np.concatenate([encoded([row]) for row in rows]))
        low, high = map(np.array, SCHEMA.feature_ranges)
        scaled = (together - (low + high) / 2) * 2 / (high - low)
        assert np.linalg.norm(scaled, axis=1).max() <= SCHEMA.row_norm * (1 + 1e-12)

    def test_workers_elsewhere_encode_alike(self) -> None:
        cells = {"age": [17, 33.3], "income": [5, 1e5], "dose": [None, 1], "rate": [0, 1], "diet": ["fish", "?"]}
        made = pickle.loads(pickle.dumps(SCHEMA)).encode(cells)
        np.testing.assert_array_equal(made, SCHEMA.encode(cells))

    def test_a_curve_counts_as_a_line_does_and_a_fill_beside_its_flag(self) -> None:
        own = float(np.square(smooth_basis(5)[-1]).sum())
        assert SCHEMA.row_norm**2 == pytest.approx(1 + 1 + (own + 1) + 1 + 1)
        plain = sv.Schema({name: {"range": (0, 1), "missing": True} for name in "ab"})
        assert sv.Schema(plain.table()["columns"], shape="smooth").row_norm == plain.row_norm

    def test_rows_within_the_norm_are_not_cut(self) -> None:
        rows = SCHEMA.encode({"age": [90], "income": [1], "dose": [3], "rate": [1], "diet": ["fish"]})
        bounds = Bounds.declare(row_norm=SCHEMA.row_norm, feature_ranges=SCHEMA.feature_ranges)
        recipe = Preparation(bounds, rows.shape[1], False, 10, classes=(0, 1))
        prepared = np.asarray(Block.prepare(rows, [1], recipe).rows)[0] / recipe.scale
        shift, factor = recipe.affine()
        np.testing.assert_allclose(prepared, (rows[0] + shift) * factor, atol=1e-5)

    def test_by_columns_a_party_has_the_part_of_its_columns(self) -> None:
        norms = SCHEMA.party_norms(SCHEMA.row_norm, (11 + 8, 5 + 1 + 2))
        assert norms[0] ** 2 == pytest.approx(2)
        assert sum(norm**2 for norm in norms) == pytest.approx(SCHEMA.row_norm**2)


class TestDeclaration:
    def test_all_numbers_but_those_that_say_linear_and_the_label(self) -> None:
        assert isinstance(SCHEMA.columns["age"], Curve)
        assert type(SCHEMA.columns["rate"]) is Number
        assert SCHEMA.label_bound == (0, 10)
        alone = sv.Schema({"a": {"range": (0, 1), "shape": "smooth"}, "b": {"range": (0, 1)}})
        assert len(alone.feature_names) == 11 + 1

    def test_tables_and_files_give_it_back(self, tmp_path: Path) -> None:
        SCHEMA.to_toml(tmp_path / "s.toml")
        again = sv.Schema.from_toml(tmp_path / "s.toml")
        assert again == SCHEMA
        assert again.feature_names == SCHEMA.feature_names
        assert SCHEMA.part(["age", "diet"]).feature_names == (
            *SCHEMA.columns["age"].features,
            *("diet=fish", "diet=meat"),
        )
        assert SCHEMA.of_features(SCHEMA.feature_names).feature_names == SCHEMA.feature_names
        short = sv.Schema.from_table({"shape": "smooth", "columns": {"a": {"range": [0, 1], "monotone": "up"}}})
        assert short.table()["columns"] == {"a": {"range": [0, 1], "shape": "smooth", "monotone": "up"}}
        assert short.ordered == ["a"]

    def test_names_of_features_tell_other_knots(self) -> None:
        entries: list[dict[str, Any]] = [{}, {"knots": 13}, {"knots": [3]}, {"scale": "log"}]
        made = [sv.Schema({"a": {"range": (1, 9), "shape": "smooth"} | entry}) for entry in entries]
        made.append(sv.Schema({"a": {"range": (1, 8), "shape": "smooth"}}))
        assert len({schema.feature_names for schema in made}) == 5

    @pytest.mark.parametrize(
        ("entry", "text"),
        [
            ({"shape": "round"}, "shape = 'round' must be 'linear' or 'smooth'"),
            ({"knots": 9}, 'knots is of a curve; say shape = "smooth" too'),
            ({"monotone": "up", "shape": "linear"}, "monotone is of a curve"),
            ({"shape": "smooth", "knots": 2}, "knots = 2 must be a number from 3 to 50, or a list"),
            ({"shape": "smooth", "knots": True}, "a number from 3 to 50"),
            ({"shape": "smooth", "knots": [3, 2]}, "of rising places|rising places"),
            ({"shape": "smooth", "knots": [3, 10]}, "rising places"),
            ({"shape": "smooth", "knots": []}, "rising places"),
            ({"shape": "smooth", "scale": "root"}, "scale = 'root' must be 'linear' or 'log'"),
            ({"shape": "smooth", "scale": "log"}, 'scale = "log" needs a range above 0, not from 0'),
            ({"shape": "smooth", "monotone": True}, "monotone = True must be 'up' or 'down'"),
            ({"shape": "smooth", "range": "private"}, 'declare it, or say shape = "linear"'),
            ({"shape": "smooth", "narrow": True}, "a curve has its knots in a declared range"),
            ({"shape": "smooth", "fill": 10}, "fill = 10.0 must be within the range"),
        ],
    )
    def test_what_is_wrong_is_said(self, entry: dict[str, Any], text: str) -> None:
        with pytest.raises(sv.InputError, match=text):
            sv.Schema({"a": {"range": (0, 9)} | entry})

    def test_a_label_has_no_shape_and_there_are_two(self) -> None:
        with pytest.raises(sv.InputError, match="the label has no shape"):
            sv.Schema({"a": {"range": (0, 9), "shape": "smooth"}}, label="a")
        with pytest.raises(sv.InputError, match="shape='round' must be 'linear' or 'smooth', of all numbers"):
            sv.Schema({"a": {"range": (0, 9)}}, shape="round")
