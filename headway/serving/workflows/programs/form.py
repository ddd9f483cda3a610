"""The steps of a workflow's program, and what a program is given to draw from. Pure."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headway.serving.prefix import mix
from headway.serving.workflows.programs.prompt import Prompt

LONGEST_TOKENS = 4096
"""No draw of a length is longer, unless a program says so (count)."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask a model and wait for its whole answer; the result is the `Call`."""

    model: str
    prompt: Prompt
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time that no model is needed for: a tool, a search, the application itself. The result is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class All:
    """Parts side by side, and a barrier: it ends when the last has; the result is the list of their results."""

    parts: Sequence[Step | Program]


Step: TypeAlias = CallModel | Sleep | All
Program: TypeAlias = Generator[Step, object, Any]
"""What it returns is its result where it is a part of an `All`; a program that returns nothing needs no `return`."""


def text_of(name: str) -> int:
    """The number of a text that all runs know by this name."""
    return zlib.crc32(name.encode())


class Context:
    """What one run of a program draws from: the same for the same seed and run, whatever else is run.

    Attributes:
        random: for its branches and loops.
        run: its number among the runs of its workflow, from 0.
        block_tokens: tokens in a block of its prompts.
    """

    def __init__(self, *, seed: int, run: int, block_tokens: int) -> None:
        self._texts = mix(mix(seed & 0xFFFF_FFFF) ^ run)
        self.random = random.Random(self._texts)
        self.run = run
        self.block_tokens = block_tokens

    def prompt(self, *shared: tuple[str, int]) -> Prompt:
        """A prompt of texts that other runs have too: (name, tokens), the same text for the same name."""
        prompt = Prompt(self.block_tokens)
        for name, tokens in shared:
            prompt = prompt.plus(text_of(name), tokens)
        return prompt

    def text(self) -> int:
        """Names a text that is in no other run, nor elsewhere in this one."""
        self._texts = mix(self._texts)
        return self._texts

    def length(self, median: float, sigma: float, *, least: int = 1, most: int = LONGEST_TOKENS) -> int:
        """A length in tokens, lognormal, cut to `least` and `most`."""
        drawn = round(self.random.lognormvariate(math.log(median), sigma))
        return min(max(drawn, least), most)

    def seconds(self, median_s: float, sigma: float, *, most_s: float = 60.0) -> float:
        """A time, lognormal, cut to `most_s`."""
        return min(self.random.lognormvariate(math.log(median_s), sigma), most_s)


Workflow: TypeAlias = Callable[[Context], Program]
"""Makes a run."""
