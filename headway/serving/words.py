"""Counts in sentences. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
