"""What is run while things fail: every solver by rows and by columns, in the clear and secure, on a few records.

A case is a folder of files as operators have them: a job of the coordinator, a file of each party and of the dealer,
certificates, records and ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

import sottovoce as sv
from sottovoce.transports import authority, certificates

COORDINATOR, DEALER, ALONE = "coordinator", "notary", "central"
RECORDS: Final = 60  # by columns of all parties, by rows of each
BEFORE: Final = timedelta(days=60)  # certificates are so old, so that a clock may go back
EPSILON: Final = 50.0  # of each account, so that every fit after a lost one has room
COME_BACK: Final = True  # whether an end of secure columns that was killed after the charge goes on when it is back


@dataclass(frozen=True)
class Case:
    """One job. `secure` says that sums are, `dealer` that a process of its own deals."""

    name: str
    split: str
    solver: str
    model: str = 'estimator = "logistic"'
    secure: bool = False
    dealer: bool = False
    labels: str = "shared"

    @property
    def parties(self) -> tuple[str, ...]:
        """The processes with records; of data in one place there is none beside the coordinator."""
        return () if self.split == ALONE else ("north", "south")

    @property
    def ends(self) -> tuple[str, ...]:
        """All processes that connect to the coordinator."""
        return (*self.parties, DEALER) if self.dealer else self.parties

    @property
    def roles(self) -> tuple[str, ...]:
        """All processes."""
        return (COORDINATOR, *self.ends)

    def kind_of(self, role: str) -> str:
        """A party, the dealer, or what it is called."""
        return "party" if role in self.parties else "dealer" if role == DEALER else role

    def roles_of(self, kind: str) -> list[str]:
        """The processes of a kind, or all for ""."""
        return [role for role in self.roles if kind in ("", self.kind_of(role))]

    @property
    def composition(self) -> str:
        """Of its accounts: some events add up in one way alone."""
        if self.algorithm in ("sgd", "scd"):
            return "renyi"
        return "basic" if self.algorithm in ("greedy-cd", "frank-wolfe") else "gaussian"

    @property
    def algorithm(self) -> str:
        """The solver's name."""
        return self.name.partition(",")[0]

    @property
    def holders(self) -> tuple[str, ...]:
        """Whose ledgers are charged."""
        return self.parties or (COORDINATOR,)


_L2, _BALL = 'estimator = "logistic"\nalpha = 0.1', 'estimator = "lasso"\nradius = 2.0'
_SQUARED = 'estimator = "ridge"\nalpha = 0.1'

_CASES = (
    Case("newton", "rows", "rounds = 5"),
    Case("gradient", "rows", "rounds = 5"),
    Case("sgd", "rows", "rounds = 6\nrate = 0.3"),
    Case("sgd, one party a round", "rows", 'rounds = 6\nrate = 0.3\nschedule = "one-party"'),
    Case("whitened", "rows", "rounds = 4"),
    Case("scd", "rows", "rounds = 6\nrate = 0.3", _L2),
    Case("scd-sequential", "rows", "rounds = 3\nlot = 10", _L2),
    Case("cd", "rows", "rounds = 3\ninner = 3\nclip = 0.3"),
    Case("greedy-cd", "rows", "rounds = 4\nclip = 0.3"),
    Case("newton", "rows", "rounds = 4", secure=True),
    Case("gradient", "rows", "rounds = 4", secure=True, dealer=True),
    Case("sgd", "rows", "rounds = 5\nrate = 0.3", secure=True),
    Case("whitened", "rows", "rounds = 3", secure=True),
    Case("cd", "rows", "rounds = 2\ninner = 3\nclip = 0.3", secure=True),
    Case("frank-wolfe", "columns", "rounds = 6\ncap = 2\nsketch_size = 48", _BALL),
    Case("one-shot", "columns", "sketch_size = 4", _SQUARED),
    Case("admm", "columns", "rounds = 4"),
    Case("admm, fresh", "columns", 'rounds = 4\nrows = "fresh"'),
    Case("fdml", "columns", "rounds = 4"),
    Case("score", "columns", "rounds = 4"),
    Case("newton", "columns", "rounds = 2", secure=True, dealer=True, labels="held"),
    Case("gradient", "columns", "rounds = 2", secure=True, labels="held"),
    Case("whitened", "columns", "rounds = 2", secure=True, dealer=True, labels="held"),
    Case("scd-primal", ALONE, "rounds = 4\nclip = 0.1"),
    Case("newton", ALONE, "rounds = 5"),
)


def title(case: Case) -> str:
    """Its name among all."""
    return ", ".join([case.name, case.split, *(["secure"] if case.secure else []), *([DEALER] if case.dealer else [])])


CASES: Final = {title(case): case for case in _CASES}


