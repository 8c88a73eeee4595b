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


# The rates of false alarms at which a report states the trade-off.
FALSE_ALARMS: tuple[float, ...] = (
    *(0.0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 0.95, 0.99, 1.0),
)


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of one record against one adversary.

    For every set S of outcomes and every two data sets that differ in one record as `relation` says,
    Pr[view in S] <= e^epsilon Pr'[view in S] + delta. Edges: epsilon = inf promises nothing; a void guarantee
    (noise from a known seed) promises nothing either, whatever its numbers. With `unit="feature"` the data sets differ
    in one column of one party instead, and nothing is promised to a person.

    `trade_off` has pairs (a, f): every test for the record that raises a false alarm with probability a misses with
    probability f at least. It says more than epsilon and delta, which follow from the whole curve.
    """

    epsilon: float
    delta: float
    relation: Relation
    adversary: Adversary
    claimed_epsilon: float | None = None
    void: str | None = None
    unit: Unit = "record"
    trade_off: tuple[tuple[float, float], ...] = ()
    result: Literal["model", "evaluation"] = "model"  # what the world sees

    @property
    def promises(self) -> bool:
        """Whether anything is limited at all."""
        return self.void is None and math.isfinite(self.epsilon)

    def detected(self, false_alarms: float) -> float:
        """The most that a test with these false alarms, one of `FALSE_ALARMS`, can detect: 1 - f."""
        return 1 - dict(self.trade_off)[false_alarms]

    def sentence(self) -> str:
        """The promise in plain words."""
        view = VIEWS[self.adversary]
        if self.result == "evaluation":
            view = view.replace("the final model", "the evaluation")
        if self.void is not None:
            return f"Against {view}: NO PROMISE. {self.void}"
        if math.isinf(self.epsilon):
            text = f"Against {view}: NO PROMISE. Nothing limits what the view reveals of a record."
        else:
            about, changed = ("a person", f"that person's record {CHANGES[self.relation]}")
            if self.unit == "feature":
                about, changed = ("a feature of one party", "that feature's column had been blank or any other")
            text = (
                f"Against {view}: whatever is concluded about {about}, the chance of concluding it is at most "
                f"{math.exp(self.epsilon):.4g} times (epsilon = {self.epsilon:.4g}) the chance if {changed}, plus "
                f"{self.delta:.3g} (delta); and the same the other way round."
            )
            if self.trade_off:
                text += (
                    f" A test that tells the two apart with 1% false alarms detects at most "
                    f"{percent(self.detected(0.01))}, with 5% at most {percent(self.detected(0.05))}."
                )
        if self.unit == "feature":
            text += " NO PROMISE is made to a person: records are not protected."
        if self.claimed_epsilon is not None:
            text += f" The published formula claims epsilon = {self.claimed_epsilon:.4g}."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; the trade-off by the rate of false alarms."""
        return {
            **asdict(self),
            "trade_off": {f"{false_alarms:g}": missed for false_alarms, missed in self.trade_off},
            "sentence": self.sentence(),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Guarantee:
        """The guarantee that `to_dict` wrote; an infinite epsilon may be the text "inf"."""
        fields = {key: value for key, value in said.items() if key != "sentence"}
        curve = tuple((float(false_alarms), missed) for false_alarms, missed in said["trade_off"].items())
        return cls(**{**fields, "epsilon": float(said["epsilon"]), "trade_off": curve})


def percent(share: float) -> str:
    """A share in percent, rounded up in its last digit: it is a bound."""
    digits = 1 if share >= 0.01 else 2
    return f"{math.ceil(100 * share * 10**digits - 1e-9) / 10**digits:g}%"


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
            "against": {name: self.against(name).to_dict() for name in VIEWS},
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
