"""Traces read and written, prompts in other blocks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.workload import mooncake
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import blocks_of, shortened, smaller

GOOD = {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """A trace: times in whole milliseconds that do not go back, and blocks that fit the lengths."""
    times_ms = sorted(draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=8)))
    load = []
    for time_ms in times_ms:
        tokens = draw(st.integers(1, 3000))
        size = draw(st.sampled_from([16, 512]))
        ids = draw(st.lists(st.integers(0, 10**12), min_size=blocks_of(tokens, size), max_size=blocks_of(tokens, size)))
        session = draw(st.sampled_from(["", "s1"]))
        load.append(Arrival(time_ms / 1e3, tokens, draw(st.integers(1, 500)), tuple(ids), size, session))
    return load


@given(arrivals())
def test_what_is_written_is_read_again(load: list[Arrival]) -> None:
    assert list(mooncake.read(mooncake.write(load).splitlines(), where="t")) == load


def test_mooncakes_own_form() -> None:
    (arrival,) = mooncake.read(["", json.dumps(GOOD)], where="t")
    assert arrival == Arrival(27.482, 1100, 52, (46, 47, 2353), 512)


def test_a_request_of_no_output_asks_for_one_token() -> None:
    (arrival,) = mooncake.read([json.dumps({**GOOD, "output_length": 0})], where="t")
    assert arrival.output_tokens == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object but list"),
        (json.dumps({**GOOD, "timestamp": "now"}), "timestamp is 'now'"),
        (json.dumps({**GOOD, "timestamp": -1}), "timestamp is -1"),
        (json.dumps({**GOOD, "timestamp": float("nan")}), "timestamp is nan"),
        (json.dumps({**GOOD, "input_length": 0}), "input_length is 0"),
        (json.dumps({**GOOD, "input_length": True}), "input_length is True"),
        (json.dumps({**GOOD, "output_length": None}), "output_length is None"),
        (json.dumps({**GOOD, "hash_ids": [1, "2", 3]}), "hash_ids is not a list"),
        (json.dumps({**GOOD, "hash_ids": [1]}), "hash_ids has 1 ids, but 1100 tokens are 3 blocks of 512"),
        (json.dumps({**GOOD, "timestamp": 1}), "timestamp 1 comes before the 27482"),
    ],
)
def test_errors_name_file_and_line(line: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        list(mooncake.read([json.dumps(GOOD), line], where="trace.jsonl"))
    assert str(error.value).startswith("trace.jsonl:2: ")
    assert words in str(error.value)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(1, 512),
)
def test_smaller_blocks_agree_where_the_texts_agree(first: list[int], second: list[int], part: int) -> None:
    one, two = (Arrival(0.0, (len(ids) - 1) * 512 + part, 1, tuple(ids), 512) for ids in (first, second))
    small, other = smaller(one, 16), smaller(two, 16)
    assert len(small.block_ids) == blocks_of(one.input_tokens, 16)
    same = next(
        (k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    agree = next(
        (k for k, (a, b) in enumerate(zip(small.block_ids, other.block_ids, strict=False)) if a != b),
        min(len(small.block_ids), len(other.block_ids)),
    )
    assert agree == min(same * 32, len(small.block_ids), len(other.block_ids))


def test_blocks_that_do_not_divide_are_an_error() -> None:
    with pytest.raises(UsageError, match="512 tokens cannot be cut into blocks of 100"):
        smaller(Arrival(0.0, 10, 1, (1,), 512), 100)


def test_a_shortened_prompt_keeps_its_beginning() -> None:
    arrival = Arrival(0.0, 1100, 52, (46, 47, 2353), 512)
    assert shortened(arrival, input_tokens=600, output_tokens=9) == Arrival(0.0, 600, 9, (46, 47), 512)
    assert shortened(arrival, input_tokens=5000) == arrival