def make_site(folder: Path) -> None:
    """What all cases share: certificates of every role, and the records."""
    now = certificates.now
    certificates.now = lambda: now() - BEFORE
    try:
        authority.create_authority(folder / "certificates")
        for name in (COORDINATOR, "north", "south", DEALER):
            authority.issue(folder / "certificates", name)
    finally:
        certificates.now = now
    generator = np.random.default_rng(17)
    rows = generator.uniform(-1.0, 1.0, (2 * RECORDS, 3)).round(3)
    scores = rows @ [2.0, -3.0, 1.0] + 0.3 * generator.logistic(size=len(rows))
    columns = {name: [f"{number:.3f}" for number in column] for name, column in zip("abc", rows.T, strict=True)}
    columns |= {"kind": ["yes" if score > 0 else "no" for score in scores], "y": [f"{s:.3f}" for s in scores / 8]}
    columns["id"] = [f"p{number}" for number in range(len(rows))]

    def write(name: str, header: list[str], first: int, count: int) -> None:
        lines = [",".join(header)]
        lines += [",".join(columns[each][number] for each in header) for number in range(first, first + count)]
        (folder / name).write_text("\n".join(lines) + "\n")

    for label in ("kind", "y"):
        write(f"{ALONE}-{label}.csv", ["a", "b", "c", label], 0, 2 * RECORDS)
        for place, name in enumerate(("north", "south")):
            write(f"{name}-rows-{label}.csv", ["a", "b", "c", label], place * RECORDS, RECORDS)
        write(f"north-columns-{label}.csv", ["id", "a", "b", label], 0, RECORDS)
        write(f"south-columns-{label}.csv", ["id", "c", label], 0, RECORDS)
    write("south-columns-none.csv", ["id", "c"], 0, RECORDS)


def lay_out(site: Path, folder: Path, case: Case, ports: dict[str, int]) -> None:
    """The files of one run of a case; `ports` says where the coordinator listens and where each end finds it."""
    for name in case.roles:
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    label = "kind" if "logistic" in case.model else "y"
    bounds = 'classes = ["no", "yes"]' if label == "kind" else "label_bound = 1.0"
    text = f'[model]\n{case.model}\n[solver]\nname = "{case.algorithm}"\n{case.solver}\n[privacy]\nepsilon = 5.0\n'
    text += f"[bounds]\nentry_bound = 1.0\n{bounds}\n"
    for holder in case.holders:
        ledger = sv.Ledger.create(folder / holder / "ledger.db")
        ledger.open("people", epsilon=EPSILON, delta=1e-3, composition=case.composition)
    home = folder / COORDINATOR
    papers = site / "certificates"
    if case.split == ALONE:
        text += f'[data]\nfile = "{site}/{ALONE}-{label}.csv"\nlabel = "{label}"\nledger = "ledger.db"\n'
        (home / "job.toml").write_text(text)
        return
    quoted = ", ".join(f'"{each}"' for each in case.parties)
    text += (
        f'[federation]\nlisten = "127.0.0.1:{ports[COORDINATOR]}"\ncertificates = "{papers}"\n'
        f"parties = [{quoted}]\nwait = 300.0\ntimeout = 300.0\n"
    )
    if case.split == "rows":
        text += 'sums = "secure"\n' if case.secure else ""
    else:
        text += f'products = "{"secure" if case.secure else "none"}"\n'
    text += f'dealer = "{DEALER}"\n' if case.dealer else ""
    if case.split == "columns":
        held = '\nlabel_party = "north"' if case.labels == "held" else ""
        text += f'[columns]\nlabels = "{case.labels}"{held}\n'
    (home / "job.toml").write_text(text)
    pins = dict(certificates.pin_in(papers / f"{each}.pem") for each in case.ends)
    for each in case.ends:
        wire = f'[federation]\ncoordinator = "localhost:{ports[each]}"\ncertificates = "{papers}"\n'
        if each == DEALER:
            said = f'[dealer]\nname = "{each}"\n{wire}'
        else:
            known = case.split == "rows" or case.labels != "held" or each == "north"
            lines = [f'name = "{each}"', f'file = "{site}/{each}-{case.split}-{label if known else "none"}.csv"']
            lines += [f'label = "{label}"'] if known else []
            lines += ['id = "id"'] if case.split == "columns" else []
            peers = "".join(f'{peer} = "{pin}"\n' for peer, pin in pins.items() if peer != each)
            said = "[party]\n" + "\n".join([*lines, 'ledger = "ledger.db"']) + f"\n{wire}"
            aligned = (
                "unaligned = true\n" if case.split == "columns" and case.secure else ""
            )  # the files have one order
            said += f"[policy]\nsecure = {str(case.secure).lower()}\n{aligned}[peers]\n{peers}"
        (folder / each / "end.toml").write_text(said)
