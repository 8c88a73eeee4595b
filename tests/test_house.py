"""The code stays as simple as it is: files are short, names stand once, and a run takes no longer way through them."""

from __future__ import annotations

import pytest

import house


def test_the_package_does_not_grow() -> None:
    assert sum(house.lines().values()) <= 66_600


def test_files_are_short() -> None:
    assert len(house.long_files()) <= 8, house.long_files()


def test_names_stand_in_one_module() -> None:
    assert len(house.repeated_classes()) <= 2, house.repeated_classes()
    assert len(house.repeated_functions()) <= 1, house.repeated_functions()


def test_arguments_are_read() -> None:
    assert house.unused_arguments() <= 36


def test_splits_and_channels_are_rarely_compared_by_value() -> None:
    assert house.compared_by_value() <= 15


@pytest.mark.parametrize(("name", "parameters"), house.constructor_parameters().items())
def test_no_estimator_has_more_than_twenty_parameters(name: str, parameters: int) -> None:
    assert parameters <= 20


def test_no_solver_or_query_is_named_by_a_string_outside_its_family() -> None:
    names = house.solver_and_query_names()
    assert {"newton", "evaluation", "gram", "cells", "rescale"} <= names
    assert house.named_outside_families() == []
    for text in ('plan.algorithm == "evaluation"', 'solver in ("cd", "scd")', 'plan.release("gram")', 'by_name("cd")'):
        assert list(house.named(house.ast.parse(text), names))  # negative control


def test_algorithms_read_like_their_papers() -> None:
    longest, path = house.longest_coordinate()
    assert longest <= 20, path


@pytest.mark.parametrize(
    ("name", "functions", "files"),
    [
        ("central fit", 417, 53),
        pytest.param("by rows over gRPC, coordinator", 263, 41, marks=pytest.mark.slow),
        pytest.param("by columns, secure products", 645, 67, marks=pytest.mark.slow),
        pytest.param("sottovoce fit job.toml", 657, 76, marks=pytest.mark.slow),
        pytest.param("evaluate", 315, 47, marks=pytest.mark.slow),
    ],
)
def test_a_run_takes_no_longer_way(name: str, functions: int, files: int) -> None:
    walk = house.WALKS[name]()
    assert walk.functions <= functions, walk.by_package()
    assert walk.files <= files


def test_a_longer_way_is_seen() -> None:
    """The control: a walk has what was run, comprehensions and all, and nothing else."""
    walk = house.trace(lambda: house.sv.losses.get("logistic"))
    assert ("losses/base.py", "get") in walk.passed
    assert walk.named <= walk.functions < 20
    assert walk.files < 5
