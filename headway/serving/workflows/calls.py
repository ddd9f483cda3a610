"""One call to a model within a workflow, as recorded. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one run of a workflow.

    Attributes:
        workflow: the kind of workflow, e.g. "beam-search".
        run: names one request to that workflow; its calls have it in common.
        id: unique in the run.
        model: who was asked.
        start_s, end_s: when it was sent and when it had ended, seconds on one clock for the whole run.
        input_tokens, output_tokens: lengths.
        blocks: chained hashes of the prompt's blocks, as `headway.serving.request.Request.blocks`; empty: not recorded.
        block_tokens: tokens in a whole block; 0 where there are none.
    """

    workflow: str
    run: str
    id: str
    model: str
    start_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One request to a workflow: from its first call's start to its last call's end, and all calls by start."""

    workflow: str
    id: str
    calls: tuple[Call, ...]

    @property
    def start_s(self) -> float:
        """When its first call began."""
        return self.calls[0].start_s

    @property
    def end_s(self) -> float:
        """When its last call ended."""
        return max(call.end_s for call in self.calls)
