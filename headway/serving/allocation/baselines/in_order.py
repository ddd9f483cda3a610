"""A fixed split, and calls in an order that knows the workflow: as Ayo. Pure."""

from __future__ import annotations

MOST_DEPTH = 1023
"""Deeper calls of one run are not told apart (count)."""


class OldestRunFirst:
    """Calls of the run that came first go first; of one run, those with the fewest calls before them.

    After Ayo (Tan et al., ASPLOS 2025; earlier: Teola): its engines batch what belongs to one query together, older
    queries first, and of one query what is furthest from the end of its graph. The GPUs are split by the user.

    Left out: Ayo's rewriting of the graph (a prompt's known part computed ahead, answers passed on while they are
    written, stages cut into pieces), which wins where one run is alone; and its batches of fixed size. Kinder than the
    original: the engines batch continuously, routing takes the least loaded instance where the public code goes round,
    and runs of unknown length are no trouble, since depth is counted from the begin and not from the end.

    Objective: runs end in the order in which they came, so that a fan-out's last calls don't wait behind younger runs.
    Loses: nothing in throughput; latency of short runs behind long ones.
    """

    def __call__(self, run: int, depth: int) -> int:
        """Lower goes first."""
        return run * (MOST_DEPTH + 1) + min(depth, MOST_DEPTH)
