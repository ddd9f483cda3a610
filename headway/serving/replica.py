"""A replica as routing sees it: what it is, what its engine says of itself, what we have sent it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What is known of a replica before it has answered anything.

    Attributes:
        name: unique in the fleet.
        url: where its API is; empty in the simulation.
        models: the names that it serves; empty: any.
        device: kind of accelerator, e.g. "a30"; replicas of one kind are taken for equally fast. Empty: unknown.
        speed: prefill speed against the others, as configured (1); only static-speed policies read it.
        cache_tokens: size of its prefix cache, tokens; None until known. 0: it has none.
    """

    name: str
    url: str = ""
    models: tuple[str, ...] = ()
    device: str = ""
    speed: float = 1.0
    cache_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of itself, as vLLM, SGLang and llama.cpp tell it in `/metrics`.

    Attributes:
        running: requests in the batch.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use, 0 to 1; None where the engine doesn't say.
        cache_tokens: tokens that the KV cache can hold; None where the engine doesn't say.
    """

    running: int
    waiting: int
    kv_usage: float | None = None
    cache_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica at the moment of a decision.

    The counts of what we sent are always fresh. The engine's own figures are as old as `report_age_s`; where there is
    none, or it is older than the fleet's limit, `report` is None and a policy must do with the counts.

    Attributes:
        spec: what it is.
        prefill_requests, prefill_tokens: sent, without a first token yet; the tokens are those of their prompts that we
            expect not to be in the replica's cache.
        decode_requests, decode_tokens: sent, past the first token; the tokens are those in their context so far, prompt
            and answer.
        report: the engine's own figures.
        report_age_s: how old they are, seconds; infinite where there never were any.
    """

    spec: ReplicaSpec
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    report: EngineReport | None = None
    report_age_s: float = float("inf")

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.spec.name

    @property
    def requests(self) -> int:
        """Requests that we sent and that have not ended (count)."""
        return self.prefill_requests + self.decode_requests

    @property
    def running(self) -> int:
        """Requests in the batch: the engine's figure, or those past their first token where it is missing (count)."""
        return self.report.running if self.report is not None else self.decode_requests

    @property
    def waiting(self) -> int:
        """Requests in the queue: the engine's figure, or those without a first token where it is missing (count)."""
        return self.report.waiting if self.report is not None else self.prefill_requests
