"""A load, ready to be routed: made once, run many times. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.errors import UsageError
from headway.serving.engine.types import Job
from headway.serving.prefix import chain
from headway.serving.request import Request
from headway.serving.workload.arrival import Arrival


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that will come: when, as the router sees it, and as the engine gets it."""

    at_s: float
    request: Request
    job: Job


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of time, in blocks of `block_tokens` tokens."""

    requests: tuple[Planned, ...]
    block_tokens: int

    @property
    def rate(self) -> float:
        """Requests per second in the mean, from 0 to the last arrival."""
        return len(self.requests) / self.requests[-1].at_s if self.requests and self.requests[-1].at_s > 0 else 0.0

    def scaled(self, rate: float) -> Load:
        """The same requests, every time stretched so that so many come per second in the mean."""
        if rate <= 0 or self.rate <= 0:
            raise UsageError(f"a load of {self.rate:g} requests/s cannot be stretched to {rate:g}", where="rate")
        factor = self.rate / rate
        return replace(self, requests=tuple(replace(it, at_s=it.at_s * factor) for it in self.requests))

    def first(self, requests: int) -> Load:
        """Its first so many requests."""
        return replace(self, requests=self.requests[:requests])


def load(arrivals: Iterable[Arrival], *, block_tokens: int | None = None, model: str = "model") -> Load:
    """Chain the prompts' blocks.

    Args:
        arrivals: in order of time, all of blocks of one size.
        block_tokens: of the engines' cache; a multiple of the arrivals'. What is shared is then found in steps of that
            many tokens, which makes long prompts cheaper to simulate. None: as the arrivals'.
        model: name of the model that all ask for.
    """
    planned = []
    size = block_tokens
    for index, it in enumerate(arrivals):
        size = size or it.block_tokens
        if size % it.block_tokens:
            raise UsageError(
                f"request {index} has blocks of {it.block_tokens} tokens, which don't fill blocks of {size}"
            )
        each = size // it.block_tokens
        chained = chain(it.block_ids)
        whole = chained[each - 1 :: each]
        blocks = whole if len(whole) * each == len(chained) else (*whole, chained[-1])
        id_ = str(index)
        request = Request(
            id=id_,
            model=model,
            input_tokens=it.input_tokens,
            blocks=blocks,
            block_tokens=size,
            most_output_tokens=it.output_tokens,
            session=it.session,
        )
        planned.append(Planned(it.at_s, request, Job(id_, it.input_tokens, it.output_tokens, blocks)))
    return Load(tuple(planned), size or 1)
