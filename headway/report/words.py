"""Figures in sentences. Pure."""

from __future__ import annotations

from headway.cluster.units import format_bytes


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """`0.253` as `25 %`."""
    return f"{share * 100:.0f} %"


def size_in_words(size_bytes: int) -> str:
    """As people typed it: `16 MB`, `16 MiB`. What is short in neither way is rounded, in binary units."""
    shortest = ""
    for units, base in ((("kB", "MB", "GB"), 1000), (("KiB", "MiB", "GiB"), 1024)):
        for power, unit in enumerate(units, 1):
            number = f"{size_bytes / base**power:.6g}"
            exact = size_bytes >= base**power and round(float(number) * base**power) == size_bytes
            if exact and (not shortest or len(number) < len(shortest.split()[0])):
                shortest = f"{number} {unit}"
    return shortest or format_bytes(size_bytes)
