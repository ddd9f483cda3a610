"""Quantities as scenarios write them: with units, checked by pydantic. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from headway.cluster.units import format_rate, parse_bytes, parse_rate, parse_time
from headway.errors import UsageError

FROM_TEXT = {"from_text": True}
"""Validation context of a file: quantities must then carry a unit. In Python a number is in SI units."""


def _quantity(parse: Callable[[str], float]) -> BeforeValidator:
    def validate(value: object, info: ValidationInfo) -> object:
        context: object = info.context
        if isinstance(value, (int, float)) and not isinstance(value, bool) and context == FROM_TEXT:
            value = str(value)  # the parser then says which unit is missing
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(validate)


@dataclass(frozen=True, slots=True)
class Amount:
    """A rate, either in bytes per second or as a fraction of the link's own rate."""

    rate_Bps: float | None = None
    fraction: float | None = None

    @classmethod
    def parse(cls, text: str) -> Amount:
        """`50%` or `100Mbit`. Raises UsageError."""
        share = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
        return cls(fraction=float(share.group(1)) / 100) if share else cls(rate_Bps=parse_rate(text))

    def of(self, link_Bps: float) -> float:
        """Bytes per second, on a link of that rate."""
        if self.fraction is not None:
            return self.fraction * link_Bps
        assert self.rate_Bps is not None
        return self.rate_Bps

    def __str__(self) -> str:
        return f"{self.fraction * 100:g} %" if self.fraction is not None else format_rate(self.rate_Bps or 0.0)


def _amount(value: object) -> object:
    if isinstance(value, Amount):
        amount = value
    else:
        try:
            amount = Amount.parse(str(value))
        except UsageError as error:
            raise ValueError(f"{error}, or a share of the link such as 50%") from None
    if not amount.of(1.0) > 0:
        raise ValueError("must be above 0")
    return amount


def _probability(value: object) -> object:
    if isinstance(value, str):
        share = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", value)
        if share is None:
            raise ValueError(f"{value!r} is not a percentage (write for example 0.5%)")
        return float(share.group(1)) / 100
    return value


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Rate = Annotated[float, _quantity(parse_rate), Field(gt=0, allow_inf_nan=False)]
Time = Annotated[float, _quantity(parse_time), Field(ge=0, allow_inf_nan=False)]
Size = Annotated[int, _quantity(parse_bytes), Field(gt=0)]
Probability = Annotated[float, BeforeValidator(_probability), Field(ge=0, lt=1)]
Share = Annotated[Amount, BeforeValidator(_amount)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]


class Model(BaseModel):
    """What scenarios are made of: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
