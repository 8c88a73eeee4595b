"""An end of sealed sums in a process of its own: `serve_sealed.py NAME ADDRESS CERTIFICATES [DATA.npz LEDGER]`.

Without data it is a helper. A party has pinned the keys of all whose certificates are in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.certified import Certified
from sottovoce.transports.grpc_wire import serve_party
from sottovoce.transports.identity import Identity


class Pinned(Certified):
    """An end that knows those whose certificates it has."""

    def __init__(self, credentials: Credentials, folder: Path) -> None:
        super().__init__(credentials)
        self._folder = folder

    def pinned(self, name: str) -> bool:
        """Whether its certificate is there."""
        return (self._folder / f"{name}.pem").exists()


class Holder(sv.Party):
    """A party that knows the others by itself."""

    known: Identity

    def identify(self, identity: Identity) -> None:
        """As it knows them."""
        super().identify(self.known)


if __name__ == "__main__":
    name, address, certificates, *own = sys.argv[1:]
    credentials = Credentials.load(certificates, name)
    end: sv.Party | sv.Helper = sv.Helper(name)
    if own:
        rows, account = np.load(own[0]), sv.Ledger(Path(own[1])).account()
        end = Holder(name, rows["X"], rows.get("y"), account=account, policy=sv.Policy(sealed=True), ids=rows["ids"])
        end.known = Pinned(credentials, Path(certificates))
    serve_party(end, address, credentials, give_up_after=20.0)
