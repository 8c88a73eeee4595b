"""Charts of a guarantee, as SVG inside a page: how far a suspicion can grow, and the trade-off of the best attacker."""

from __future__ import annotations

from collections.abc import Mapping

from sottovoce.privacy.guarantee import Guarantee, percent

SIGN = 0.01  # the rate of false alarms at which the suspicions are shown
_PRIORS = (0.01, 0.1, 0.25, 0.5)


def posterior(prior: float, false_alarms: float, missed: float) -> float:
    """The belief after an accusation, by Bayes: p d / (p d + (1 - p) a), with detections d = 1 - missed.

    Of the best test with a false alarms, and so of every test with a or more, no accusation leads to more.
    """
    found = prior * (1 - missed)
    return found / (found + (1 - prior) * false_alarms)


def grown(guarantee: Guarantee, prior: float, false_alarms: float = SIGN) -> float:
    """How far the view can raise a belief of `prior` by a sign that is false at that rate."""
    return posterior(prior, false_alarms, 1 - guarantee.detected(false_alarms))


def suspicions(guarantee: Guarantee) -> str:
    """Bars: a belief before, and the most that it can become."""
    rows, width, left = [], 540, 130
    for place, prior in enumerate(_PRIORS):
        after, y = grown(guarantee, prior), 8 + 34 * place
        rows.append(
            f'<text class="soft" x="0" y="{y + 15}">before {100 * prior:.0f}%</text>'
            f'<rect class="after" x="{left}" y="{y}" width="{width * after:.1f}" height="20" rx="3"/>'
            f'<rect class="before" x="{left}" y="{y}" width="{width * prior:.1f}" height="20" rx="3"/>'
            f'<text x="{left + width * after + 8:.1f}" y="{y + 15}">at most {percent(after)}</text>'
        )
    height = 8 + 34 * len(rows)
    axis = f'<line class="axis" x1="{left}" y1="0" x2="{left}" y2="{height}"/>'
    return _svg((left + width + 120, height), "How far a suspicion can grow", [axis, *rows])


def trade_off(curves: Mapping[str, Guarantee]) -> str:
    """What the best attacker finds, by false alarms: a line for each view, and the diagonal of who guesses."""
    side, left, top = 300, 62, 12
    found: list[str] = []

    def at(false_alarms: float, detected: float) -> str:
        return f"{left + side * false_alarms:.1f},{top + side * (1 - detected):.1f}"

    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + side * tick, top + side * (1 - tick)
        found.append(f'<line class="axis" x1="{left}" y1="{y:.1f}" x2="{left + side}" y2="{y:.1f}"/>')
        found.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.0f}%</text>')
        found.append(
            f'<text class="soft" x="{x:.1f}" y="{top + side + 18}" text-anchor="middle">{100 * tick:.0f}%</text>'
        )
    found.append(f'<polyline class="guess" points="{at(0, 0)} {at(1, 1)}"/>')
    legend = left + side + 28
    found.append(_entry(legend, top + 20, "guess", "who guesses, with no results at all"))
    for number, (name, guarantee) in enumerate(curves.items()):
        points = " ".join(at(false_alarms, 1 - missed) for false_alarms, missed in guarantee.trade_off)
        found.append(f'<polyline class="curve c{number}" points="{at(0, 0)} {points}"/>')
        found.append(_entry(legend, top + 44 + 24 * number, f"curve c{number}", name))
    below = top + side + 40
    found.append(f'<text class="soft" x="{left + side / 2}" y="{below}" text-anchor="middle">false alarms</text>')
    middle = top + side / 2
    turned = f'transform="rotate(-90 10 {middle})"'
    found.append(f'<text class="soft" x="10" y="{middle}" text-anchor="middle" {turned}>found</text>')
    return _svg((720, below + 10), "What the best possible attacker finds, by false alarms", found)


def _entry(x: int, y: int, kind: str, text: str) -> str:
    return f'<polyline class="{kind}" points="{x},{y - 4} {x + 26},{y - 4}"/><text x="{x + 34}" y="{y}">{text}</text>'


def _svg(size: tuple[int, int], label: str, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" width="100%" role="img" aria-label="{label}">{"".join(parts)}</svg>'
