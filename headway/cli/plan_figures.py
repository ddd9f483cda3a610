"""Figures on the command line of `headway plan`: `NAME=NUMBER`, `NAME=RATE`, and others; and as it prints them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference

_PER_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""Seconds in the unit that a rate is of."""


def figures_of(texts: Sequence[str], where: str) -> dict[str, float]:
    """Numbers above 0 by name. UsageError names what is none, or is there twice."""
    return _by_name(texts, where, float, "NAME=NUMBER, with a number above 0")


def rates_of(texts: Sequence[str], where: str) -> dict[str, float]:
    """Rates per second by name, of `NAME=0.5`, `NAME=0.5/s`, `NAME=30/min`, `NAME=2/h`. UsageError as `figures_of`."""
    return _by_name(texts, where, _rate, "NAME=RATE, with a rate above 0: ask=0.5 or ask=0.5/s, ask=30/min, ask=2/h")


def interference_of(per_neighbour: float) -> Interference:
    """Of `--interference`. UsageError names the option."""
    try:
        return Interference(per_neighbour)
    except UsageError as error:
        raise UsageError(error.what, where="--interference") from None


def plain(number: float) -> str:
    """Three digits, or all before the point, and never a power of ten: `0.0123`, `12.3`, `12345`."""
    return f"{number:.0f}" if abs(number) >= 1000 else format(Decimal(f"{number:.3g}"), "f")


def _rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    return float(number) / (_PER_S.get(unit.strip(), math.nan) if slash else 1.0)


def _by_name(texts: Sequence[str], where: str, number: Callable[[str], float], wanted: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for text in texts:
        name, equals, said = text.rpartition("=")
        try:
            value = number(said)
        except ValueError:
            value = math.nan
        if not equals or not name or not 0 < value < math.inf:
            raise UsageError(f"{text!r} is not {wanted}", where=where)
        if name in figures:
            raise UsageError(f"{name} is there twice", where=where)
        figures[name] = value
    return figures
