"""Quantities as people type them for `tc` and `nccl-tests`, and back.

Inside Headway: bytes are `int`, times are seconds (`float`), rates are bytes per second (`float`).
1 MB = 1e6 bytes, 1 MiB = 1024**2 bytes. `64M` in a size means MiB, as nccl-tests reads it; in a rate a
bit unit is decimal, as `tc` reads it. A bare number is an error: it has no unit.
"""

from __future__ import annotations

import re

from headway.errors import UsageError

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z/%]*)\s*$")

_SIZE_UNITS: dict[str, float] = {
    "b": 1,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip

_RATE_UNITS: dict[str, float] = {
    "bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "tbit": 1e12 / 8,
    "bit/s": 1 / 8, "kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8, "tbit/s": 1e12 / 8,
    "b/s": 1, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9, "tb/s": 1e12,
    "kib/s": 2**10, "mib/s": 2**20, "gib/s": 2**30,
}  # fmt: skip

_TIME_UNITS: dict[str, float] = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip


def _parse(text: str, units: dict[str, float], kind: str, example: str, where: str) -> float:
    match = _NUMBER.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a {kind}", where=where, hint=f"write for example {example}")
    number, unit = match.groups()
    if not unit:
        raise UsageError(f"{text!r} has no unit", where=where, hint=f"write for example {example}")
    factor = units.get(unit.lower())
    if factor is None:
        known = ", ".join(dict.fromkeys(units))
        raise UsageError(f"unknown {kind} unit {unit!r} in {text!r}", where=where, hint=f"known: {known}")
    return float(number) * factor


def parse_bytes(text: str, *, where: str = "") -> int:
    """`64MiB`, `64M` (MiB, as in nccl-tests), `64MB` (1e6), `4096B` -> bytes. Raises UsageError."""
    return round(_parse(text, _SIZE_UNITS, "size", "64MiB", where))


def parse_rate(text: str, *, where: str = "") -> float:
    """`200Mbit`, `1Gbit`, `25GB/s` -> bytes per second. Raises UsageError."""
    return _parse(text, _RATE_UNITS, "rate", "200Mbit", where)


def parse_time(text: str, *, where: str = "") -> float:
    """`2ms`, `10s`, `1.5min` -> seconds. Raises UsageError."""
    return _parse(text, _TIME_UNITS, "time", "2ms", where)


def format_bytes(size_bytes: float) -> str:
    """Bytes -> the shortest exact-looking binary size: `64 MiB`, `1.5 KiB`, `12 B`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def format_rate(rate_Bps: float) -> str:
    """Bytes per second -> bits, the way links are sold: `200 Mbit/s`."""
    bits = rate_Bps * 8
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= factor:
            return f"{bits / factor:.4g} {unit}"
    return f"{bits:.4g} bit/s"


def format_time(time_s: float) -> str:
    """Seconds -> `1.20 s`, `35.0 ms`, `12.0 us`."""
    if time_s >= 1:
        return f"{time_s:.2f} s"
    if time_s >= 1e-3:
        return f"{time_s * 1e3:.1f} ms"
    return f"{time_s * 1e6:.1f} us"
