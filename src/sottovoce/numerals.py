"""How numbers are written where people read them: the same number alike on every page, in every text and picture."""


def number_text(value: float) -> str:
    """An epsilon, a delta or a metric: four digits."""
    return f"{value:.4g}"


def promise_text(epsilon: float, delta: float) -> str:
    """Both numbers of a promise."""
    return f"epsilon = {number_text(epsilon)}, delta = {number_text(delta)}"


def interval_text(value: float, low: float, high: float) -> str:
    """A metric with its interval."""
    return f"{number_text(value)} ({number_text(low)} to {number_text(high)})"


def count_text(count: float) -> str:
    """How many there are, also by a noisy count, which is none below 0."""
    return f"{max(count, 0.0):,.0f}"
