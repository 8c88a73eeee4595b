"""Where sums are computed: what is asked for is checked, and told to those who have no device."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import devices
from sottovoce.data.device.loops import shape_of
from sottovoce.errors import InputError


def test_a_device_that_is_none_is_refused() -> None:
    model = sv.PrivateRidge(epsilon=1.0, row_norm=1.0, label_bound=1.0, device="tpu")
    with pytest.raises(InputError, match="device='tpu' must be one of 'cpu', 'cuda'"):
        model.fit(np.eye(40), np.zeros(40))


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
def test_without_cupy_the_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"needs CuPy: install sottovoce\[gpu\]"):
        devices.check_device("cuda")


def test_what_a_device_does_not_serve_is_refused_and_what_is_no_fit_is_not() -> None:
    assert devices.refusal("scd", private=True, fits=True) is None
    with devices.on("cuda"):
        assert "newton, gradient, sgd, whitened" in str(devices.refusal("scd", private=True, fits=True))
        assert devices.refusal("newton", private=False, fits=True) is not None
        assert devices.refusal("newton", private=True, fits=True) is None
        assert devices.refusal("evaluation", private=True, fits=False) is None
    assert devices.refusal("scd", private=True, fits=True) is None


@pytest.mark.parametrize("width", [1, 32, 33, 90, 128, 250, 500, 512])
@pytest.mark.parametrize("shared", [64 * 1024, 99 * 1024, 227 * 1024])
def test_the_shape_of_a_loop_covers_its_columns_and_has_room(width: int, shared: int) -> None:
    columns, rows, size = shape_of(width, shared)
    assert 32 * columns >= width > 32 * (columns - 1)
    assert 32 % rows == 0
    assert size >= 4 * 2 * rows * width * 4  # four warps have two tiles each
    assert size + 1024 <= shared
