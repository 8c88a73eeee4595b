"""The guarantee: epsilon, delta, the neighbouring relation, and against whom."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeVar, get_type_hints

from sottovoce.errors import InputError
from sottovoce.privacy.relation import CHANGES, Relation

Adversary = Literal["world", "coordinator", "parties"]
Unit = Literal["record", "feature"]
_Form = TypeVar("_Form")
_LARGEST_EXPONENT: Final = 700.0  # of which a float still holds the exponential

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

    A `computational` guarantee holds against who cannot break encryption, as long as what it `assumes` is so; what
    happens otherwise is in `if_broken`, and both are in its sentence, always. `view` says who the adversary is where
    that is not all of `VIEWS`; an adversary that `knows_part` has its own columns of every record, and the promise is
    about the rest of it.
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
    assumes: tuple[str, ...] = ()
    computational: bool = False
    if_broken: str = ""
    view: str = ""
    knows_part: bool = False

    def __post_init__(self) -> None:
        if self.computational != bool(self.assumes) or self.computational != bool(self.if_broken):
            raise InputError(
                f"computational={self.computational!r}: a guarantee that encryption carries names what it assumes, and "
                "what happens if that does not hold (if_broken); any other guarantee has neither."
            )

    @property
    def mark(self) -> str:
        """What stands beside a number of this guarantee where there is no room for its sentence; "" if noise is all."""
        return f"rests on secure sums: {self.assumes[0]}" if self.computational else ""

    @property
    def promises(self) -> bool:
        """Whether anything is limited at all."""
        return self.void is None and math.isfinite(self.epsilon)

    def detected(self, false_alarms: float) -> float:
        """The most that a test with these false alarms, one of `FALSE_ALARMS`, can detect: 1 - f."""
        return 1 - dict(self.trade_off)[false_alarms]

    def sentence(self) -> str:
        """The promise in plain words."""
        view = self.view or VIEWS[self.adversary]
        if self.result == "evaluation":
            view = view.replace("the final model", "the evaluation")
        if self.void is not None:
            return f"Against {view}: NO PROMISE. {self.void}"
        if math.isinf(self.epsilon):
            text = f"Against {view}: NO PROMISE. Nothing limits what the view reveals of a record."
        else:
            about, changed = ("a person", f"that person's record {CHANGES[self.relation]}")
            if self.knows_part:
                changed = f"the rest of {changed}"
            if self.unit == "feature":
                about, changed = ("a feature of one party", "that feature's column had been blank or any other")
            text = (
                f"Against {view}: whatever is concluded about {about}, the chance of concluding it is at most "
                f"{as_power(self.epsilon)} times (epsilon = {self.epsilon:.4g}) the chance if {changed}, plus "
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
        if self.computational and math.isfinite(self.epsilon):
            conditions = "; if ".join(self.assumes)
            text += (
                f" This holds against anybody who cannot break the encryption, and if {conditions}. {self.if_broken}"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; the trade-off by the rate of false alarms."""
        optional = ("assumes", "computational", "if_broken", "view", "knows_part")
        return {
            **{name: value for name, value in asdict(self).items() if value or name not in optional},
            "trade_off": {f"{false_alarms:g}": missed for false_alarms, missed in self.trade_off},
            "sentence": self.sentence(),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Guarantee:
        """The guarantee that `to_dict` wrote; an infinite epsilon may be the text "inf"."""
        fields = {key: value for key, value in said.items() if key != "sentence"}
        curve = tuple((float(false_alarms), missed) for false_alarms, missed in said["trade_off"].items())
        assumes, epsilon = tuple(said.get("assumes", ())), _read_number(said["epsilon"])
        made = _check_types(cls(**{**fields, "epsilon": epsilon, "trade_off": curve, "assumes": assumes}))
        if not (made.epsilon >= 0 and 0 <= made.delta <= 1 and all(0 <= missed <= 1 for _, missed in curve)):
            raise ValueError("a guarantee has epsilon from 0 on, and delta and a trade-off between 0 and 1")
        if curve and tuple(false_alarms for false_alarms, _ in curve) != FALSE_ALARMS:
            raise ValueError("a trade-off is of the rates of false alarms of this version")
        return made


def as_power(epsilon: float) -> str:
    """e^epsilon in few digits; as a power where no float holds it."""
    return f"{math.exp(epsilon):.4g}" if epsilon <= _LARGEST_EXPONENT else f"e^{epsilon:.4g}"


def _read_number(said: Any) -> Any:
    """An infinite number may be a text."""
    return math.inf if said == "inf" else said


def _check_types(made: _Form) -> _Form:
    """What was made of a file, if each field is of the type that it is declared with; else a ValueError."""
    form: Any = type(made)
    for name, adapter in _adapters(form).items():
        adapter.validate_python(getattr(made, name), strict=True)
    return made


@functools.cache
def _adapters(form: type) -> dict[str, Any]:
    from pydantic import TypeAdapter  # slow to import, and who reads no report does without

    return {name: TypeAdapter(kind) for name, kind in get_type_hints(form).items()}


def percent(share: float) -> str:
    """A share in percent, rounded up in its last digit: it is a bound."""
    digits = 1 if share >= 0.01 else 2
    return f"{math.ceil(100 * share * 10**digits - 1e-9) / 10**digits:g}%"


@dataclass(frozen=True)
class PrivacyReport:
    """What a fit promises, against each adversary, and what that rests on.

    Of secure sums: `colluding` has the epsilon against those who collude, by name, `noise` the noise of a sum over that
    of data in one place, and `left` who left the run and when.
    """

    world: Guarantee
    coordinator: Guarantee
    parties: Guarantee
    assumptions: tuple[str, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict)
    colluding: Mapping[str, float] = field(default_factory=dict)
    noise: float | None = None
    left: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.colluding and not all(self.against(adversary).computational for adversary in VIEWS):
            raise InputError("collusion: a report of secure sums has guarantees that name what they assume (assumes).")

    def against(self, adversary: Adversary) -> Guarantee:
        """The guarantee against the world, the coordinator or the parties."""
        if adversary not in VIEWS:
            raise InputError(f"adversary={adversary!r} must be one of {', '.join(VIEWS)}.")
        guarantee: Guarantee = getattr(self, adversary)
        return guarantee

    def views(self, *, several: bool) -> list[Guarantee]:
        """Against whoever sees something: with all data in one place nobody sees messages, and there is the world."""
        return [self.against(view) for view in VIEWS] if several else [self.world]

    @property
    def weakest(self) -> Guarantee:
        """The guarantee that holds against all three; a void one is weaker than any number.

        Of two with one epsilon the computational one is weaker.
        """
        each = (self.world, self.coordinator, self.parties)
        return max(each, key=lambda each: (each.void is not None, each.epsilon, each.computational))

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

    def remarks(self) -> tuple[str, ...]:
        """What a report of secure sums says besides its sentences, a line each: the curve, the noise, who left."""
        lines = []
        if self.colluding:
            lines.append("Epsilon against those who collude: " + "; ".join(self._curve()) + ".")
        if self.noise is not None:
            lines.append(f"Noise of a sum over that of data in one place: {self.noise:.3g}.")
        if self.left:
            lines.append("Left the run: " + "; ".join(f"{party} ({when})" for party, when in self.left) + ".")
        return tuple(lines)

    def _curve(self) -> Iterable[str]:
        """A few points of the curve: one party, half of them, all but one."""
        kinds: dict[str, list[str]] = {}
        for name in self.colluding:
            if re.search("part(y|ies)$", name):
                kinds.setdefault(re.sub("[0-9]+ part(y|ies)$", "", name), []).append(name)
        for names in kinds.values():
            for place in sorted({0, (len(names) - 1) // 2, len(names) - 1}):
                epsilon = self.colluding[names[place]]
                yield f"{names[place]} {'infinite (in the clear)' if math.isinf(epsilon) else f'{epsilon:.4g}'}"

    def __str__(self) -> str:
        lines = [self.against(adversary).sentence() for adversary in VIEWS]
        lines += self.remarks() if self.weakest.void is None else ()
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
            **({"colluding": dict(self.colluding), "noise": self.noise} if self.colluding else {}),
            **({"left": [list(each) for each in self.left]} if self.left else {}),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> PrivacyReport:
        """The report that `to_dict` wrote; an infinite epsilon may be the text "inf"."""
        made = cls(
            **{name: Guarantee.from_dict(said["against"][name]) for name in VIEWS},
            assumptions=tuple(said["assumptions"]),
            public=said["public"],
            colluding={name: _read_number(epsilon) for name, epsilon in said.get("colluding", {}).items()},
            noise=said.get("noise"),
            left=tuple(map(tuple, said.get("left", ()))),
        )
        return _check_types(made)

    def to_json(self) -> str:
        """The report as JSON; an infinite epsilon is the text "inf"."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return "inf" if isinstance(value, float) and math.isinf(value) else value

        return json.dumps(plain(self.to_dict()), indent=2)
