"""Recorded prompts: whether lengths are known, how long blocks are, and whose when a run comes again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low

from headway.errors import UsageError
from headway.serving.prefix import mix
from headway.serving.workflows.calls import Call

USUAL_TOKENS = 16
"""Tokens in a block where none were recorded: vLLM's."""
ALIKE = 2.0
"""A gateway cuts prompts by bytes and estimates the tokens of a block anew with each answer: sizes that are no farther
from the median than by this factor are taken as estimates of the same size (1)."""
MOST_OTHER = 0.25
"""Part of the calls that may be farther from it (1): before a gateway has seen an answer it assumes 4 bytes a token."""


def block_size(calls: Iterable[Call]) -> int:
    """Tokens in a block of these calls' prompts: the median of what is recorded, `USUAL_TOKENS` where nothing is.

    UsageError where more than `MOST_OTHER` of them are of quite another size: the recordings don't go together.
    """
    sizes = sorted(call.block_tokens for call in calls if call.blocks)
    if not sizes:
        return USUAL_TOKENS
    usual = median_low(sizes)
    others = [size for size in sizes if not usual / ALIKE <= size <= usual * ALIKE]
    if len(others) > MOST_OTHER * len(sizes):
        raise UsageError(
            f"prompts' blocks are of {usual} tokens, and of {Counter(others).most_common(1)[0][0]}",
            where="calls",
            hint="take recordings of one gateway, or leave out their blocks",
        )
    return usual


def check_lengths(calls: Iterable[Call]) -> None:
    """UsageError where a prompt's length is not known: no engine can be asked for it again."""
    unknown = [call for call in calls if call.input_tokens < 1]
    if unknown:
        raise UsageError(
            f"{len(unknown)} have no token counts, the first: call {unknown[0].id} of {unknown[0].workflow} to "
            f"{unknown[0].model}",
            where="calls",
            hint="record them at the gateway with ask_usage, or have the spans' usage attributes set",
        )


class Copies:
    """Gives the blocks of a run that comes again names of its own, but for those that several runs have.

    Args:
        runs: the calls of each run.
        seed: copies under two seeds share nothing that only one run has.
    """

    def __init__(self, runs: Iterable[Sequence[Call]], *, seed: int) -> None:
        of_runs = Counter(block for run in runs for block in {block for call in run for block in call.blocks})
        self._shared = frozenset(block for block, number in of_runs.items() if number > 1)
        self._seed = mix(seed)

    def renamed(self, blocks: Sequence[int], copy: int) -> tuple[int, ...]:
        """A prompt's blocks in the run's copy of that number."""
        salt = mix(self._seed ^ copy)
        return tuple(block if block in self._shared else block ^ salt for block in blocks)
