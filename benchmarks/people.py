"""People with several records: a person's sum cut as a whole, against one record of each and against a smaller epsilon.

    python benchmarks/people.py [repeated | informative | convergence | columns]

Points: 0 is the log-loss without privacy, 100 that of the constant, on all records of other people.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import sottovoce as sv
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import inside

DELTA, SEEDS = 1e-6, 3
Table = tuple[np.ndarray, np.ndarray, np.ndarray]


def visits(people: int, seed: int, **about: float) -> Table:
    """Half of the columns are a person's and half a record's; 1 to 60 records, a random intercept, `shift` its mean.

    With `sicker` people with more records have higher odds, beyond what the columns say.
    """
    rng, d = np.random.default_rng(seed), 12
    mean, most, shift, sicker = (about.get(name, usual) for name, usual in USUAL.items())
    counts = 1 + np.minimum(rng.negative_binomial(0.8, 0.8 / (0.8 + mean - 1), size=people), int(most) - 1)
    if mean == most:
        counts = np.full(people, int(most))
    who = np.repeat(np.arange(people), counts)
    own, each = rng.normal(size=(people, d // 2))[who], rng.normal(size=(len(who), d - d // 2))
    X = np.clip(np.hstack([own, each]), -3, 3)
    weights = np.random.default_rng(7).normal(size=d)
    frailty = 0.7 * rng.normal(size=people) + sicker * (np.log(counts) - np.log(counts).mean())
    scores = X @ weights * (1.3 / np.linalg.norm(weights)) + shift + frailty[who]
    return X, (rng.random(len(who)) < 1 / (1 + np.exp(-scores))).astype(int), who


USUAL = {"mean": 5.0, "most": 60.0, "shift": -0.8, "sicker": 0.0}


def model(epsilon: float, seed: int) -> sv.PrivateLogisticRegression:
    ranges = ([-3.0] * 12, [3.0] * 12)
    return sv.PrivateLogisticRegression(epsilon, DELTA, feature_ranges=ranges, classes=(0, 1), insecure_seed=seed)


def jointly(table: Table, epsilon: float, seed: int, most: int) -> sv.PrivateLogisticRegression:
    X, y, who = table
    return model(epsilon, seed).fit(X, y, person=who, most_records=most)


def one_record(table: Table, epsilon: float, seed: int, _most: int) -> sv.PrivateLogisticRegression:
    """One of each person, drawn at random."""
    X, y, who = table
    order = np.random.default_rng(seed).permutation(len(y))
    kept = order[np.unique(who[order], return_index=True)[1]]
    return model(epsilon, seed).fit(X[kept], y[kept])


def split(table: Table) -> sv.Federation:
    """Two parties with half of the columns each; the first knows the labels, and whose each record is."""
    X, y, who = table
    parts = np.array_split(X, 2, axis=1)
    labels = sv.labels_with(y, person=who) if len(np.unique(who)) < len(who) else y
    return sv.Federation.by_columns(parts, labels, labels="held", products="secure")


def weighed(table: Table, epsilon: float, seed: int, most: int) -> sv.PrivateLogisticRegression:
    """By secure columns: each record of a person weighs 1 / n."""
    return model(epsilon, seed).fit(split(table), most_records=most)


def one_by_columns(table: Table, epsilon: float, seed: int, _most: int) -> sv.PrivateLogisticRegression:
    """The same of one record of each person."""
    X, y, who = table
    order = np.random.default_rng(seed).permutation(len(y))
    kept = order[np.unique(who[order], return_index=True)[1]]
    return model(epsilon, seed).fit(split((X[kept], y[kept], who[kept])))


def divided(table: Table, epsilon: float, seed: int, _most: int) -> sv.PrivateLogisticRegression:
    """A record's epsilon is a person's by the largest number of records, which is taken as known."""
    X, y, who = table
    return model(epsilon / int(np.bincount(who).max()), seed).fit(X, y)


WAYS: dict[str, Callable[..., sv.PrivateLogisticRegression]] = {
    "joint": jointly,
    "one record": one_record,
    "epsilon / most": divided,
}
BY_COLUMNS = {"joint, one place": jointly, "weighed, columns": weighed, "one record, columns": one_by_columns}


def compare(name: str, people: int, cap: int, epsilons: tuple[float, ...], ways: list[str], **about: float) -> None:
    table, (X, y, _) = visits(people, 1, **about), visits(4000, 2, **about)
    counts = np.bincount(table[2])
    plain = LogisticRegression(C=1e4).fit(*table[:2])
    slopes = plain.decision_function(X)
    best, constant = log_loss(y, plain.predict_proba(X)[:, 1]), log_loss(y, np.full(len(y), table[1].mean()))
    print(
        f"{name}: {people} people, {len(table[1])} records, mean {counts.mean():.1f}, most {counts.max()}, "
        f"T = {cap}; log-loss {best:.4f} without privacy, {constant:.4f} constant"
    )
    for epsilon in epsilons:
        line = f"  epsilon {epsilon:g}, N mu {people * mu_for(epsilon, inside(DELTA)):.0f}:"
        for way in ways:
            found = [{**WAYS, **BY_COLUMNS}[way](table, epsilon, seed, cap) for seed in range(SEEDS)]
            losses = [log_loss(y, one.predict_proba(X)[:, 1]) for one in found]
            mean = np.mean([one.predict_proba(X)[:, 1].mean() for one in found]) / plain.predict_proba(X)[:, 1].mean()
            slope = np.mean([np.polyfit(slopes, one.decision_function(X), 1)[0] for one in found])
            points = 100 * (np.mean(losses) - best) / (constant - best)
            line += f"  {way} {points:.1f} points (mean {mean:.3f}, slope {slope:.2f});"
        print(line.rstrip(";"), flush=True)


def repeated() -> None:
    for people in (1000, 4000, 20_000):
        compare("repeated measures", people, 32, (1.0, 3.0), list(WAYS))
    compare("most of them cut", 4000, 8, (1.0, 3.0), ["joint"])
    compare("rare", 8000, 32, (1.0, 3.0), list(WAYS), shift=-3.5)


def informative() -> None:
    compare("sicker people come more often", 8000, 60, (0.3, 1.0, 3.0, 8.0, 30.0), ["joint"], shift=-3.0, sicker=0.8)
    compare("60 records each", 3000, 60, (1.0, 3.0, 8.0), ["joint"], mean=60.0)


def convergence() -> None:
    compare("many people, 20 records each", 80_000, 20, (1.0, 3.0), ["joint"], mean=20.0, most=20.0, shift=-3.5)
    compare("few people, 20 records each", 4000, 20, (8.0, 30.0), ["joint"], mean=20.0, most=20.0, shift=-3.5)


def columns() -> None:
    for people in (2000, 5000, 20_000):
        compare("by secure columns", people, 32, (1.0, 3.0), list(BY_COLUMNS))


PARTS = {"repeated": repeated, "informative": informative, "convergence": convergence, "columns": columns}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
