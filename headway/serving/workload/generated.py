"""Loads like Mooncake's three traces, of any length. Pure; the same seed gives the same load.

The quantiles below were counted in the public traces (Mooncake, FAST '25; conversation and synthetic), so the loads
agree with these in lengths, prefix hits, reuse distance and depth; `docs/loadgen.md` has the comparison. The
tool-and-agent trace is fitted to what is published of it only: 8.6K tokens in, 182 out, hit share 0.58, reuse distance
306 (Lodestar, arXiv 2606.00946, section "Workloads"). What the loads do not have: correlation between prompt and output
lengths, changes in the course of the day, and users that come back after hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from headway.serving.workload.arrival import Arrival
from headway.serving.workload.sessions import BLOCK_TOKENS, Ids, Quantiles, Session, extend, sequence

NAMES = ("conversation", "toolagent", "synthetic")


def conversation(times_s: Sequence[float], *, seed: int) -> list[Arrival]:
    """Chat: one system prompt for all; sessions whose prompt is the earlier turns and a new message."""
    return sequence(_Conversation(), times_s, seed=seed)


def toolagent(times_s: Sequence[float], *, seed: int) -> list[Arrival]:
    """Agents: each belongs to an application whose long prompt of instructions and tools all its sessions share."""
    return sequence(_ToolAgent(), times_s, seed=seed)


def synthetic(times_s: Sequence[float], *, seed: int) -> list[Arrival]:
    """Short questions that share nothing, long documents asked about once, and long documents asked about again."""
    return sequence(_Synthetic(), times_s, seed=seed)


class _Conversation:
    """Counted in Mooncake's conversation trace (12,031 requests)."""

    FIRST = Quantiles((891, 905, 1092, 1757, 3913, 5264, 7418, 10771, 15871, 25559, 38494, 89868, 126195))
    OUTPUT = Quantiles(
        (1, 10, 24, 46, 100, 157, 213, 256, 291, 323, 350, 399, 447, 504, 597, 698, 892, 1119, 2000, 2000),
        (0, .05, .1, .15, .2, .25, .3, .35, .4, .45, .5, .6, .7, .8, .9, .95, .98, .99, .997, 1),
    )  # fmt: skip
    MESSAGE = Quantiles(
        (1, 1, 5, 7, 8, 11, 15, 22, 33, 60, 110, 171, 356, 694, 2543, 4194, 6921, 16705, 91467),
        (0, .1, .15, .22, .25, .3, .4, .45, .55, .6, .65, .7, .75, .8, .85, .9, .95, .99, 1),
    )  # fmt: skip
    REWRITTEN = Quantiles((10, 1773, 4985, 7016, 8542, 9567, 10940, 13680, 15906, 19891, 26341, 39348, 94969))
    REWRITTEN_SHARES = ((3000, 0.0), (6000, 0.06), (12_000, 0.17), (32_000, 0.32), (200_000, 0.17))
    """Share of turns that keep a part of the earlier prompt only (an edited or shortened history), by its length."""
    GOES_ON = (0.42, 0.45, 0.53, 0.61, 0.62, 0.70, 0.77)  # after turn 1, 2, ...; the last one for all later turns
    LONG_GOES_ON = 0.72  # of that, where the prompt is long
    LONG_TOKENS = 32_000
    LEAST_LASTING_TOKENS = 1024  # shorter first prompts never come back in the trace
    GAP = (6.12, 0.98)  # log mean and deviation, requests, at GAP_TOKENS; longer prompts come back later
    GAP_TOKENS = 6000
    GAP_EXPONENT = 0.25

    def __init__(self) -> None:
        self._system: list[int] = []

    def start(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        if not self._system:
            self._system = ids.fresh(1)
        session.whole = list(self._system)
        extend(session, self.FIRST.draw(random), ids)
        session.output_tokens = self.OUTPUT.draw(random)
        session.lasting = session.input_tokens >= self.LEAST_LASTING_TOKENS

    def go_on(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        rewritten = next((share for most, share in self.REWRITTEN_SHARES if session.input_tokens < most), 0.0)
        if random.random() < rewritten:
            kept = max(1, round(len(session.whole) * random.beta(0.8, 1.6)))
            extend(session, kept * BLOCK_TOKENS + self.REWRITTEN.draw(random), ids, kept=kept)
        else:
            extend(session, session.input_tokens + session.output_tokens + self.MESSAGE.draw(random), ids)
        session.output_tokens = self.OUTPUT.draw(random)

    def gap(self, session: Session, random: np.random.Generator) -> float | None:
        goes_on = self.GOES_ON[min(session.turn, len(self.GOES_ON)) - 1] if session.lasting else 0.0
        if session.input_tokens >= self.LONG_TOKENS:
            goes_on *= self.LONG_GOES_ON
        later = (session.input_tokens / self.GAP_TOKENS) ** self.GAP_EXPONENT
        return later * float(random.lognormal(*self.GAP)) if random.random() < goes_on else None


class _ToolAgent:
    """Applications by a power law, each with a prompt of its own, under sessions whose tools answer turn by turn."""

    APPLICATIONS = 130
    POPULARITY = 0.9  # exponent of the power law
    TOOL_PROMPT = (8.06, 0.8)  # log mean and deviation, tokens
    TASK = (7.7, 1.1)
    RESULT = (6.6, 1.2)
    OUTPUT = (4.53, 1.18)
    GOES_ON = 0.33
    GAP = (6.08, 1.0)  # log mean and deviation, requests
    MOST_TOKENS = 120_000

    def __init__(self) -> None:
        weights = np.arange(1, self.APPLICATIONS + 1, dtype=float) ** -self.POPULARITY
        self._popularity = np.cumsum(weights / weights.sum())
        self._prompts: list[tuple[int, list[int]]] = []

    def start(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        if not self._prompts:
            self._prompts = [(tokens, ids.fresh(tokens // BLOCK_TOKENS)) for tokens in self._lengths()]
        which = int(np.searchsorted(self._popularity, random.random()))
        tokens, shared = self._prompts[min(which, self.APPLICATIONS - 1)]
        session.whole = list(shared)
        extend(session, tokens + self._draw(self.TASK, random), ids)
        session.output_tokens = self._draw(self.OUTPUT, random, most=2000)

    def go_on(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        extend(session, session.input_tokens + session.output_tokens + self._draw(self.RESULT, random), ids)
        session.output_tokens = self._draw(self.OUTPUT, random, most=2000)

    def gap(self, session: Session, random: np.random.Generator) -> float | None:
        if session.input_tokens > self.MOST_TOKENS or random.random() >= self.GOES_ON:
            return None
        return float(random.lognormal(*self.GAP))

    def _lengths(self) -> list[int]:
        """Tool prompts' lengths: quantiles in an order that spreads them, so that no seed has a popular odd one."""
        law = NormalDist(*self.TOOL_PROMPT)
        return [round(float(np.exp(law.inv_cdf(_spread(k + 1))))) for k in range(self.APPLICATIONS)]

    def _draw(self, law: tuple[float, float], random: np.random.Generator, *, most: int = 60_000) -> int:
        return min(most, max(1, round(float(random.lognormal(*law)))))


class _Synthetic:
    """Counted in Mooncake's synthetic trace (3,993 requests)."""

    SHORT_SHARE = 0.535  # of new sessions
    ONCE_SHARE = 0.285
    SHORT = Quantiles((13, 20, 24, 30, 36, 47, 69, 108, 215, 442, 648, 974, 1022))
    SHORT_OUTPUT = Quantiles((1, 36, 96, 149, 208, 254, 303, 352, 432, 577, 698, 802, 842))
    ONCE = Quantiles((1048, 2000, 10066, 14347, 15474, 16391, 17509, 19270, 22111, 28153, 36231, 61996, 134773))
    ONCE_OUTPUT = Quantiles((1, 83, 151, 185, 214, 243, 274, 307, 342, 390, 452, 691, 800))
    DOCUMENT = Quantiles((13, 2961, 5850, 13775, 16689, 19493, 25733, 31588, 37139, 43741, 52690, 66145, 191374))
    DOCUMENT_OUTPUT = Quantiles((1, 2, 4, 7, 10, 16, 24, 41, 68, 104, 162, 524, 893))
    QUESTION = Quantiles((5, 60, 110, 195, 271, 336, 410, 476, 539, 600, 900, 1600, 2000))
    ASKED_AGAIN = (1.0, 0.96, 0.94, 0.92, 0.92, 0.88, 0.84, 0.8, 0.75)  # after question 1, 2, ...
    LONG_ASKED_AGAIN = 0.94  # of that, where the document is long
    LONG_TOKENS = 28_000
    GAP = (5.75, 1.5)  # log mean and deviation, requests

    def start(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        kind = random.random()
        if kind < self.SHORT_SHARE:
            tokens, output = self.SHORT, self.SHORT_OUTPUT
        elif kind < self.SHORT_SHARE + self.ONCE_SHARE:
            tokens, output = self.ONCE, self.ONCE_OUTPUT
        else:
            tokens, output = self.DOCUMENT, self.DOCUMENT_OUTPUT
        session.lasting = tokens is self.DOCUMENT
        extend(session, tokens.draw(random), ids)
        session.output_tokens = output.draw(random)

    def go_on(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        document = max(0, (session.input_tokens - 1) // BLOCK_TOKENS)
        extend(session, document * BLOCK_TOKENS + self.QUESTION.draw(random), ids, kept=document)
        session.output_tokens = self.DOCUMENT_OUTPUT.draw(random)

    def gap(self, session: Session, random: np.random.Generator) -> float | None:
        again = self.ASKED_AGAIN[min(session.turn, len(self.ASKED_AGAIN)) - 1] if session.lasting else 0.0
        if session.input_tokens >= self.LONG_TOKENS:
            again *= self.LONG_ASKED_AGAIN
        return float(random.lognormal(*self.GAP)) if random.random() < again else None


def _spread(number: int) -> float:
    """The number's binary digits mirrored at the point (van der Corput): 0.5, 0.25, 0.75, 0.125, ..."""
    value, digit = 0.0, 0.5
    while number:
        value += digit * (number & 1)
        number, digit = number >> 1, digit / 2
    return value
