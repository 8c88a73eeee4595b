"""A holder of people to predict for: `predict_party.py NAME DATA.npz ADDRESS CERTIFICATES LEDGER RECIPIENT`.

Its part of the model lies beside the ledger of the training. What it learns as a recipient goes to NAME.npy. It has
pinned the keys of all whose certificates are in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.federation.models import Models
from sottovoce.transports.certificates import Credentials, pin_in
from sottovoce.transports.grpc_party import serve_party

if __name__ == "__main__":
    name, data, address, certificates, ledger, recipient = sys.argv[1:]
    policy = sv.Policy(predict_for=(recipient,), trains=False)
    party = sv.Party(name, np.load(data)["X"], None, policy=policy, models=Models.beside(Path(ledger), name))
    others = (path for path in Path(certificates).glob("*.pem") if path.stem not in ("authority", "coordinator"))
    pins = dict(map(pin_in, others))
    serve_party(party, address, Credentials.load(certificates, name), give_up_after=20.0, pins=pins)
    if party.predictions is not None:
        np.save(Path(certificates) / f"{name}.npy", party.predictions.scores)
