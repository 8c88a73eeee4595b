"""What an attack on a fit's own releases proved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """What games with the noise of a fit prove: no less than this epsilon was spent, in Gaussian noise of this mu."""

    epsilon: float
    delta: float
    mu: float
    games: int

    def sentence(self, most: float) -> str:
        """Beside what was promised; guesses that prove more are an alarm."""
        said = (
            f"Attacked: epsilon at least {self.epsilon:.2f} at delta = {self.delta:.3g}, as {self.games:,} games with "
            "this noise, on the worst two data sets, were won too often for less (99.99% confidence)"
        )
        return f"{said}. THE PROMISE IS BROKEN." if self.epsilon > most else f"{said}; at most {most:.4g} is promised."
