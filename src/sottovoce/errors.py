"""Errors that a user can meet. Each message names the argument, its value, what is allowed and the remedy."""

from __future__ import annotations


class SottovoceError(Exception):
    """Base of every error raised on purpose by this package."""


class InputError(SottovoceError, ValueError):
    """An argument, a file or a data set cannot be used as given."""


class BudgetError(SottovoceError):
    """A plan would spend more than the account has left."""


class LedgerError(SottovoceError):
    """The ledger file cannot be read, written or trusted."""


class RefusedError(SottovoceError):
    """A party refused a plan; the text is the reason it gave."""


class WireError(SottovoceError):
    """A message was too large, truncated, replayed, of the wrong type, or came from the wrong party."""


class LeakError(SottovoceError):
    """Something tried to leave a party without passing the gate."""
