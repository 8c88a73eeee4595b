"""The guarantee: epsilon, delta, the neighbouring relation, and against whom; and the trade-off that it is part of."""

from __future__ import annotations

import bisect
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeVar, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr, ndtri

from sottovoce.errors import InputError
from sottovoce.notebooks import html_table
from sottovoce.numerals import number_text, promise_text
from sottovoce.privacy.accounting import epsilon_of, gaussian_epsilon, gaussian_mu
from sottovoce.privacy.attack import Attack
from sottovoce.privacy.events import CHANGES, Event, Relation, inside

Array = NDArray[np.float64]

Adversary = Literal["world", "coordinator", "parties"]
Unit = Literal["record", "feature", "person"]
_Form = TypeVar("_Form")
_LARGEST: Final = 700.0  # of which a float still holds the exponential

VIEWS: Mapping[Adversary, str] = {
    "world": "anyone who sees the final model",
    "coordinator": "the coordinator, who sees every message and who sent it",
    "parties": "all other parties together, who see every broadcast and know their own data and noise",
}


MOST_PEOPLE: Final = 2**31 - 1  # that a plan counts
GUESSED: Final = 0.75  # how often a guess at even chances about people who withdrew may be right
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
    in one column of one party instead, and nothing is promised to a person; with `unit="person"` in all records of one
    person, of whom the declared most count.

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
    result: Literal["model", "evaluation", "description"] = "model"  # what the world sees
    assumes: tuple[str, ...] = ()
    computational: bool = False
    if_broken: str = ""
    view: str = ""
    knows_part: bool = False
    gaussian: bool = False  # whether all releases are sums with Gaussian noise, of all records

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

    @functools.cached_property
    def mu(self) -> float | None:
        """The mu whose Gaussian trade-off this is, as nearly as a sampler comes; None where releases were not Gaussian.

        A curve of sampled releases may be near a Gaussian one and have other tails: its shape alone decides nothing.
        """
        if not self.gaussian:
            return None
        curve = np.array(self.trade_off).reshape(-1, 2)
        curve = curve[(curve.min(axis=1) > 0) & (curve.max(axis=1) < 1)]
        if not len(curve):
            return None
        middle = curve[np.argmin(np.abs(curve[:, 1] - 0.5))]
        mu = max(float(ndtri(1 - middle[0]) - ndtri(middle[1])), 0.0)
        return mu if np.all(np.abs(gaussian_missed(mu, curve[:, 0]) - curve[:, 1]) <= self.delta + 1e-9) else None

    def of_group(self, people: int) -> tuple[float, float]:
        """(epsilon, delta) of so many people's records together, each of them changed as the relation says.

        Guarantee: what is mu-GDP for one record is (k mu)-GDP for k, as every sensitivity grows k-fold at most. Where
        the curve is no Gaussian one: k epsilon and delta (e^(k epsilon) - 1) / (e^epsilon - 1). Proofs:
        ``proofs/accounting.md``, section 9.
        """
        if self.mu is not None:
            return _epsilon_of_mu(people * self.mu, inside(self.delta)), self.delta
        epsilon = people * self.epsilon
        if epsilon > _LARGEST or self.epsilon == 0:
            return epsilon, min(people * self.delta, 1.0) if self.epsilon == 0 else 1.0
        return epsilon, min(self.delta * math.expm1(epsilon) / math.expm1(self.epsilon), 1.0)

    def guessed(self, people: int) -> float:
        """How often a guess at even chances whether a group's records were used is right, at most."""
        if self.mu is not None:
            return min(float(ndtr(people * self.mu / 2)) + self.delta, 1.0)
        epsilon, delta = self.of_group(people)
        return min(float(expit(epsilon)) + delta, 1.0)

    @property
    def withdrawals(self) -> int:
        """The most people for whom such a guess is right at most 3 times in 4."""
        if not self.promises or self.unit != "record":
            return 0
        return bisect.bisect_right(range(1, MOST_PEOPLE + 1), GUESSED, key=self.guessed)

    def sentence(self) -> str:
        view = self.view or VIEWS[self.adversary]
        if self.result != "model":
            view = view.replace("the final model", f"the {self.result}")
        if self.void is not None:
            return f"Against {view}: NO PROMISE. {self.void}"
        if math.isinf(self.epsilon):
            text = f"Against {view}: NO PROMISE. Nothing limits what the view reveals of a record."
        else:
            about, changed = ("a person", changed_text(self.relation, self.unit))
            if self.knows_part:
                changed = f"the rest of {changed}"
            if self.unit == "feature":
                about, changed = ("a feature of one party", "that feature's column had been blank or any other")
            text = (
                f"Against {view}: whatever is concluded about {about}, the chance of concluding it is at most "
                f"{as_power(self.epsilon)} times (epsilon = {number_text(self.epsilon)}) the chance if {changed}, "
                f"plus {number_text(self.delta)} (delta); and the same the other way round."
            )
            if self.trade_off:
                text += (
                    f" A test that tells the two apart with 1% false alarms detects at most "
                    f"{percent(self.detected(0.01))}, with 5% at most {percent(self.detected(0.05))}."
                )
        if self.unit == "feature":
            text += " NO PROMISE is made to a person: records are not protected."
        if self.claimed_epsilon is not None:
            text += f" The published formula claims epsilon = {number_text(self.claimed_epsilon)}."
        if self.computational and math.isfinite(self.epsilon):
            conditions = "; if ".join(self.assumes)
            text += (
                f" This holds against anybody who cannot break the encryption, and if {conditions}. {self.if_broken}"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; the trade-off by the rate of false alarms."""
        said = asdict(self)
        for optional in ("assumes", "computational", "if_broken", "view", "knows_part", "gaussian"):
            if not said[optional]:
                del said[optional]
        curve = dict(self.trade_off)
        said["trade_off"] = dict(zip(map("{:g}".format, curve), curve.values(), strict=True))
        return said | {"sentence": self.sentence()}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Guarantee:
        """The guarantee that `to_dict` wrote; an infinite epsilon may be the text "inf"."""
        fields = {key: value for key, value in said.items() if key != "sentence"}
        curve = tuple((float(false_alarms), missed) for false_alarms, missed in said["trade_off"].items())
        assumes, epsilon = tuple(said.get("assumes", ())), math.inf if said["epsilon"] == "inf" else said["epsilon"]
        made = _check_types(cls(**{**fields, "epsilon": epsilon, "trade_off": curve, "assumes": assumes}))
        if not (made.epsilon >= 0 and 0 <= made.delta <= 1 and all(0 <= missed <= 1 for _, missed in curve)):
            raise ValueError("a guarantee has epsilon from 0 on, and delta and a trade-off between 0 and 1")
        if curve and tuple(false_alarms for false_alarms, _ in curve) != FALSE_ALARMS:
            raise ValueError("a trade-off is of the rates of false alarms of this version")
        return made


def changed_text(relation: Relation, unit: Unit) -> str:
    """What became of a person's data in the neighbouring data set."""
    if unit == "person":
        return f"all records of that person {CHANGES[relation].replace('other record', 'other records')}"
    return f"that person's record {CHANGES[relation]}"


def as_power(epsilon: float) -> str:
    """e^epsilon in few digits; as a power where no float holds it."""
    return f"{math.exp(epsilon):.4g}" if epsilon <= _LARGEST else f"e^{epsilon:.4g}"


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


@dataclass(frozen=True, repr=False)
class PrivacyReport:
    """What a fit promises, against each adversary, and what that rests on.

    Of secure sums: `colluding` has the epsilon against those who collude, by name, `noise` the noise of a sum over that
    of data in one place, and `left` who left the run and when. `attack` is what `sv.audit` proved, once it was asked.
    """

    world: Guarantee
    coordinator: Guarantee
    parties: Guarantee
    assumptions: tuple[str, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict)
    colluding: Mapping[str, float] = field(default_factory=dict)
    noise: float | None = None
    left: tuple[tuple[str, str], ...] = ()
    attack: Attack | None = None

    def __post_init__(self) -> None:
        each = self.world.computational and self.coordinator.computational and self.parties.computational
        if self.colluding and not each:
            raise InputError("collusion: a report of secure sums has guarantees that name what they assume (assumes).")

    def against(self, adversary: Adversary) -> Guarantee:
        """The guarantee against the world, the coordinator or the parties."""
        if adversary not in VIEWS:
            raise InputError(f"adversary={adversary!r} must be one of {', '.join(VIEWS)}.")
        guarantee: Guarantee = getattr(self, adversary)
        return guarantee

    def views(self, *, several: bool) -> list[Guarantee]:
        """Against whoever sees something: with all data in one place nobody sees messages, and there is the world."""
        return [self.world, self.coordinator, self.parties] if several else [self.world]

    @property
    def weakest(self) -> Guarantee:
        """The guarantee that holds against all three; a void one is weaker than any number.

        Of two with one epsilon the computational one is weaker.
        """
        found = self.world
        for each in (self.coordinator, self.parties):
            strength = (found.void is not None, found.epsilon, found.computational)
            found = each if (each.void is not None, each.epsilon, each.computational) > strength else found
        return found

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
            kinds: dict[str, list[str]] = {}
            for name in self.colluding:
                if re.search("part(y|ies)$", name):
                    kinds.setdefault(re.sub("[0-9]+ part(y|ies)$", "", name), []).append(name)
            curve = []
            for names in kinds.values():  # a few points: one party, half of them, all but one
                for name in (names[place] for place in sorted({0, (len(names) - 1) // 2, len(names) - 1})):
                    epsilon = self.colluding[name]
                    curve.append(f"{name} {'infinite (in the clear)' if math.isinf(epsilon) else number_text(epsilon)}")
            lines.append("Epsilon against those who collude: " + "; ".join(curve) + ".")
        if self.noise is not None:
            lines.append(f"Noise of a sum over that of data in one place: {self.noise:.3g}.")
        if self.left:
            lines.append("Left the run: " + "; ".join(f"{party} ({when})" for party, when in self.left) + ".")
        return tuple(lines)

    def withdrawal(self) -> str:
        """What holds of people who withdraw, and from how many on the model is due to be fitted anew; "" if nothing.

        It is for anybody who sees something of the fit: of the weakest guarantee.
        """
        weakest = self.weakest
        if not weakest.promises or weakest.unit != "record" or weakest.result != "model":
            return ""
        most = min(weakest.withdrawals, self.public.get("records", weakest.withdrawals))
        if not most:
            return (
                "If people withdraw: already of one of them a guess, at even chances, whether the record was used "
                "may be right more than 3 times in 4. By that measure the model is due to be fitted anew at the first "
                "withdrawal."
            )
        epsilon, delta = weakest.of_group(most)
        whose = "one of them" if most == 1 else f"up to {most:,} of them together"
        return (
            f"If people withdraw: of {whose} a guess, at even chances, whether their records were used is right at "
            f"most 3 times in 4 (as a group: epsilon = {number_text(epsilon)}, delta = {number_text(delta)}). By that "
            "measure the model is due to be fitted anew when more have withdrawn."
        )

    def notes(self) -> tuple[str, ...]:
        """What is said under the sentences, a line each: of secure sums, of people who withdraw, of attacks."""
        attacked = self.attack.sentence(self.epsilon) if self.attack is not None else ""
        remarks = self.remarks() if self.weakest.void is None else ()
        return tuple(filter(None, (*remarks, self.withdrawal(), attacked)))

    def __str__(self) -> str:
        lines = [*(each.sentence() for each in self._views()), *self.notes()]
        if self.assumptions:
            lines.append("This rests on: " + "; ".join(self.assumptions) + ".")
        return "\n".join(lines)

    __repr__ = __str__

    def _views(self) -> list[Guarantee]:
        """With all data in one place nobody sees messages."""
        return self.views(several=self.public.get("split") != "central")

    def _repr_html_(self) -> str:
        rows = [
            (
                each.adversary,
                number_text(each.epsilon) if each.promises else "no promise",
                percent(each.detected(0.05)) if each.trade_off and each.promises else "",
                each.sentence(),
            )
            for each in self._views()
        ]
        below = f"This rests on: {'; '.join(self.assumptions)}." if self.assumptions else ""
        caption = f"{promise_text(self.epsilon, self.delta)}, {self.relation}"
        heads = ("against", "epsilon", "found at most, with 5% false alarms", "in words")
        return html_table(heads, rows, caption=caption, below=" ".join((*self.notes(), below)))

    def to_dict(self) -> dict[str, Any]:
        weakest, each = self.weakest, map(Guarantee.to_dict, self.views(several=True))
        return {
            "epsilon": weakest.epsilon,
            "delta": weakest.delta,
            "relation": weakest.relation,
            "unit": weakest.unit,
            "claimed_epsilon": weakest.claimed_epsilon,
            "against": dict(zip(VIEWS, each, strict=True)),
            "assumptions": list(self.assumptions),
            "public": dict(self.public),
            **({"colluding": dict(self.colluding), "noise": self.noise} if self.colluding else {}),
            **({"left": [list(each) for each in self.left]} if self.left else {}),
            **({} if self.attack is None else {"attack": asdict(self.attack)}),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> PrivacyReport:
        """The report that `to_dict` wrote; an infinite epsilon may be the text "inf"."""
        made = cls(
            **{name: Guarantee.from_dict(said["against"][name]) for name in VIEWS},
            assumptions=tuple(said["assumptions"]),
            public=said["public"],
            colluding={name: math.inf if e == "inf" else e for name, e in said.get("colluding", {}).items()},
            noise=said.get("noise"),
            left=tuple(map(tuple, said.get("left", ()))),
            attack=_check_types(Attack(**said["attack"])) if "attack" in said else None,
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


_epsilon_of_mu = functools.lru_cache(maxsize=64)(gaussian_epsilon)  # a page says it several times
_DELTAS = expit(np.linspace(-12.0, 12.0, 97))  # at which a curve's tangents are taken


@dataclass(frozen=True)
class Profile:
    """What a view costs as a whole: its epsilon at every delta, and its trade-off.

    An attacker tests "the record is there" against "it is not". `missed(a)` is the least share of misses of any test
    that raises a false alarm with probability a. One epsilon at one delta is a tangent of this curve; the curve is the
    whole statement. It holds for both orders of the two neighbours. Proofs: ``proofs/accounting.md``, section 9.
    """

    epsilon: Callable[[float], float]
    missed: Callable[[ArrayLike], Array]

    @classmethod
    def of(cls, epsilon: Callable[[float], float]) -> Profile:
        """The profile of an epsilon that holds at each delta; its curve is the highest of its tangents."""
        return cls(epsilon, lambda false_alarms: missed_by(epsilon, false_alarms))


@functools.lru_cache(maxsize=64)  # several adversaries see the same, and so does the next fit
def profile_of(events: tuple[Event, ...], relation: Relation) -> Profile:
    """The profile of one plan's events, fixed in advance as for `epsilon_of`; the curve is exact for Gaussians."""

    @functools.lru_cache(maxsize=2 * len(_DELTAS))
    def epsilon(delta: float) -> float:
        return epsilon_of(events, delta, relation)

    mu = gaussian_mu(events, relation)
    return Profile.of(epsilon) if mu is None else Profile(epsilon, functools.partial(gaussian_missed, mu))


def weakest(profiles: Iterable[Profile]) -> Profile:
    """What holds of each of several views: the largest epsilon, the fewest misses."""
    return _combined(profiles, max, np.min)


def strongest(*profiles: Profile) -> Profile:
    """What several statements about one view say together: the least epsilon, the most misses."""
    return _combined(profiles, min, np.max)


def _combined(profiles: Iterable[Profile], epsilon: Callable[..., float], missed: Callable[..., Array]) -> Profile:
    different = tuple(dict.fromkeys(profiles))
    if len(different) == 1:
        return different[0]
    return Profile(
        lambda delta: epsilon(map(operator.methodcaller("epsilon", delta), different)),
        lambda alarms: missed(list(map(operator.methodcaller("missed", alarms), different)), axis=0),
    )


def gaussian_missed(mu: float, false_alarms: ArrayLike) -> Array:
    """f(a) = Phi(Phi^-1(1 - a) - mu): exact for releases that are mu-GDP in total; 0 for mu = inf."""
    alarms = np.asarray(false_alarms, dtype=np.float64)
    return np.zeros_like(alarms) if mu == math.inf else np.asarray(ndtr(ndtri(1 - alarms) - mu))


def missed_by(
    epsilon: Callable[[float], float], false_alarms: ArrayLike, deltas: Iterable[float] = tuple(map(float, _DELTAS))
) -> Array:
    """f(a) >= max over deltas of 1 - delta - e^epsilon a, of e^-epsilon (1 - delta - a), and of 0.

    Guarantee: a lower bound of the misses, for any deltas. With the list here it is below the curve of a Gaussian by
    less than 0.004. An epsilon too large to say anything says nothing.
    """
    alarms = np.asarray(false_alarms, dtype=np.float64)
    said = np.array([(delta, found) for delta in deltas if (found := epsilon(delta)) <= _LARGEST]).reshape(-1, 2)
    rest, factor = 1 - said[:, 0, None], np.exp(said[:, 1, None])
    tangents = np.maximum(rest - factor * alarms.ravel(), (rest - alarms.ravel()) / factor)
    return np.asarray(tangents.max(axis=0, initial=0.0)).reshape(alarms.shape)


def with_errors(missed: Callable[[ArrayLike], Array], false_alarms: ArrayLike, error: float) -> Array:
    """The trade-off of laws that are each within `error`, in total variation, of those that `missed` is about."""
    alarms = np.minimum(np.asarray(false_alarms, dtype=np.float64) + error, 1.0)
    return np.maximum(missed(alarms) - error, 0.0)
