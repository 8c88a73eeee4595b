"""Twelve ways in which adult does not fit its schema: `python benchmarks/misfits.py`, with `SOTTOVOCE_DATA` set.

For each it prints what a holder with all data in one place is told, by a warning or a refusal, before anything is
charged. Then two holders of half the people each fit over a wire, one of them with the table that does not fit: it
prints what that holder's log says, and whether the coordinator was sent what it is sent of tables that fit: messages of
the same kinds, in the same order, of the same sizes. The last lines count what was told and what differed.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import ADULT

import sottovoce as sv
from sottovoce.data.files import read_table
from sottovoce.errors import MisfitWarning
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import decode
from sottovoce.transports.base import InProcess

Table = pd.DataFrame
DAY = pd.Timedelta(days=1)
Sent = list[tuple[str, str, str, int]]  # party, kind, query, bytes


def changed(name: str, how: Callable[[pd.Series], Any]) -> Callable[[Table], Table]:
    """A table with one column as `how` makes it."""
    return lambda table: table.assign(**{name: how(table[name])})


MISFITS: Mapping[str, Callable[[Table], Table]] = {
    "levels in other capitals": changed("education", lambda cells: cells.str.lower()),
    "levels with other signs": changed("marital-status", lambda cells: cells.str.replace("-", " ")),
    "numbers in other units": changed("hours-per-week", lambda cells: 60 * cells),
    "texts where numbers should be": changed("age", lambda cells: cells.astype(str) + " years"),
    "numbers where levels should be": changed("workclass", lambda cells: pd.factorize(cells)[0]),
    "numbers with a currency": changed("capital-gain", lambda cells: [f"{cell:,}.00 $" for cell in cells]),
    "labels spelled otherwise": changed("income", lambda cells: cells + "."),
    "yes and no spelled otherwise": changed("sex", lambda cells: cells.str[0]),
    "a column without a cell": changed("occupation", lambda cells: [None] * len(cells)),
    "missing cells called otherwise": changed("race", lambda cells: np.where(cells.index % 2, "unknown", cells)),
    "dates where numbers should be": changed("age", lambda ages: pd.Timestamp("1994-01-01") - ages * 365 * DAY),
    "columns that changed places": lambda table: table.rename(
        columns={"education": "occupation", "occupation": "education"}
    ),
}


class HeardWire:
    """A wire that remembers of each message to the coordinator whose it is, its kind and its size."""

    def __init__(self, wire: Any) -> None:
        self._wire, self.sent = wire, Sent()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        replies: dict[str, bytes] = self._wire.exchange(messages)
        for party, reply in replies.items():
            frame = decode(reply)
            self.sent.append((party, frame.kind, frame.query, len(reply)))
        return replies


@contextmanager
def heard() -> Iterator[list[logging.LogRecord]]:
    """What the package logs."""
    log, records = logging.getLogger("sottovoce"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield records
    finally:
        log.removeHandler(handler)


def model(schema: sv.Schema | None = ADULT) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(1.0, 1e-6, schema=schema)


def told_in_one_place(table: Table) -> list[str]:
    """What the caller of a fit is told, who has all data: warnings, and the refusal if there is one."""
    with warnings.catch_warnings(record=True) as said, heard():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", MisfitWarning)
        try:
            model().fit(table)
            refusal = []
        except sv.InputError as error:
            refusal = [f"refused: {error}"]
    return [*(str(one.message) for one in said), *refusal]


def fit_over_a_wire(
    tables: Mapping[str, Table], folder: Path, wire: Callable[[list[Party]], Any] = InProcess
) -> tuple[list[str], Sent, list[str]]:
    """(what the holders' logs say, what the coordinator is sent, what the logs of others say) of a fit by rows."""
    parties = list[Party]()
    with heard() as records:
        for name, table in tables.items():
            path = folder / f"{name}.csv"
            table.to_csv(path, index=False)
            read = read_table(path, schema=ADULT)
            parties.append(Party(name, read.X, read.y, policy=Policy(), feature_names=read.feature_names))
        listening = HeardWire(wire(parties))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", MisfitWarning)
            model().fit(sv.Federation.connect(listening, split="rows"))
    own = [record.getMessage() for record in records if record.name == "sottovoce.holder"]
    return own, listening.sent, [record.name for record in records if record.name != "sottovoce.holder"]


def halves(table: Table, misfit: Callable[[Table], Table] = lambda table: table) -> dict[str, Table]:
    """The people of two holders, of whom the first has a table that does not fit."""
    half = len(table) // 2
    return {"north": misfit(table[:half].reset_index(drop=True)), "south": table[half:].reset_index(drop=True)}


def main() -> None:
    people = pd.read_csv(Path(os.environ["SOTTOVOCE_DATA"]) / "adult" / "train.csv.xz", skipinitialspace=True)
    told = alike = 0
    with tempfile.TemporaryDirectory() as folder:
        _, expected, _ = fit_over_a_wire(halves(people), Path(folder))
        for name, misfit in MISFITS.items():
            print(f"\n{name}")
            said = told_in_one_place(misfit(people))
            own, sent, others = fit_over_a_wire(halves(people, misfit), Path(folder))
            told += bool(said) and bool(own)
            alike += sent == expected and not others
            for text in said:
                print("  in one place:", text.replace("\n", "\n  "))
            for text in own:
                print("  north's log: ", text.replace(folder, ".").replace("\n", "\n  "))
            what = "the same messages" if sent == expected else "OTHER MESSAGES"
            print(f"  coordinator:  {what}, {len(sent)} of {sum(size for *_, size in sent):,} bytes; logs: {others}")
    print(f"\n{told} of {len(MISFITS)} are told to their holder, and a coordinator sees nothing of {alike}")


if __name__ == "__main__":
    main()
