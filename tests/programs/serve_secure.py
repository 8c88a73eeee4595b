"""An end of secure sums in a process of its own: `serve_secure.py NAME ADDRESS CERTIFICATES [DATA.npz LEDGER]`.

Without data it is a dealer. A party has pinned the keys of all whose certificates are in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.federation.alignment import AlignmentFile
from sottovoce.transports.certificates import Credentials, pin_in
from sottovoce.transports.grpc_party import serve_party

if __name__ == "__main__":
    name, address, certificates, *own = sys.argv[1:]
    end: sv.Party | sv.Dealer = sv.Dealer(name)
    if own:
        rows, account = np.load(own[0]), sv.Ledger(Path(own[1])).account()
        policy = sv.Policy(secure=True, tell_records="person" in rows)
        aligned, labels, ids = AlignmentFile(Path(own[0]).with_suffix(".aligned")), rows.get("y"), rows.get("ids")
        labels = sv.labels_with(labels, person=rows["person"]) if "person" in rows else labels
        end = sv.Party(name, rows["X"], labels, account=account, policy=policy, ids=ids, aligned=aligned)
    pins = dict(pin_in(path) for path in Path(certificates).glob("[!c]*.pem") if path.stem != "authority")
    serve_party(end, address, Credentials.load(certificates, name), give_up_after=20.0, pins=pins)
