"""What came of one request: a row of the load generator's JSONL file (`docs/loadgen.md` documents the fields). Pure."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field

DONE = "done"
STOPPED = "stopped"
"""Ended by us: Ctrl-C."""


@dataclass(slots=True)
class Row:
    """One request.

    Attributes:
        number: its place in the load, from 0.
        due_s: when it should have been sent, seconds from the run's begin.
        input_tokens, output_tokens: what the load says.
        session: of the load; empty: none.
        sent_s: when it was sent; None: it never was.
        end: done, stopped, or the kind of failure: connect (no connection), disconnect (closed before a status), cut
            (ended before its end mark), error (the server said so in the stream), garbage (no events), stall (no byte
            for too long), timeout (not done in time), http-STATUS.
        what: the failure in words; empty where it was none.
        status: the HTTP status; None where none came.
        retry_after_s: of a 429 or 503 that had one.
        ttft_s, last_s, e2e_s: from sending to the first output, the last output, the end; None where it did not come.
        gaps_s: between chunks with output: inter-token latencies, in order.
        prompt_tokens, completion_tokens, cached_tokens: what the server says that it took.
        replica, reason, policy: from the gateway's headers; empty where it sent none.
    """

    number: int
    due_s: float
    input_tokens: int
    output_tokens: int
    session: str = ""
    sent_s: float | None = None
    end: str = STOPPED
    what: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    ttft_s: float | None = None
    last_s: float | None = None
    e2e_s: float | None = None
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    replica: str = ""
    reason: str = ""
    policy: str = ""

    @property
    def late_s(self) -> float | None:
        """How long after its time it was sent: our own fault, never the server's."""
        return None if self.sent_s is None else self.sent_s - self.due_s

    @property
    def generated_tokens(self) -> int:
        """Tokens that came back: the server's count, or the chunks with output where it gave none."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return len(self.gaps_s) + (self.ttft_s is not None)

    @property
    def asked_tokens(self) -> int:
        """Tokens of the prompt: the server's count, or the load's where it gave none."""
        return self.input_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.ttft_s is None or self.last_s is None or self.generated_tokens < 2:
            return None
        return (self.last_s - self.ttft_s) / (self.generated_tokens - 1)


def to_line(row: Row) -> str:
    """One row as one JSON line, without the newline. What is unknown is left out; seconds to the microsecond."""
    fields: dict[str, object] = {
        "number": row.number,
        "due_s": _rounded(row.due_s),
        "sent_s": _rounded(row.sent_s),
        "late_s": _rounded(row.late_s),
        "end": row.end,
        "what": row.what or None,
        "status": row.status,
        "retry_after_s": row.retry_after_s,
        "ttft_s": _rounded(row.ttft_s),
        "tpot_s": _rounded(row.tpot_s),
        "e2e_s": _rounded(row.e2e_s),
        "chunks": len(row.gaps_s) + (row.ttft_s is not None),
        "itl_max_s": _rounded(max(row.gaps_s, default=None)),
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "cached_tokens": row.cached_tokens,
        "session": row.session or None,
        "replica": row.replica or None,
        "policy": row.policy or None,
        "reason": row.reason or None,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
