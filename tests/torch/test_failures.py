"""A rank that fails gives every other rank an error that names it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.torch import failures
from tests.torch.failures import VICTIM
from tests.torch.world import run_world

pytestmark = pytest.mark.ranks


def survivors(reports: list[Any]) -> list[dict[str, Any]]:
    return [report for rank, report in enumerate(reports) if rank != VICTIM]


def test_a_killed_rank_is_named_at_once() -> None:
    for report in survivors(run_world(3, failures.fails_midway, "die", may_die=[VICTIM])):
        assert report["lost"], report
        assert report["rank"] == VICTIM
        assert f"rank {VICTIM}" in report["text"]
        assert "all_reduce #" in report["text"]
        assert report["again"]["rank"] == VICTIM  # the group stays broken
        assert report["threads"] == []


def test_a_stopped_rank_is_named_at_the_limit() -> None:
    reports = run_world(3, failures.fails_midway, "stop", group_timeout_s=2, may_die=[VICTIM], timeout_s=40)
    for report in survivors(reports):
        assert report["late"], report
        assert report["rank"] == VICTIM
        assert f"rank {VICTIM} does not answer" in report["text"]
        assert report["threads"] == []


def test_a_rank_that_does_not_take_part_is_named() -> None:
    for report in survivors(run_world(3, failures.one_stays_away)):
        assert report["late"], report
        assert report["rank"] == VICTIM
        assert "has not called it" in report["text"]


@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        ("dtype", "all_reduce of 50000 float64 by sum"),
        ("same size", "all_reduce of 50000 int32 by sum"),
        ("size", "all_reduce of 40000 float32 by sum"),
        ("op", "all_reduce of 50000 float32 by max"),
        ("broadcast 0", "broadcast of 50000 float32 from rank 0"),
        ("broadcast 1", "broadcast of 50000 float32 from rank 1"),
        ("broadcast 1, early", "broadcast of 50000 float32 from rank 1"),
    ],
)
def test_a_rank_that_calls_something_else_is_named(how: str, theirs: str) -> None:
    for report in run_world(3, failures.called_differently, how):
        assert report["kind"] == "CollectiveMismatchError", report
        assert report["rank"] == VICTIM
        assert (
            f"rank {VICTIM} called {theirs}, ranks 0 and 2 all_reduce of 50000 float32 by sum: "
            "all ranks must call the same"
        ) in report["text"]
        assert " #1" in report["text"]


def test_ranks_that_wait_for_each_other_hear_why() -> None:
    for report in run_world(2, failures.both_wait_for_the_other, group_timeout_s=2.0):
        assert "rank 0 called broadcast of 10 float32 from rank 1" in report["text"], report
        assert "rank 1 broadcast of 10 float32 from rank 0" in report["text"]


def test_a_rank_that_comes_too_late_hears_that_it_was_waited_for() -> None:
    reports = run_world(3, failures.one_comes_too_late, group_timeout_s=1.5)
    assert "the others gave up after 1.5 s because this rank had not called all_reduce #1" in reports[VICTIM]["text"]
    assert reports[VICTIM]["rank"] == VICTIM
    for report in survivors(reports):
        assert "has not called it" in report["text"], report


def test_a_limit_of_the_wait_leaves_the_operation_running() -> None:
    for report in survivors(run_world(3, failures.call_limit)):
        assert report["late"], report
        assert "it goes on" in report["text"]


def test_abort_reaches_the_ranks_that_wait() -> None:
    reports = run_world(3, failures.aborted)
    for report in reports[1:]:
        assert report["rank"] == 0, report
        assert "rank 0" in report["text"]


def test_a_subgroup_names_the_rank_of_the_job_too() -> None:
    reports = run_world(3, failures.subgroup_names_both_ranks, may_die=[2])
    assert "rank 1 of this group is rank 2 of the job" in reports[1]["text"], reports


def test_the_flight_recorders_dump_shows_who_missed_what(tmp_path: Path) -> None:
    run_world(
        3,
        failures.leaves_a_dump,
        environment={"HEADWAY_FLIGHT_RECORDER": f"{tmp_path}/dumps/fr_"},
        group_timeout_s=1.5,
    )
    dumps = [pickle.loads((tmp_path / "dumps" / f"fr_{rank}").read_bytes()) for rank in range(3)]
    names = [entry["profiling_name"] for entry in dumps[0]["entries"]]
    assert [name.split(":")[1].split(" ")[0] for name in names] == [
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather", "scatter", "all_to_all_single", "send",
        "barrier", "all_reduce",
    ]  # fmt: skip
    states = [[entry["state"] for entry in dump["entries"]] for dump in dumps]
    assert states[0] == ["completed"] * 9 + ["started"]
    assert states[1] == ["completed"] * 9
