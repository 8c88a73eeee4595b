"""`admm`: ADMM sharing over columns (Hu et al. 2019), without privacy and in private forms."""

from __future__ import annotations

from typing import ClassVar

from sottovoce.algorithms.base import Algorithm, Family, Problem, choice
from sottovoce.algorithms.sharing.admm_exact import ExactSharing
from sottovoce.algorithms.sharing.admm_feature import FeatureSharing
from sottovoce.algorithms.sharing.admm_fresh import FreshSharing
from sottovoce.algorithms.sharing.admm_noisy_rows import PersistentSharing
from sottovoce.algorithms.sharing.admm_published import PublishedSharing
from sottovoce.plan.plan import Plan, Split

FORMS: tuple[Algorithm, ...] = (PersistentSharing(), FreshSharing(), FeatureSharing(), PublishedSharing())


class ADMM(Family):
    """Every form of ADMM sharing, each with its guarantee, is a class of its own.

    Without privacy: `ExactSharing`. `rows="persistent"`, the default: `PersistentSharing`. `rows="fresh"`:
    `FreshSharing`. `unit="feature"`: `FeatureSharing`. `calibration="paper"`: `PublishedSharing`.
    """

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "ADMM sharing: parties exchange scores of the records"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys(name for form in (*FORMS, ExactSharing()) for name in (*form.options, "rows", "unit"))
    )

    def form(self, about: Plan | Problem, *, private: bool) -> Algorithm:
        """By what was asked for or, of a plan, by what it releases."""
        if about.calibration == "paper":
            return PublishedSharing()
        if not private:
            return ExactSharing()
        if isinstance(about, Problem):
            if choice(about, "unit", ("record", "feature")) == "feature":
                return FeatureSharing()
            return FreshSharing() if choice(about, "rows", ("persistent", "fresh")) == "fresh" else PersistentSharing()
        if about.protects == "feature":
            return FeatureSharing()
        kept = any(release.mechanism == "kept" for release in about.releases)
        return PersistentSharing() if kept else FreshSharing()
