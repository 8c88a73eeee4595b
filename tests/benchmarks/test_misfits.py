"""Each way in which a table can misfit its schema is told to its holder, and to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import misfits
import numpy as np
import pandas as pd
import pytest

from sottovoce.lab.datasets import ADULT_CATEGORIES, ADULT_NUMBERS
from wires import over_grpc

WAYS = list(misfits.MISFITS)


def people(count: int = 400) -> pd.DataFrame:
    """Made-up people with the columns of adult, whose cells all fit."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        name: rng.integers(*map(int, pair), count, endpoint=True) for name, pair in ADULT_NUMBERS.items()
    }
    columns |= {name: rng.choice(levels.split(), count) for name, levels in ADULT_CATEGORIES.items()}
    columns["sex"] = rng.choice(["Male", "Female"], count)
    return pd.DataFrame(columns | {"income": rng.choice(["<=50K", ">50K"], count)})


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> misfits.Sent:
    """What a coordinator is sent of tables that fit, of which nobody is told anything."""
    own, sent, others = misfits.fit_over_a_wire(misfits.halves(people()), tmp_path_factory.mktemp("fits"))
    assert own == others == []
    return sent


@pytest.mark.parametrize("way", WAYS)
def test_the_holder_is_told_and_a_coordinator_is_not(way: str, expected: misfits.Sent, tmp_path: Path) -> None:
    """Messages of the same kinds and sizes in the same order, and no log but the holder's own."""
    own, sent, others = misfits.fit_over_a_wire(misfits.halves(people(), misfits.MISFITS[way]), tmp_path)
    assert "north.csv: cells that do not fit the schema" in own[0]
    assert not [text for text in own if "south" in text]
    assert sent == expected
    assert others == []


@pytest.mark.parametrize("way", ["levels in other capitals", "labels spelled otherwise"])
def test_over_a_real_wire_too(way: str, tmp_path: Path) -> None:
    """gRPC with mutual TLS: what is sent of a table that fits and of one that does not, even without a record."""
    sent = []
    for folder, misfit in ((tmp_path / "fits", lambda table: table), (tmp_path / "misfits", misfits.MISFITS[way])):
        folder.mkdir()
        stacks: list[Any] = []

        def wire(parties: Any, folder: Path = folder, stacks: list[Any] = stacks) -> Any:
            stacks.append(over_grpc(folder / "certificates", parties))
            return stacks[0].__enter__()

        try:
            own, heard, _ = misfits.fit_over_a_wire(misfits.halves(people(), misfit), folder, wire)
        finally:
            for stack in stacks:
                stack.__exit__(None, None, None)
        # A signature has a few bytes more or fewer by chance, and it is in the acceptance with its certificate.
        sent.append([(party, kind, query, 0 if kind == "accept" else size) for party, kind, query, size in heard])
    assert any("do not fit" in text for text in own)
    assert {kind for _, kind, *_ in sent[0]} >= {"facts", "accept"}
    assert sent[0] == sent[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_caller_with_all_data_is_warned_or_refused(way: str) -> None:
    told = misfits.told_in_one_place(misfits.MISFITS[way](people()))
    assert "cells that do not fit the schema" in told[0]
    assert any("none is left" in text for text in told) == (way == "labels spelled otherwise")
    assert not [text for text in told for secret in ("unknown", "years", "Bachelors", "bachelors") if secret in text]


def test_of_a_table_that_fits_nothing_is_told() -> None:
    assert misfits.told_in_one_place(people()) == []


def test_a_remark_that_leaves_by_another_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: what is told to the holder goes to the log of the wire."""
    import logging

    from sottovoce.data import misfits as told

    monkeypatch.setattr(told, "_log", logging.getLogger("sottovoce.transports"))
    way = misfits.MISFITS["levels in other capitals"]
    assert misfits.fit_over_a_wire(misfits.halves(people(), way), tmp_path)[2] == ["sottovoce.transports"]
