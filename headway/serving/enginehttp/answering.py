"""Jobs on their way through the core, and where their tokens go."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from headway.errors import HeadwayError, UsageError
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job, Token
from headway.serving.enginehttp.asked import ApiError
from headway.serving.enginehttp.measures import Measures
from headway.serving.enginehttp.pace import Pace
from headway.serving.enginehttp.prompt import Prompt

MOST_CONTEXT_TOKENS = 32_768
"""Default of `max_model_len`, where the cache holds as many."""

OnToken = Callable[[Token], None]


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How an engine serves its model.

    Attributes:
        model: the name that it serves it under.
        most_context_tokens: prompt and answer together (vLLM's max_model_len); 0: `MOST_CONTEXT_TOKENS`, or what the
            cache holds where that is less.
        output_tokens_mean, output_tokens_sd: of the normal distribution that the length of an answer is drawn from
            where the client sets no `max_tokens`. Defaults as in Lodestar's synthetic load.
        seed: of these draws.
    """

    model: str = "llama-3-8b"
    most_context_tokens: int = 0
    output_tokens_mean: float = 100.0
    output_tokens_sd: float = 10.0
    seed: int = 0


@dataclass(slots=True, eq=False)
class _Answer:
    """A job in the core."""

    received_s: float
    input_tokens: int
    on_token: OnToken
    done: asyncio.Future[int]
    previous_s: float = 0.0


class Answering:
    """An engine without its HTTP: takes jobs, hands each token to whoever asked, counts.

    Needs a running event loop.

    Args:
        profile: how fast it is and what it holds.
        settings: how it serves.
    """

    def __init__(self, profile: EngineProfile, settings: ServingSettings) -> None:
        self.profile = profile
        self.settings = settings
        self.most_context_tokens = settings.most_context_tokens or min(MOST_CONTEXT_TOKENS, profile.cache_tokens)
        if self.most_context_tokens > profile.cache_tokens:
            raise UsageError(
                f"a context of {self.most_context_tokens} tokens does not fit the KV cache of {profile.cache_tokens}",
                hint="a smaller --max-model-len, or an accelerator with more memory",
            )
        self.core = EngineCore(profile)
        self.measures = Measures(settings.model, profile)
        self.pace = Pace(self.core, self._on_tokens, self._on_failure)
        self.failure: Exception | None = None
        self._random = random.Random(settings.seed)
        self._answers: dict[str, _Answer] = {}
        self._made = 0

    @property
    def open(self) -> int:
        """Jobs that have neither ended nor been cancelled (count)."""
        return len(self._answers)

    def length(self, prompt: Prompt, wanted_tokens: int | None, *, param: str) -> tuple[int, str]:
        """How many tokens an answer will have, and why it will end there (`finish_reason`).

        ApiError when the context would be too long; where the prompt alone is, it names `param`.
        """
        room_tokens = self.most_context_tokens - prompt.tokens
        if room_tokens < (wanted_tokens or 1):
            raise ApiError(
                400,
                f"This model's maximum context length is {self.most_context_tokens} tokens; the prompt has "
                f"{prompt.tokens}, and at least {wanted_tokens or 1} of an answer are wanted.",
                param="max_tokens" if room_tokens > 0 else param,
                code="context_length_exceeded",
            )
        if wanted_tokens is not None:
            return wanted_tokens, "length"
        drawn = round(self._random.gauss(self.settings.output_tokens_mean, self.settings.output_tokens_sd))
        return min(max(1, drawn), room_tokens), "stop" if drawn <= room_tokens else "length"

    async def run(
        self, prompt: Prompt, output_tokens: int, *, priority: int, received_s: float, reason: str, on_token: OnToken
    ) -> int:
        """Have a prompt answered; the tokens of it that came from the cache.

        `on_token` is called for each token, between other work of the loop; it must not wait. Cancelling this cancels
        the job. HeadwayError when the engine has failed.
        """
        if self.failure is not None:
            raise HeadwayError(f"the engine has failed: {self.failure!r}")
        self._made += 1
        job = Job(str(self._made), prompt.tokens, output_tokens, prompt.blocks, priority)
        answer = _Answer(received_s, prompt.tokens, on_token, asyncio.get_running_loop().create_future())
        self._answers[job.id] = answer
        ended = "abort"
        try:
            self.pace.submit(job)
            cached_tokens = await answer.done
            ended = reason
            return cached_tokens
        except HeadwayError:
            ended = "error"
            raise
        finally:
            self.measures.ended[ended] += 1
            if self._answers.pop(job.id, None) is not None and self.failure is None:
                self.pace.cancel(job.id)

    def close(self) -> None:
        """Stop for good. Whoever still waits for an answer is told that there will be none."""
        self.pace.close()
        self._give_up(HeadwayError("the engine stops"))

    def page(self) -> bytes:
        """`/metrics`."""
        return self.measures.page(
            self.core.report(), self.core.preemptions, self.pace.behind_s, self.pace.lost_s
        ).encode()

    def _on_tokens(self, tokens: list[Token]) -> None:
        now_s = time.monotonic()
        measures, answers = self.measures, self._answers
        measures.generation_tokens += len(tokens)
        for token in tokens:
            answer = answers.get(token.id)
            if answer is None:  # cancelled while the step ran
                continue
            if token.number == 1:
                measures.ttft_s.add(now_s - answer.received_s)
                measures.prompt_tokens += answer.input_tokens
                measures.queried_tokens += answer.input_tokens
                measures.hit_tokens += token.cached_tokens
            else:
                measures.inter_token_s.add(now_s - answer.previous_s)
            answer.previous_s = now_s
            answer.on_token(token)
            if token.last:
                del answers[token.id]
                measures.end_to_end_s.add(now_s - answer.received_s)
                if not answer.done.done():
                    answer.done.set_result(token.cached_tokens)

    def _on_failure(self, error: Exception) -> None:
        self.failure = error
        self._give_up(HeadwayError(f"the engine has failed: {error!r}"))

    def _give_up(self, error: HeadwayError) -> None:
        for answer in self._answers.values():
            if not answer.done.done():
                answer.done.set_exception(error)
        self._answers.clear()
