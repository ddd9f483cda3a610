"""Interleaving in a job: the same sums, a word in the journal, and mistakes told before the ranks meet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway.decide.journal import InterleaveRecord, parse_lines
from headway.report.explain import tell
from headway.report.interleaving import interleaving
from headway.report.runs import runs_of
from tests.torch.world import WorldError, run_world

pytestmark = pytest.mark.ranks


def loop(iterations: int) -> float:
    """A job that computes and then sums; the last sum."""
    tensor = torch.zeros(1)
    for number in range(iterations):
        time.sleep(0.12)
        tensor = torch.full((300_000,), float(number + dist.get_rank()))
        dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])


@pytest.mark.parametrize("actuator", ["streams", "pacing"])
def test_sums_are_right_and_the_journal_says_what_was_learnt(actuator: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    environment = {"HEADWAY_INTERLEAVE": actuator, "HEADWAY_JOURNAL": str(path), "HEADWAY_INTERLEAVE_MOST": "4"}
    assert run_world(3, loop, 8, environment=environment) == [24.0] * 3
    records = list(parse_lines(path.read_text().splitlines(), where=str(path)))
    (learnt,) = [record for record in records if isinstance(record, InterleaveRecord)]
    assert (learnt.rank, learnt.actuator) == (0, actuator)
    assert learnt.iterations >= 5
    (run,) = runs_of([("run", records)])
    assert tell(run).closing[-1] == interleaving(learnt)


def test_more_connections_give_the_same_sums() -> None:
    assert run_world(3, loop, 3, environment={"HEADWAY_STREAMS": "4"}) == [9.0] * 3


def test_a_mistake_is_told_before_the_ranks_meet() -> None:
    with pytest.raises(WorldError, match="HEADWAY_INTERLEAVE_MOST"):
        run_world(2, loop, 1, environment={"HEADWAY_INTERLEAVE": "streams", "HEADWAY_INTERLEAVE_MOST": "0"})


def test_a_record_in_words() -> None:
    record = InterleaveRecord(t_s=1.0, rank=0, actuator="pacing", iterations=9)
    assert interleaving(record).endswith("9 iterations, not periodic at the end: plain TCP.")
    known = {"iteration_bytes": 12_000_000, "period_s": 1.2, "isolated_s": 1.0, "overlap": 0.25}
    slow = record.model_copy(update=known)
    assert "not settled, 25 % of its sending time" in interleaving(slow)
    settled = slow.model_copy(update={"settled_after": 4, "settled": False})
    assert interleaving(settled).endswith("settled after 4, but not at the end.")
