"""Numbers with a range, for options: `Count`, `Natural`, `Seconds`, `Delay`, `Positive`, `Share`.

A type checker sees plain numbers. The range applies, and words the error, when a settings file is validated, and when a
program makes the options (`toolcrib.checks`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a value must be, in words for error messages, and the bounds of a number."""

    description: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def includes(self, value: float) -> bool:
        """Whether a number is finite and within the bounds."""
        low = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        return low and (self.le is None or value <= self.le) and math.isfinite(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Add the bounds to pydantic's schema, with one message for all that does not fit."""
        bounds = {name: getattr(self, name) for name in ("ge", "gt", "le") if getattr(self, name) is not None}
        return {
            "type": "custom-error",
            "schema": {**handler(source), **bounds},
            "custom_error_type": "range",
            "custom_error_message": f"must be {self.description}",
        }


def whole_from(low: int, high: int | None = None) -> Constraint:
    """The range of the whole numbers from `low`, up to `high` if there is one."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return Constraint(f"a whole number {bounds}", ge=low, le=high)


Count = Annotated[int, whole_from(1)]
Natural = Annotated[int, whole_from(0)]
Seconds = Annotated[float, Constraint("a number of seconds above 0", gt=0)]
Delay = Annotated[float, Constraint("a number of seconds, 0 or more", ge=0)]
Positive = Annotated[float, Constraint("a number above 0", gt=0)]
Share = Annotated[float, Constraint("a number from 0 to 1", ge=0, le=1)]
PositiveShare = Annotated[float, Constraint("a number above 0, up to 1", gt=0, le=1)]
