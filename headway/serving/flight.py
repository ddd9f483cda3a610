"""A request that the router has sent: its attempts, and what the policy and the journal are told of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.decide.journal import RequestRecord, RouteOption
from headway.serving.policy import Candidate, Choice
from headway.serving.request import End, Outcome, Request


@dataclass(slots=True)
class Attempt:
    """One attempt at a request: the replica that was chosen, among which, and what has come from it.

    Attributes:
        choice, candidates: the policy's choice, and what it could choose from.
        hit_tokens: prompt tokens that the replica was expected to have cached.
        sent_s: when it was sent.
        first_token_s: when the first token came; None: not yet.
        output_tokens: tokens of the answer so far.
    """

    choice: Choice
    candidates: Sequence[Candidate]
    hit_tokens: int
    sent_s: float
    first_token_s: float | None = None
    output_tokens: int = 0


@dataclass(slots=True)
class Flight:
    """A request in flight.

    Attributes:
        request: what was asked.
        arrived_s: when it came.
        attempts: how many replicas it was sent to (count).
        attempt: the last one.
        live: whether that has not ended.
    """

    request: Request
    arrived_s: float
    attempts: int
    attempt: Attempt
    live: bool = True

    def outcome(self, now_s: float, end: End, cached_tokens: int | None) -> Outcome:
        """What became of the last attempt, for the policy."""
        attempt = self.attempt
        return Outcome(
            request=self.request,
            replica=attempt.choice.replica,
            sent_s=attempt.sent_s,
            ttft_s=None if attempt.first_token_s is None else attempt.first_token_s - attempt.sent_s,
            e2e_s=now_s - attempt.sent_s,
            output_tokens=attempt.output_tokens,
            cached_tokens=cached_tokens,
            end=end,
        )

    def record(
        self,
        now_s: float,
        *,
        policy: str,
        end: Literal["done", "cancelled", "failed", "refused"],
        status: int,
        blocks: bool,
        input_tokens: int | None = None,
        cached_tokens: int | None = None,
        reason: str | None = None,
    ) -> RequestRecord:
        """What the journal says of the request, which ends now.

        Args:
            now_s, end, status: when and how, and the HTTP status that the client got.
            policy: the policy's name.
            blocks: whether the record holds the prompt's block hashes.
            input_tokens: the prompt's, as the engine counted them; None where it didn't say.
            cached_tokens: prompt tokens that the engine found in its cache; None where it didn't say.
            reason: why it ended so; None: why the replica was chosen.
        """
        request, attempt, choice = self.request, self.attempt, self.attempt.choice
        first_s = attempt.first_token_s
        return RequestRecord(
            t_s=now_s,
            group=request.model,
            request=request.id,
            arrived_s=self.arrived_s,
            sent_s=attempt.sent_s - self.arrived_s,
            replica=choice.replica,
            policy=policy,
            by=choice.by,
            reason=choice.reason if reason is None else reason,
            input_tokens=request.input_tokens if input_tokens is None else input_tokens,
            hit_tokens=attempt.hit_tokens,
            cached_tokens=cached_tokens,
            output_tokens=attempt.output_tokens,
            predicted_ttft_s=choice.predicted_ttft_s,
            ttft_s=None if first_s is None else first_s - self.arrived_s,
            e2e_s=now_s - self.arrived_s,
            slo_ttft_s=request.slo_ttft_s,
            slo_tpot_s=request.slo_tpot_s,
            status=status,
            end=end,
            attempts=self.attempts,
            session=request.session,
            workflow=request.workflow,
            prefix_blocks=list(request.blocks) if blocks else [],
            block_tokens=request.block_tokens if blocks else None,
            options=_options(attempt.candidates, choice.scores),
        )


def _options(candidates: Sequence[Candidate], scores: Mapping[str, float]) -> list[RouteOption]:
    options = []
    for candidate in candidates:
        report = candidate.state.report
        options.append(
            RouteOption(
                replica=candidate.name,
                hit_tokens=candidate.hit_tokens,
                requests=candidate.state.requests,
                running=None if report is None else report.running,
                waiting=None if report is None else report.waiting,
                kv_usage=None if report is None else report.kv_usage,
                score=scores.get(candidate.name),
            )
        )
    return options
