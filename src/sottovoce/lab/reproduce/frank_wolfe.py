"""Private Frank-Wolfe over distributed features (Lou and Cheung 2018), and the central form that it builds on.

Neither paper has an experiment. What they claim is measured: the true epsilon beside the claimed one, the bytes that
the parties send beside the claimed growth (n epsilon)^(2/3), the excess risk beside the claimed (n epsilon)^(-2/3), the
rates of Table 1 beside runs of Algorithm 1 under each sampling, and the parameters of Table 2. Algorithm 2 is run over
four parties of ten features each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.algorithms.frank_wolfe.exact import ZETA
from sottovoce.federation.federation import Federation
from sottovoce.gate.frames import Frame, encode
from sottovoce.lab import bcfw
from sottovoce.lab.reproduce import Claim, Paper, PaperTable, Row, Setup, true_epsilon
from sottovoce.lab.theorems import frank_wolfe as theorems
from sottovoce.penalties import BoxSet, L1Ball, Product, Simplex
from sottovoce.queries.parts import leading_value, make_sketch

Array = NDArray[np.float64]

TEXTS = Paper.of("frank-wolfe")
FEATURES, PARTIES, PEOPLE = 10_000, 4, 100  # people who have a rare feature
GIVEN: dict[str, Any] = {"delta": 1e-5, "entry_bound": 1.0, "label_bound": 1.0, "radius": 1.0, "fit_intercept": False}


def sparse_truth(records: int, features: int, seed: int = 0, entries: int | None = None) -> tuple[Array, Array]:
    """Features of +-1, a truth with ten non-zeros of 0.1 (|w|_1 = 1), labels with noise of 0.1, clipped to [-1, 1].

    With `entries` only so many people have a feature.
    """
    generator = np.random.default_rng(seed)
    X = generator.choice([-1.0, 1.0], (records, features))
    if entries is not None:
        X *= generator.random(X.shape).argsort(axis=0) < entries
    truth = np.zeros(features)
    truth[generator.choice(features, 10, replace=False)] = generator.choice([-0.1, 0.1], 10)
    return X, np.clip(X @ truth + 0.1 * generator.standard_normal(records), -1, 1)


def objective(X: Array, y: Array, w: Array) -> float:
    """F, the mean of (x'w - y)^2 / 2."""
    return float(np.mean((X @ w - y) ** 2) / 2)


def optimum(X: Array, y: Array, radius: float, rounds: int = 3000) -> tuple[float, float]:
    """F(w) and a lower bound of F*, their difference the gap, by projected gradients with momentum."""
    gram, moments, constant = X.T @ X / len(y), X.T @ y / len(y), float(y @ y) / len(y) / 2
    step, ball = 1 / float(np.linalg.eigvalsh(gram)[-1]), L1Ball(radius)
    w = v = np.zeros(X.shape[1])
    value = gap = np.inf
    for t in range(rounds):
        ahead = ball.project(v - step * (gram @ v - moments))
        v, w = ahead + t / (t + 3) * (ahead - w), ahead
        if t % 50 == 0:
            slope = gram @ w - moments
            value, gap = float(w @ (slope - moments) / 2 + constant), float(w @ slope + radius * np.abs(slope).max())
            if gap < 1e-9:
                break
    return value, value - gap


def draw_people(kind: str, records: int) -> tuple[list[Any], Array]:
    """The parties' columns and the labels, of 10,000 features at four parties, each +-1 for 100 people and else 0.

    "common": of each party one feature is +-1 for everybody, a copy of one trait with a tenth of the signs turned, and
    the trait makes the labels. "rare": two rare features of each party do.
    """
    rng = np.random.default_rng([records, kind == "common"])
    width = records // PEOPLE  # one person of each hundredth, so that nobody has a feature twice
    chosen = rng.integers(width, size=(FEATURES, PEOPLE)) + width * np.arange(PEOPLE)
    signs = rng.choice([-1.0, 1.0], size=(FEATURES, PEOPLE))
    starts = np.arange(0, FEATURES * PEOPLE + 1, PEOPLE)
    X = sp.csc_matrix((signs.ravel(), chosen.ravel(), starts), shape=(records, FEATURES))
    edges = np.linspace(0, FEATURES, PARTIES + 1).astype(int)
    parts = [X[:, low:high] for low, high in itertools.pairwise(edges)]
    if kind == "rare":
        scores = np.sum([np.asarray(part[:, :2].sum(axis=1)).ravel() for part in parts], axis=0)
        return parts, np.clip(0.5 * scores + 0.1 * rng.standard_normal(records), -1, 1)
    trait = rng.choice([-1.0, 1.0], size=records)
    for place, part in enumerate(parts):
        copy = sp.csc_matrix((trait * np.where(rng.random(records) < 0.1, -1.0, 1.0))[:, None])
        parts[place] = sp.hstack([copy, part[:, 1:]], format="csc")
    return parts, np.clip(0.8 * trait + 0.1 * rng.standard_normal(records), -1, 1)


def answer_bytes(query: str, numbers: int) -> int:
    """The bytes of one answer of so many integers of 32 bits."""
    frame = Frame("answer", 0, bytes(32), 0, query, {"grid": np.zeros(0, dtype=np.int64)})
    return len(encode(frame)) + 8 * -(-numbers // 2)


def one_shot_bytes(records: int) -> int:
    """16 numbers for each person and party, and the labels."""
    return PARTIES * answer_bytes("rows", 16 * records) + answer_bytes("labels", records)


def published_bytes(records: int, epsilon: float) -> int:
    """K T (index + feature) for T = (n epsilon)^(2/3) and m = log((n epsilon)^(1/3)) / zeta^2 numbers a feature."""
    rounds = math.ceil(math.pow(records * epsilon, 2 / 3))
    size = math.ceil(math.log(math.sqrt(rounds)) / ZETA**2)
    return PARTIES * rounds * (answer_bytes("atom", 1) + answer_bytes("feature", size))


def slope(x: list[float], y: list[float]) -> float:
    """Of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def compare_frank_wolfe_epsilons(_setup: Setup) -> PaperTable:
    """The true epsilon of the printed noise: in one place, over parties of 50 rounds, and of one sketch of each row."""
    rng = np.random.default_rng(0)
    X, y = rng.choice([-1.0, 1.0], (2000, 40)), rng.uniform(-1, 1, 2000)
    rows = []
    split = {k: Federation.by_columns(np.array_split(X, k, axis=1), y) for k in (4, 10)}
    places: list[tuple[str, Any, Any]] = [
        ("in one place (Talwar et al.)", Federation.central(X, y), sv.solvers.FrankWolfe()),
        *((f"{k} parties, 50 rounds", each, sv.solvers.FrankWolfe(rounds=50)) for k, each in split.items()),
        ("4 parties, one-shot (Heinze-Deml et al.)", split[4], sv.solvers.OneShot()),
    ]
    for at, federation, solver in places:
        given = GIVEN | {"solver": solver, "calibration": "paper"}
        for claimed in (1.0, 4.0):
            true = true_epsilon(sv.PrivateLasso(claimed, **given), federation, "world")
            how = "calibration='paper', delta = 1e-5, zero-out"
            rows.append(Row(at, f"claimed {claimed:g}", claimed, true, how))
    return TEXTS.table("epsilons", rows)


def trends(rows: list[Row]) -> str:
    """Of log ours against log at, by series."""
    lines = PaperTable("", "", "", tuple(rows)).series
    found = {name: slope([float(row.at) for row in line], [row.ours for row in line]) for name, line in lines.items()}
    return ", ".join(f"{name} {each:.2f}" for name, each in found.items())


def uplink(setup: Setup) -> PaperTable:
    """Bytes from the parties: the published rule and `one-shot`, counted, and `frank-wolfe`, sent; epsilon 1."""
    sizes = setup.of((1_000, 10_000, 100_000), (1_000, 10_000))
    rows, options = [], GIVEN | {"delta": 1e-7, "solver": sv.solvers.FrankWolfe(cap=2, sketch="count")}
    for kind, records in itertools.product(("rare", "common"), sizes):
        runs = setup.of({1_000: 20, 10_000: 20, 100_000: 5}[records], 2)
        federation = Federation.by_columns(*draw_people(kind, records))
        found = []
        for seed in range(runs):
            setup.say(f"uplink, {kind}: {records:,} people, run {seed + 1} of {runs}")
            model = sv.PrivateLasso(1.0, **options, insecure_seed=seed).fit(federation)
            found.append(sum(model.communication_.uplink.values()))
        how, printed = f"cap=2, sketch='count', delta = 1e-7, mean of {runs} runs", published_bytes(records, 1.0)
        rows.append(Row(f"{kind} features", float(records), printed, float(np.mean(found)), how))
    rows += [Row("one-shot", float(n), None, float(one_shot_bytes(n)), "solver='one-shot', counted") for n in sizes]
    rule = slope(list(sizes), [float(published_bytes(records, 1.0)) for records in sizes])
    return TEXTS.table("uplink", rows, rule=rule, trends=trends(rows))


def mean_excess(X: Array, y: Array, data: Any, seeds: range, **options: Any) -> float:
    """The mean of F(w) - F* over runs at epsilon 1, or that of the options."""
    models = [sv.PrivateLasso(**{"epsilon": 1.0} | GIVEN | options, insecure_seed=seed) for seed in seeds]
    return float(np.mean([objective(X, y, model.fit(*data).coef_) for model in models])) - optimum(X, y, 1.0)[1]


def measure_frank_wolfe_excess(setup: Setup) -> PaperTable:
    """F(w) - F* in one place against n: the form as printed, and `frank-wolfe`; epsilon 1."""
    forms, rows = {"as printed (Talwar et al.)": "paper", "frank-wolfe": "tight"}, []
    for name, records in itertools.product(forms, setup.of((2_000, 8_000, 32_000), (500, 2_000))):
        runs = setup.of(2 if forms[name] == "paper" else 5, 1)  # the printed number of rounds is large
        setup.say(f"excess, {records:,} people: {name}, {runs} runs")
        X, y = sparse_truth(records, 200)
        options = {"solver": "frank-wolfe", "calibration": forms[name]}
        found = mean_excess(X, y, (X, y), range(1000, 1000 + runs), **options)
        how = f"calibration={forms[name]!r}, 200 features, radius 1, mean of {runs} runs"
        rows.append(Row(name, float(records), None, found, how))
    return TEXTS.table("excess", rows, trends=trends(rows))


QUIET = 1e6  # an epsilon that stands for no noise


def column_excess(data: tuple[Array, Array], runs: int, epsilon: float = 1.0, candidates: int | None = None) -> float:
    """F(w) - F* over four parties of ten features: of Algorithm 2 with T = n^(2/3), or of `frank-wolfe`."""
    X, y = data
    options: dict[str, Any] = {"epsilon": epsilon, "solver": sv.solvers.FrankWolfe()}
    if candidates is not None:
        solver = sv.solvers.FrankWolfe(rounds=math.ceil(len(y) ** (2 / 3)), candidates=candidates)
        options |= {"solver": solver, "calibration": "paper"}
    return mean_excess(X, y, (Federation.by_columns(np.split(X, PARTIES, axis=1), y),), range(runs), **options)


def zero_excess(X: Array, y: Array) -> float:
    """F(0) - F*."""
    return objective(X, y, np.zeros(40)) - optimum(X, y, 1.0)[1]


def measure_columns_excess(setup: Setup) -> PaperTable:
    """Algorithm 2 against n, at epsilon 1 and without noise, beside `frank-wolfe` over columns and w = 0."""
    sizes, rows = setup.of((500, 2_000, 8_000), (300, 600)), []
    forms = {"as printed": (1.0, 10), "as printed, next to no noise": (QUIET, 10), "frank-wolfe": (1.0, None)}
    for name, (epsilon, candidates) in forms.items():
        for records in sizes:
            setup.say(f"columns, {records:,} people: {name}")
            runs = setup.of(3 if records < 8_000 else 1, 1)
            how = f"epsilon {epsilon:g}, {'T = n^(2/3), ' if candidates else ''}mean of {runs} runs"
            rows.append(
                Row(
                    name, float(records), None, column_excess(sparse_truth(records, 40), runs, epsilon, candidates), how
                )
            )
    still = [
        Row("w = 0", float(records), None, zero_excess(*sparse_truth(records, 40)), "no data") for records in sizes
    ]
    return TEXTS.table("columns", [*rows, *still], trends=trends(rows))


def measure_candidates(setup: Setup) -> PaperTable:
    """Remark 1: Algorithm 2 against the sampling rate p = K tau / d."""
    records, runs, taus = setup.of(500, 300), setup.of(4, 1), setup.of((1, 2, 5, 10), (2, 10))
    rows = []
    for name, epsilon in (("epsilon 1", 1.0), ("next to no noise", QUIET)):
        found = [column_excess(sparse_truth(records, 40), runs, epsilon, tau) for tau in taus]
        how = f"calibration='paper', {records:,} people, mean of {runs} runs"
        rows += [Row(name, tau / 10, None, each, how) for tau, each in zip(taus, found, strict=True)]
    return TEXTS.table("candidates", rows, trends=trends(rows))


def gradient_errors(records: int, seed: int = 0) -> tuple[dict[str, float], theorems.Sparse]:
    """max_j |grad_j error| of eq. 13 in the last round at epsilon 1, by how features are shared, and the problem.

    q is that of ten features of weight 0.1; the noise of a feature is drawn for each of the ten.
    """
    X, _ = sparse_truth(records, 40, seed)
    size = math.ceil(theorems.sketch_size(records, 1.0, ZETA))
    # That of the published form.
    sketch = make_sketch("gaussian", size, records, np.random.default_rng([size, records]))
    rounds, curvature = math.ceil(records ** (2 / 3)), 4 * float((X**2).mean(axis=0).max())
    about = (PARTIES, 10, 1.0, records, 2.0, curvature, leading_value(size, records), 1.0, 1e-5)
    problem = theorems.Sparse(records, 40, *about)
    noise, w = problem.feature_noise(rounds), np.where(np.arange(40) < 10, 0.1, 0.0)
    rng, length = np.random.default_rng([seed, 1]), float(np.linalg.norm(w))
    exact, drawn = X @ w, length * rng.standard_normal(records)
    sketched, short = sketch.apply(exact), drawn[:size]
    shared = {
        "sketched, the printed noise": sketch.back(sketched + noise * short),
        "sketched, noise for one column of J": sketch.back(sketched + sketch.norm * noise / problem.leading * short),
        "not sketched": exact + noise / problem.leading * drawn,
    }
    return {name: float(np.abs(X.T @ (q - exact)).max() / records) for name, q in shared.items()}, problem


def mean_errors(sizes: tuple[int, ...], runs: int) -> dict[str, list[float]]:
    """Of each size, by how features are shared."""
    found = [[gradient_errors(n, seed)[0] for seed in range(runs)] for n in sizes]
    return {name: [float(np.mean([one[name] for one in each])) for each in found] for name in found[0][0]}


def compare_sketches(setup: Setup) -> PaperTable:
    """What the sketch does to the inexactness of the gradient: claimed log(n) / n with it, sqrt(n) / n without."""
    sizes, how = setup.of((1_000, 4_000, 16_000), (1_000, 4_000)), "drawn, four parties, T = n^(2/3), epsilon 1"
    means = mean_errors(sizes, setup.of(5, 2)).items()
    rows = [Row(name, float(n), None, m, how) for name, line in means for n, m in zip(sizes, line, strict=True)]
    return TEXTS.table("sketch", rows, trends=trends(rows))


def worst_case(size: int) -> tuple[bcfw.Composite, Product, Array]:
    """sum_i |x_i - c_i|^2 / 2 + 0.15 |sum_i (x_i - c_i)|^2 over eight simplices: Frank-Wolfe's worst case, least 0."""
    radii, n, one = np.linspace(1.0, 1.3, 8), 9 * size, sp.eye_array(size)
    A: Any = math.sqrt(n) * sp.vstack([sp.eye_array(8 * size), math.sqrt(0.3) * sp.kron(np.ones((1, 8)), one)])
    M = Product(tuple(Simplex(float(r)) for r in radii), (size,) * 8)
    f = bcfw.least_squares(A, A @ np.repeat(radii / size, size))
    return f, M, np.concatenate([r * np.eye(size)[i] for i, r in enumerate(radii)])


def compare_samplings(setup: Setup) -> PaperTable:
    """f(x_t) - min f of Algorithm 1 over passes, beside the bound of Theorem 1 (ours in Table 1)."""
    f, M, start = worst_case(setup.of(200, 40))
    passes, rows = np.array([1, 2, 4, 8, 16, 30]), []
    samplings: dict[str, bcfw.Sampling] = {
        "elementary": bcfw.Elementary(8),
        "uniform serial": bcfw.UniformSerial(8),
        "4-nice": bcfw.Nice(8, 4),
        "(4, 1)-distributed": bcfw.Distributed(8, users=4, tau=1),
        "arbitrary: importance, serial": bcfw.SerialImportance(np.linspace(1.0, 1.3, 8)),
    }
    for name, sampling in samplings.items():
        looks, runs = np.round(passes / sampling.smallest).astype(int), 1 if name == "elementary" else setup.of(10, 3)
        given: dict[str, Any] = {"rounds": int(looks[-1]), "start": start, "every": 1, "gaps": False}
        found = [bcfw.solve(f, M, sampling, generator=seed, **given).trace.values[looks] for seed in range(runs)]
        C = bcfw.curvature_bound(f, M, sampling)
        bounds = [float(bcfw.theorem_bound(t, f.value(start), C, sampling.smallest)) for t in looks]
        how = f"lab.bcfw, eight coupled simplices, mean of {runs} runs"
        measured = zip(passes, bounds, np.mean(found, axis=0), strict=True)
        rows += [Row(name, float(place), bound, float(mean), how) for place, bound, mean in measured]
    return TEXTS.table("samplings", rows)


def small_balls() -> tuple[bcfw.Composite, Product]:
    """Least squares over six l1 balls in the plane: few corners, so that all curvatures are exact."""
    A = np.random.default_rng(6).standard_normal((20, 12)) + 0.3
    return bcfw.least_squares(A, A @ np.ones(12)), Product((L1Ball(1.0),) * 6, (2,) * 6)


def compare_rates(_setup: Setup) -> PaperTable:
    """Table 1 at t = 60: the existing rate beside that of Theorem 1, for least squares over six l1 balls."""
    f, M = small_balls()
    h, t, exact = f.value(np.zeros(12)), 60, bcfw.exact_curvature
    product = float(bcfw.block_curvatures(f, M).sum())
    rows = []
    for name, sampling, existing in (
        ("elementary", bcfw.Elementary(6), theorems.elementary_rate(t, exact(f, M, bcfw.Elementary(6)))),
        ("uniform serial", bcfw.UniformSerial(6), theorems.serial_rate(t, h, product, 6)),
        ("3-nice", bcfw.Nice(6, 3), theorems.nice_rate(t, h, bcfw.expected_set_curvature(f, M, 3), 6, 3)),
        ("(3, 1)-distributed", bcfw.Distributed(6, users=3, tau=1), None),
        ("arbitrary: independent coins", bcfw.IndependentImportance(np.linspace(0.3, 0.8, 6)), None),
    ):
        C, p = exact(f, M, sampling), sampling.smallest
        how = f"p_min = {p:.3g}, C = {C:.4g}"
        rows.append(Row("", name, existing, float(bcfw.theorem_bound(t, h, C, p)), how))
    return TEXTS.table("rates", rows, h=h)


def measure_parameters(setup: Setup) -> PaperTable:
    """Table 2 with the constant 1, beside what is drawn in the last round of Algorithm 2: dense features of +-1."""
    records = setup.of(8_000, 2_000)
    rounds = math.ceil(records ** (2 / 3))
    errors, problem = gradient_errors(records)
    allowed, b = problem.tolerance(rounds), problem.index_noise(rounds)
    noise = np.random.default_rng(2).laplace(scale=b, size=(4_000, 20))  # a party's ten columns, up and down
    short = float(np.mean(noise.max(axis=1)))
    how = f"drawn, {records:,} people, four parties of ten columns, T = n^(2/3), epsilon 1"
    found = {
        "rho_g": (problem.gradient_inexactness(rounds), errors["sketched, the printed noise"] / allowed, how),
        "rho_l": (problem.oracle_inexactness(rounds), short / allowed, how),
        "m": (theorems.sketch_size(records, 1.0, ZETA), math.ceil(math.log(math.sqrt(rounds)) / ZETA**2), "used"),
        "T": (problem.rounds(), rounds, "used"),
    }
    constants = {"C": problem.curvature, "C_g": problem.gradient_constant(), "C_l": problem.oracle_constant()}
    zero = float(np.mean(sparse_truth(records, 40)[1] ** 2)) / 2
    rows = (Row("", name, *numbers) for name, numbers in found.items())
    return TEXTS.table("parameters", rows, **constants, excess=problem.excess(), zero=zero)


def _judge_curvatures(_setup: Setup) -> Iterator[Claim]:
    (f, M), nice, spread = small_balls(), bcfw.Nice(6, 3), bcfw.Distributed(6, 2, 2)
    single, C, mixed = (bcfw.exact_curvature(f, M, s) for s in (bcfw.UniformSerial(6), nice, spread))
    product, sets = float(bcfw.block_curvatures(f, M).sum()) / 6, bcfw.expected_set_curvature(f, M, 3)
    eso, third, fourth = bcfw.eso_bound(f, M, nice), bcfw.nice_bound(f, M, nice), bcfw.distributed_bound(f, M, spread)
    yield TEXTS.claim("proposition 1", eso >= C, C=C, bound=eso)
    every, C_f = bcfw.exact_curvature(f, M, bcfw.Elementary(6)), bcfw.set_curvature(f, M, range(6))
    holds = math.isclose(every, C_f) and product >= (1 - 1e-12) * single and sets >= C
    yield TEXTS.claim("proposition 2", holds, all=(every, C_f), one=(single, product), some=(C, sets))
    yield TEXTS.claim("proposition 3", third >= C, C=C, bound=third)
    yield TEXTS.claim("proposition 4", mixed <= fourth, C=mixed, bound=fourth)


def _judge_theorem_1(setup: Setup) -> Iterator[Claim]:
    loose = min(row.published / row.ours for row in compare_samplings(setup).rows if row.published)
    yield TEXTS.claim("theorem 1", loose >= 1, loose=loose)
    gap, bound, ours = wide_blocks()
    yield TEXTS.claim("theorem 1, inexact", gap <= bound, gap=gap, bound=bound, ours=ours)
    f, M = small_balls()
    h, C = f.value(np.zeros(12)), bcfw.exact_curvature(f, M, bcfw.Elementary(6))
    yield TEXTS.claim("elementary", None, both=h + C, C=C)
    left, bound = (1 - 10 / 100) ** 18, theorems.nice_rate(18, 1.0, 0.0, 100, 10)
    yield TEXTS.claim("tau-nice", left <= bound, left=left, bound=bound)


def _judge_privacy(_setup: Setup) -> Iterator[Claim]:
    """At delta = 1e-5, zero-out, 50 rounds."""
    central, _, four, _, ten, _, once, _ = (row.ours for row in compare_frank_wolfe_epsilons(Setup()).rows)
    yield TEXTS.claim("one sketch", once <= 1, true=once)
    yield TEXTS.claim("central", central <= 1, true=central)
    canary = theorems.choices_epsilon(2 * 1.0 / 10 * math.sqrt(32 * 50 * math.log(2e5)), 10 * 50, 1e-5)
    yield TEXTS.claim("theorem 2", canary <= 1, four=four, ten=ten, canary=canary)


def _judge_excess(_setup: Setup) -> Iterator[Claim]:
    (sketched,), _, (plain,) = mean_errors((4_000,), 5).values()
    yield TEXTS.claim("sketch", sketched < plain, more=sketched / plain)
    ball, inner = limits()
    size, epsilon = math.ceil(theorems.sketch_size(2_000, 1e12, ZETA)), 1e12
    known = (PARTIES, 10, 1.0, 2_000, 2.0, 4.0, leading_value(size, 2_000), epsilon, 1e-5)
    limit = theorems.Sparse(2_000, 40, *known).excess()
    yield TEXTS.claim("theorem 3", inner - ball <= limit, inner=inner, ball=ball, epsilon=epsilon, limit=limit)
    dense = [sparse_truth(n, 40) for n in (250, 1_000)]
    few, many = (column_excess(each, 3, 1.0, 10) / zero_excess(*each) for each in dense)
    yield TEXTS.claim("remark 1, n", many <= 0.7 * few, few=few, many=many)
    thin = [sparse_truth(n, 40, entries=100) for n in (250, 4_000)]
    rare, zero = [column_excess(each, 3, 1.0, 10) for each in thin], [zero_excess(*each) for each in thin]
    leading = {n: leading_value(math.ceil(theorems.sketch_size(n, 1.0, ZETA)), n) for n in (250, 4_000)}
    about = (PARTIES, 10, 1.0, 100, 2.0, 4.0)
    eq = [theorems.Sparse(n, 40, *about, s, 1.0, 1e-5).excess() for n, s in leading.items()]
    yield TEXTS.claim("remark 1, n, sparse", rare[1] <= rare[0] * 16 ** (-2 / 3), rare=rare, zero=zero, eq=eq)
    some, all_ = (column_excess(sparse_truth(300, 40), 1, QUIET, tau) for tau in (2, 10))
    yield TEXTS.claim("remark 1, p", some <= 25 * all_, some=some, all=all_)


def _judge_uplink(_setup: Setup) -> Iterator[Claim]:
    numbers = [theorems.uplink_numbers(n, 1.0, PARTIES, ZETA) for n in (10_000, 1_000_000)]
    shares = [a / theorems.one_shot_numbers(n, 64) for a, n in zip(numbers, (10_000, 1_000_000), strict=True)]
    grows = slope([1e4, 1e6], numbers)
    yield TEXTS.claim("corollary 1", abs(grows - 2 / 3) < 0.1, grows=grows)
    yield TEXTS.claim("remark 2", shares[1] < shares[0] < 1, shares=shares)


def wide_blocks() -> tuple[float, float, float]:
    """The gap after 390 rounds, and Theorem 1's bound with the printed rho and with ours.

    f is sum_i x_i / 400 on 25 intervals [0, 20], but for a curvature of 1e-8; a gradient is turned while it may be.
    """
    d, width, t = 25, 20.0, 390
    f, M = bcfw.least_squares(np.full((1, d), 1e-4 / 400), [-1e4]), Product((BoxSet(0.0, width),) * d, (1,) * d)
    errors = bcfw.Inexact(1.0, lambda _, g, most: g - min(most, 2 * float(g[0])), rho_gradient=1.0)
    found = bcfw.solve(f, M, bcfw.Elementary(d), rounds=t, start=np.full(d, width), inexact=errors, gaps=False)
    rhos, h = (theorems.printed_rho(M.diameter(d), d, 1.0, 0.0), errors.rho(M, bcfw.Elementary(d))), d * width / 400
    printed, ours = (float(bcfw.theorem_bound(t, h, 1.0, 1.0, rho)) for rho in rhos)
    return found.value - f.value(np.zeros(d)), printed, ours


def limits() -> tuple[float, float]:
    """The least F on the ball, and a lower bound on the product of four balls, if one party's feature makes y."""
    X, _ = sparse_truth(2_000, 40)
    y = 0.8 * X[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(2_000)
    M = Product((L1Ball(0.25),) * PARTIES, (10,) * PARTIES)
    inner = bcfw.solve(bcfw.least_squares(X, y), M, bcfw.Elementary(PARTIES), rounds=300, step="line-search")
    return optimum(X, y, 1.0)[0], inner.value - inner.gap


PAPER = Paper(
    TEXTS.told,
    {
        "epsilons": compare_frank_wolfe_epsilons,
        "uplink": uplink,
        "excess": measure_frank_wolfe_excess,
        "columns": measure_columns_excess,
        "candidates": measure_candidates,
        "sketch": compare_sketches,
        "rates": compare_rates,
        "samplings": compare_samplings,
        "parameters": measure_parameters,
    },
    (_judge_curvatures, _judge_theorem_1, _judge_privacy, _judge_excess, _judge_uplink),
)
