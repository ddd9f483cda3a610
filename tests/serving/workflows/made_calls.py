"""Calls made up by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from headway.serving.workflows.calls import Call

NAMES = st.text(min_size=1, max_size=8).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))


def calls_of_one_kind(*, models: Sequence[str] = ("a", "b", "c")) -> st.SearchStrategy[list[Call]]:
    """Calls of a few runs of one workflow; ids differ. Times are multiples of 1/64 s: their sums are exact."""
    ticks = st.integers(0, 640)
    one = st.builds(
        lambda run, model, start, length, tokens: Call(
            "w", run, "", model, start / 64, (start + length) / 64, tokens[0], tokens[1]
        ),
        st.sampled_from(("r1", "r2", "r3")),
        st.sampled_from(models),
        ticks,
        st.integers(1, 320),
        st.tuples(st.integers(0, 5000), st.integers(0, 2000)),
    )
    return st.lists(one, min_size=1, max_size=25).map(
        lambda calls: [replace(call, id=str(number)) for number, call in enumerate(calls)]
    )


def any_calls() -> st.SearchStrategy[list[Call]]:
    """Calls with odd names, real times, and with blocks or without; ids differ."""
    start_s = st.floats(-1e9, 2e9)
    one = st.builds(
        _call,
        st.tuples(NAMES, NAMES, NAMES),
        start_s,
        st.floats(1e-3, 1e6),
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
        st.lists(st.integers(0, 2**64 - 1), max_size=3),
    )
    return st.lists(one, max_size=8).map(
        lambda calls: [replace(call, id=f"{call.model}{number}") for number, call in enumerate(calls)]
    )


def _call(
    names: tuple[str, str, str], start_s: float, length_s: float, tokens: tuple[int, int], blocks: list[int]
) -> Call:
    workflow, run, model = names
    return Call(
        workflow, run, "", model, start_s, start_s + length_s, *tokens, tuple(blocks), block_tokens=16 if blocks else 0
    )
