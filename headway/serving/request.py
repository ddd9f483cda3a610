"""A request as routing sees it, and what became of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Request:
    """One call to a model, before it is routed.

    Attributes:
        id: unique among the requests in flight.
        model: the model's name as the client wrote it.
        input_tokens: tokens of the prompt: estimated by the gateway, exact in the simulation.
        blocks: one hash per block of the prompt, each chained to the one before it, so that `blocks[k]` names all of
            the prompt up to the end of block k. Two prompts share a prefix of exactly as many blocks as these agree
            in. The last one may be a part of a block.
        block_tokens: tokens in a whole block.
        most_output_tokens: the client's limit (`max_tokens`); None where it set none.
        session: names a conversation (`x-session-id`, or the API's `user`); empty where the client named none.
        slo_ttft_s, slo_tpot_s: the client's goals (`x-slo-ttft-ms`, `x-slo-tpot-ms`), seconds; None where it has none.
        workflow: the workflow that this call is a step of; empty where the client named none.
    """

    id: str
    model: str
    input_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 16
    most_output_tokens: int | None = None
    session: str = ""
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    workflow: str = ""


class End(Enum):
    """How a request ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    """The client went away."""
    FAILED = "failed"
    """The replica failed, before or after the first token."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request on the replica that it was sent to.

    Attributes:
        request: what was asked.
        replica: who answered.
        sent_s: when it was sent to that replica, seconds on the router's clock.
        ttft_s: from then to the first token; None if none came.
        e2e_s: from then to the end, seconds.
        output_tokens: tokens that came back.
        cached_tokens: prompt tokens that the engine said came from its prefix cache; None where it said nothing.
        end: how it ended.
    """

    request: Request
    replica: str
    sent_s: float
    ttft_s: float | None
    e2e_s: float
    output_tokens: int
    cached_tokens: int | None
    end: End
