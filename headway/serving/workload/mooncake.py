"""Mooncake's request traces: one JSON object per line, with `timestamp` (ms), `input_length`, `output_length` (tokens)
and `hash_ids`, one per block of 512 tokens, the last of which may be a part. Pure: lines in, lines out.

Other fields are ignored, but `session` (ours) is kept where it is a string, and `block_tokens` (ours) says so where
blocks are not of 512 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from headway.errors import UsageError
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import blocks_of

BLOCK_TOKENS = 512
FORMAT = 'a line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one per block]}'


def read(lines: Iterable[str], *, where: str) -> Iterator[Arrival]:
    """Requests of a trace, in the file's order, which must be that of time. UsageError names `where` and the line.

    A request of no output tokens asks for one: an engine cannot do with less.
    """
    before_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        arrival = _parse(line, place)
        if arrival.at_s < before_s:
            raise UsageError(
                f"timestamp {arrival.at_s * 1e3:g} comes before the {before_s * 1e3:g} of an earlier line",
                where=place,
                hint="sort the trace by timestamp",
            )
        before_s = arrival.at_s
        yield arrival


def to_line(arrival: Arrival) -> str:
    """One request as a line of a trace, without the newline; times are rounded to a microsecond."""
    fields: dict[str, object] = {
        "timestamp": _plain(round(arrival.at_s * 1e3, 3)),
        "input_length": arrival.input_tokens,
        "output_length": arrival.output_tokens,
        "hash_ids": list(arrival.block_ids),
    }
    if arrival.session:
        fields["session"] = arrival.session
    if arrival.block_tokens != BLOCK_TOKENS:
        fields["block_tokens"] = arrival.block_tokens
    return json.dumps(fields)


def write(arrivals: Sequence[Arrival]) -> str:
    """A whole trace."""
    return "".join(f"{to_line(each)}\n" for each in arrivals)


def _parse(line: str, place: str) -> Arrival:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=place, hint=FORMAT) from None
    if not isinstance(fields, dict):
        raise UsageError(f"not a JSON object but {type(fields).__name__}", where=place, hint=FORMAT)
    timestamp = fields.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not 0 <= timestamp < float("inf"):
        raise UsageError(f"timestamp is {timestamp!r}, not a number of milliseconds >= 0", where=place, hint=FORMAT)
    input_tokens = _count(fields, "input_length", 1, place)
    output_tokens = _count(fields, "output_length", 0, place)
    block_tokens = _count(fields, "block_tokens", 1, place) if "block_tokens" in fields else BLOCK_TOKENS
    ids = fields.get("hash_ids")
    if not isinstance(ids, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise UsageError("hash_ids is not a list of whole numbers", where=place, hint=FORMAT)
    expected = blocks_of(input_tokens, block_tokens)
    if len(ids) != expected:
        raise UsageError(
            f"hash_ids has {len(ids)} ids, but {input_tokens} tokens are {expected} blocks of {block_tokens}",
            where=place,
            hint=FORMAT,
        )
    session = fields.get("session", "")
    return Arrival(
        at_s=timestamp / 1e3,
        input_tokens=input_tokens,
        output_tokens=max(1, output_tokens),
        block_ids=tuple(ids),
        block_tokens=block_tokens,
        session=session if isinstance(session, str) else "",
    )


def _count(fields: dict[str, object], name: str, least: int, place: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}, not a whole number >= {least}", where=place, hint=FORMAT)
    return value


def _plain(number: float) -> float | int:
    return int(number) if number.is_integer() else number
