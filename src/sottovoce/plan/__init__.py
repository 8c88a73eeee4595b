"""Everything public about a run."""

from __future__ import annotations

from sottovoce.plan.plan import Design as Design
from sottovoce.plan.plan import Numbers as Numbers
from sottovoce.plan.plan import Plan as Plan
from sottovoce.plan.problem import Problem as Problem
from sottovoce.plan.release import Release as Release
