"""The `traceparent` header of W3C Trace Context: read, continued, made. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span's place in a trace.

    Attributes:
        trace_id: of the trace, 128 bits, not 0.
        span_id: of this span, 64 bits, not 0.
        sampled: whether the trace is recorded.
        parent_id: span id of the caller; 0: the trace begins here.
    """

    trace_id: int
    span_id: int
    sampled: bool
    parent_id: int = 0

    @property
    def header(self) -> str:
        """The `traceparent` for whom this span calls."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse(header: str) -> TraceContext | None:
    """The caller's span. None where the header is malformed: then the standard says to begin a new trace.

    A version above 00 is read as far as 00 goes, as the standard wants it; version ff is not allowed.
    """
    found = _FORM.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))


def continued(header: str | None, *, random: Random, share: float) -> TraceContext:
    """This service's own span: a child of the caller's where there is one, whose choice to record then holds.

    Args:
        header: the caller's `traceparent`, if any.
        random: for the ids.
        share: of new traces that are recorded, 0 to 1.
    """
    caller = parse(header) if header else None
    span_id = random.getrandbits(64) or 1
    if caller is None:
        return TraceContext(random.getrandbits(128) or 1, span_id, random.random() < share)
    return TraceContext(caller.trace_id, span_id, caller.sampled, caller.span_id)
