"""Reading a policy's options. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import UsageError

Bounds = tuple[float, float, float]
"""Default, least and most of a numeric option."""


def read(policy: str, options: Mapping[str, object], known: Mapping[str, Bounds]) -> dict[str, float]:
    """The value of each known option, its default where it isn't given.

    Raises UsageError for an unknown option, one that is no number, and one out of its bounds.
    """
    for name in options:
        if name not in known:
            hint = f"known: {', '.join(known)}" if known else "it has none"
            raise UsageError(f"unknown option {name!r}", where=f"policy {policy}", hint=hint)
    values = {}
    for name, (default, least, most) in known.items():
        value = options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{name} must be a number, not {value!r}", where=f"policy {policy}")
        if not least <= value <= most:
            raise UsageError(f"{name} must be from {least:g} to {most:g}, not {value:g}", where=f"policy {policy}")
        values[name] = float(value)
    return values
