"""A data holder in a process of its own: `serve_party.py NAME DATA.npz ADDRESS CERTIFICATES [LEDGER]`.

Data without `y` are of a holder of columns that does not know the labels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party

if __name__ == "__main__":
    name, data, address, certificates, *ledger = sys.argv[1:]
    rows = np.load(data)
    account = sv.Ledger(Path(ledger[0])).account() if ledger else None
    policy = sv.Policy(max_epsilon=2.0, max_delta=1e-4) if ledger else sv.Policy(allow_without_privacy=True)
    party = sv.Party(name, rows["X"], rows.get("y"), account=account, policy=policy)
    serve_party(party, address, Credentials.load(certificates, name), give_up_after=20.0)
