"""Figures in sentences."""

from __future__ import annotations

import pytest

from headway.report.words import counted, size_in_words


def test_one_is_not_plural() -> None:
    assert [counted(n, "host") for n in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (16_000_000, "16 MB"),
        (16 * 2**20, "16 MiB"),
        (65536, "64 KiB"),
        (100_000, "100 kB"),
        (2_500_000, "2.5 MB"),
        (3 * 2**30, "3 GiB"),
        (5 * 10**9, "5 GB"),
        (12, "12 B"),
        (12_345_678, "11.77 MiB"),
    ],
)
def test_sizes_are_told_as_people_type_them(size_bytes: int, words: str) -> None:
    assert size_in_words(size_bytes) == words
