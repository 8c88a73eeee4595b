"""What a run is about, in words: for the ledgers that pay for it and for the reader of its report."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from sottovoce.plan.frozen import Frozen


def _one_line(text: str) -> str:
    """A text of others is printed in terminals and pages: no control characters, no invisible ones."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("it must be one line of printable characters, without spaces around it")
    return text


Line = Annotated[str, AfterValidator(_one_line), Field(strict=True, max_length=300)]


class About(Frozen):
    """Who runs a plan on which data and what for. Public: it is part of the plan, and every party's ledger keeps it.

    Nobody checks these texts; whom a charge is for is decided by the account that a holder lets pay.
    """

    dataset: Line = Field("", description="the name of the data set, in one line of at most 300 characters")
    purpose: Line = Field("", description="what the model is for, in one line of at most 300 characters")
    analyst: Line = Field("", description="who runs the job, in one line of at most 300 characters")
    note: Line = Field("", description="a remark, in one line of at most 300 characters")

    def texts(self) -> dict[str, str]:
        """The texts that are there, by name."""
        return {name: text for name, text in self.fields().items() if text}
