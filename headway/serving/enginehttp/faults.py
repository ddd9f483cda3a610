"""Faults that an engine can be told to have, for tests of what stands in front of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Page = Literal["", "garbage", "html", "slow", "error", "frozen"]
"""What `/metrics` answers: "" the truth; "garbage" bytes that are no metrics page; "html" a page of HTML with 200;
"slow" the truth after `slow_page_s`; "error" 500; "frozen" the same page for ever."""

MOST_S = 3600.0
"""Longest time that a fault lasts by itself, seconds."""


@dataclass(slots=True)
class Faults:
    """What is wrong with an engine. All at their defaults: nothing.

    Attributes:
        stall: requests are taken, connections stay open, no step ends.
        slowdown: factor on the time of each step (1).
        die_after_tokens: the connection of each answer is reset when this many tokens of it have been sent; 0: before
            its status; -1: never.
        status: answer requests to the API with this status, e.g. 500, 503, 429; 0: properly.
        metrics: what `/metrics` answers.
        slow_page_s: delay of a slow `/metrics`, seconds.
        refuse_s: close the listening socket and all connections, and listen again after this long, seconds. It is done
            once, when it is set.
    """

    stall: bool = False
    slowdown: float = 1.0
    die_after_tokens: int = -1
    status: int = 0
    metrics: Page = ""
    slow_page_s: float = 2.0
    refuse_s: float = 0.0


def changed(faults: Faults, wanted: dict[str, Any]) -> Faults:
    """These faults with other values. ValueError says what is wrong with `wanted`."""
    values = {field.name: getattr(faults, field.name) for field in fields(Faults)} | {"refuse_s": 0.0}
    for name, value in wanted.items():
        if name not in values:
            raise ValueError(f"{name!r} is no fault; there are {', '.join(values)}")
        kind = type(getattr(Faults(), name))
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r}, not of type {kind.__name__}")
        values[name] = value
    if values["metrics"] not in get_args(Page):
        raise ValueError(f"metrics is {values['metrics']!r}, not one of {', '.join(map(repr, get_args(Page)))}")
    if not values["slowdown"] > 0:
        raise ValueError(f"slowdown is {values['slowdown']}, not above 0")
    if not (values["status"] == 0 or 400 <= values["status"] <= 599):
        raise ValueError(f"status is {values['status']}, not 0 and not 400 to 599")
    for name in ("refuse_s", "slow_page_s"):
        if not 0 <= values[name] <= MOST_S:
            raise ValueError(f"{name} is {values[name]}, not 0 to {MOST_S:g}")
    return Faults(**values)
