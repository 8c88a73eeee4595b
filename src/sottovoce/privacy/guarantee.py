"""The guarantee: epsilon, delta, the neighbouring relation, and against whom."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sottovoce.errors import InputError
from sottovoce.privacy.relation import CHANGES, Relation

Adversary = Literal["world", "coordinator", "parties"]
Unit = Literal["record", "feature"]

VIEWS: Mapping[Adversary, str] = {
    "world": "anyone who sees the final model",
    "coordinator": "the coordinator, who sees every message and who sent it",
    "parties": "all other parties together, who see every broadcast and know their own data and noise",
}


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of one record against one adversary.

    For every set S of outcomes and every two data sets that differ in one record as `relation` says,
    Pr[view in S] <= e^epsilon Pr'[view in S] + delta. Edges: epsilon = inf promises nothing; a void guarantee
    (noise from a known seed) promises nothing either, whatever its numbers. With `unit="feature"` the data sets differ
    in one column of one party instead, and nothing is promised to a person.
    """

    epsilon: float
    delta: float
    relation: Relation
    adversary: Adversary
    claimed_epsilon: float | None = None
    void: str | None = None
    unit: Unit = "record"

    def sentence(self) -> str:
        """The promise in plain words."""
        view = VIEWS[self.adversary]
        if self.void is not None:
            return f"Against {view}: NO PROMISE. {self.void}"
        if math.isinf(self.epsilon):
            text = f"Against {view}: NO PROMISE. Nothing limits what the view reveals of a record."
        else:
            about, changed = ("a person", f"that person's record {CHANGES[self.relation]}")
            if self.unit == "feature":
                about, changed = ("a feature of one party", "that feature's column had been blank or any other")
            text = (
                f"Against {view}: whatever is concluded about {about} would have been concluded almost as likely if "
                f"{changed}: no probability changes by more than a factor "
                f"{math.exp(self.epsilon):.4g} (epsilon = {self.epsilon:.4g}), but for events of probability at most "
                f"{self.delta:.3g} (delta)."
            )
        if self.unit == "feature":
            text += " NO PROMISE is made to a person: records are not protected."
        if self.claimed_epsilon is not None:
            text += f" The published formula claims epsilon = {self.claimed_epsilon:.4g}."
        return text


@dataclass(frozen=True)
class PrivacyReport:
    """What a fit promises, against each adversary, and what that rests on."""

    world: Guarantee
    coordinator: Guarantee
    parties: Guarantee
    assumptions: tuple[str, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict)

    def against(self, adversary: Adversary) -> Guarantee:
        """The guarantee against the world, the coordinator or the parties."""
        if adversary not in VIEWS:
            raise InputError(f"adversary={adversary!r} must be one of {', '.join(VIEWS)}.")
        guarantee: Guarantee = getattr(self, adversary)
        return guarantee

    @property
    def weakest(self) -> Guarantee:
        """The guarantee that holds against all three; a void one is weaker than any number."""
        each = (self.world, self.coordinator, self.parties)
        return max(each, key=lambda guarantee: (guarantee.void is not None, guarantee.epsilon))

    @property
    def epsilon(self) -> float:
        """Of the weakest guarantee."""
        return self.weakest.epsilon

    @property
    def delta(self) -> float:
        """Of the weakest guarantee."""
        return self.weakest.delta

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        return self.weakest.relation

    @property
    def claimed_epsilon(self) -> float | None:
        """What the paper would print; only for `calibration="paper"`."""
        return self.weakest.claimed_epsilon

    def __str__(self) -> str:
        lines = [self.against(adversary).sentence() for adversary in VIEWS]
        if self.assumptions:
            lines.append("This rests on: " + "; ".join(self.assumptions) + ".")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.weakest.unit,
            "claimed_epsilon": self.claimed_epsilon,
            "against": {
                name: {**asdict(self.against(name)), "sentence": self.against(name).sentence()} for name in VIEWS
            },
            "assumptions": list(self.assumptions),
            "public": dict(self.public),
        }

    def to_json(self) -> str:
        """The report as JSON; an infinite epsilon is the text "inf"."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return "inf" if isinstance(value, float) and math.isinf(value) else value

        return json.dumps(plain(self.to_dict()), indent=2)
