"""Public values that are made once, checked then, and never changed."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, lt=2**31)]  # a frame's round has 31 bits


class Frozen(BaseModel):
    """What plans are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def fields(self) -> dict[str, Any]:
        """The fields by name, without what was computed from them."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def changed(self, **fields: Any) -> Self:
        """A copy with other fields, checked like any other."""
        return type(self)(**(self.fields() | fields))
