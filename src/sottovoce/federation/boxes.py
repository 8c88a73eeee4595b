"""Boxes that pass through the coordinator, from party to party: it cannot read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.frames import Frame
from sottovoce.errors import WireError
from sottovoce.federation.replies import Reply
from sottovoce.sealed.pair_keys import OFFER, OFFERS

Boxes = Mapping[str, NDArray[Any]]
Exchange = Callable[[Iterable[str], Frame, Mapping[str, Boxes]], dict[str, Reply]]  # a message, and what goes to each


def box_of(sender: str, boxes: Boxes, name: str) -> NDArray[Any]:
    """The box of that name, which has to be there."""
    if name not in boxes:
        raise WireError(f"{sender!r} sent no box where one is due.")
    return boxes[name]


def crossed(names: Sequence[str], boxes: Mapping[str, Boxes]) -> dict[str, dict[str, NDArray[Any]]]:
    """Of the boxes that each party made for each other, by its place: those for each, by the place of their sender."""
    places = {name: str(place) for place, name in enumerate(names)}
    return {
        name: {places[other]: box_of(other, boxes[other], places[name]) for other in names if other != name}
        for name in names
    }


def crossed_offers(names: Sequence[str], boxes: Mapping[str, Boxes]) -> dict[str, dict[str, NDArray[Any]]]:
    """Of the offers of keys that each member made for all later ones: those for each, in the order of their senders."""
    sent = {}
    for place, name in enumerate(names):
        if name in boxes:
            sent[name] = box_of(name, boxes[name], OFFERS)
            if sent[name].dtype != np.int64 or sent[name].shape != (len(names) - place - 1, OFFER // 8):
                raise WireError(f"{name!r} did not offer a key to each of {len(names) - place - 1} later members.")
    return {
        name: {
            OFFERS: np.array(
                [sent[other][place - at - 1] for at, other in enumerate(names[:place])], dtype=np.int64
            ).reshape(place, OFFER // 8)
        }
        for place, name in enumerate(names)
    }
