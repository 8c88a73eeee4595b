"""How far a suspicion can grow under a guarantee; the charts themselves are in the template `charts.html`."""

from __future__ import annotations

from sottovoce.privacy.guarantee import Guarantee

SIGN = 0.01  # the rate of false alarms at which the suspicions are shown
PRIORS = (0.01, 0.1, 0.25, 0.5)  # beliefs that the chart begins with


def posterior(prior: float, false_alarms: float, missed: float) -> float:
    """The belief after an accusation, by Bayes: p d / (p d + (1 - p) a), with detections d = 1 - missed.

    Of the best test with a false alarms, and so of every test with a or more, no accusation leads to more.
    """
    found = prior * (1 - missed)
    return found / (found + (1 - prior) * false_alarms)


def grown(guarantee: Guarantee, prior: float, false_alarms: float = SIGN) -> float:
    """How far the view can raise a belief of `prior` by a sign that is false at that rate."""
    return posterior(prior, false_alarms, 1 - guarantee.detected(false_alarms))
