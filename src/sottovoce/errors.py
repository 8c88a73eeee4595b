"""Errors that a user can meet. Each message names the argument, its value, what is allowed and the remedy.

* SottovoceError
  + InputError (also a ValueError)
    - MissingDataError, of `sottovoce reproduce`
  + BudgetError
  + LedgerError
  + RefusedError
    - ForgottenError, which a party answers by asking for the plan again
  + WireError
    - RestartedError, which a coordinator answers by playing a run over secure columns again
  + LeakError

No message holds a value of the data. Whatever else is raised is a defect: please report it.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PACKAGE: Final = str(Path(__file__).parent)


class SottovoceError(Exception):
    """Base of every error raised on purpose by this package.

    When: never itself. Catch it to catch all of them.
    """


class InputError(SottovoceError, ValueError):
    """An argument, a file or a data set cannot be used as given.

    When: before any data are touched where that can be known, so nothing was charged. What to do: change what the
    message names, as it says.
    """


class RepeatedFitWarning(UserWarning):
    """Several private fits without a ledger may be on the same people: as many records and features, or clones.

    When: after a fit from the second on; of a cloned estimator in a worker process, whose fits no process can add up,
    from the first. What to do: give a ledger, or count the sum that the message names as the
    promise.
    """


class MisfitWarning(UserWarning):
    """Cells of a table do not fit its schema, or rows cannot be used: told to the caller, who holds them.

    When: before a fit or an evaluation of arrays or a table in one place is charged. It tells of the records, so keep
    it to yourself. What to do: correct the schema by what is publicly known, or the table.
    """


class BudgetError(SottovoceError):
    """A plan would spend more than the account has left.

    When: before anything is charged or released. What to do: ask for a smaller epsilon; the message says how much would
    still fit. An account is never refilled.
    """


class LedgerError(SottovoceError):
    """The ledger file cannot be read, written or trusted.

    When: opening, charging or storing; nothing was released. What to do: see to the disk and the permissions, or
    restore a copy that verifies. Until then treat the budget as spent.
    """


class RefusedError(SottovoceError):
    """A party refused a plan, a request or a prediction; the text is the reason it gave.

    When: its policy forbids it, or the request is not what the plan says. What to do: agree with the party's holder,
    who alone can change the policy, or make another plan.
    """


class WireError(SottovoceError):
    """A message was late, too large, truncated, replayed, of the wrong type, or came from the wrong party.

    When: on any exchange; what was released before stays charged. What to do: see that all parties run, that their
    certificates are of one authority, and that the timeout is long enough. A new fit is a new plan and is charged anew.
    `parties` are those that did not answer, where it is that; else there is none.
    """

    def __init__(self, text: str = "", parties: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.parties = tuple(parties)


class LeakError(SottovoceError):
    """Something tried to leave a party without passing the gate, or with less noise than was charged for.

    When: never, unless code is wrong: that of a new query, algorithm or transport. Nothing left. What to do: correct
    that code; do not catch this.
    """


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called into this package, however deep inside it the reason lies."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__", "<unknown>")
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def did_you_mean(word: str, allowed: Sequence[str]) -> str:
    """The end of a sentence about a word that is not allowed: a question with the nearest that is, or a full stop."""
    close = difflib.get_close_matches(word, allowed, n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
