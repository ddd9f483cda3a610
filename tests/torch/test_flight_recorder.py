"""Dumps are given to torch's own analyser: it must read them, and name the rank that is at fault."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.flight_recorder.components.fr_logger import FlightRecorderLogger

from headway.torch.flight_recorder import KINDS, FlightRecorder, dump_groups

SHAPE = [[1024]]


def play(recorder: FlightRecorder, *kinds: str, size: int = 1024) -> None:
    for kind in kinds:
        shapes = [] if kind == "barrier" else [[size]]
        number = recorder.begin(kind, shapes, shapes, None if kind == "barrier" else torch.float32, 30.0)
        recorder.started(number)
        recorder.completed(number)


@contextlib.contextmanager
def analyser_says() -> Iterator[list[str]]:
    """Lines that the analyser logs; its logger is one object that does not propagate."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = FlightRecorderLogger().logger
    handler = Keep()
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def analyse(folder: Path) -> tuple[list[str], int]:
    """The analyser's lines, and how many collectives it matched on all ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the analyser's own imports
        from torch.distributed.flight_recorder import fr_trace
    output = folder.parent / "database.pickle"
    with analyser_says() as lines:
        fr_trace.main([str(folder), "--prefix", "rank_", "-o", str(output)])
    _, database = pickle.loads(output.read_bytes())
    return lines, sum(c.pass_check and not c.missing_ranks for c in database.collectives)


def recorders(size: int, capacity: int = 100) -> list[FlightRecorder]:
    return [FlightRecorder("default", rank, size, capacity, description="all ranks") for rank in range(size)]


def dump(folder: Path, every: list[FlightRecorder]) -> Path:
    folder.mkdir()
    for recorder in every:
        recorder.dump(folder / f"rank_{recorder.rank}")
    return folder


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_healthy_run_is_matched_completely(tmp_path: Path, size: int) -> None:
    every = recorders(size)
    for recorder in every:
        play(recorder, "broadcast", "all_reduce", "barrier", "all_reduce")
    lines, matched = analyse(dump(tmp_path / "dumps", every))
    assert matched == 4
    assert not any("sequence number" in line for line in lines), lines


@pytest.mark.parametrize(("size", "culprit"), [(2, 1), (4, 2), (4, 0)])
def test_the_rank_that_missed_a_collective_is_named(tmp_path: Path, size: int, culprit: int) -> None:
    every = recorders(size)
    for recorder in every:
        play(recorder, "all_reduce", "all_reduce")
        if recorder.rank != culprit:
            number = recorder.begin("all_reduce", SHAPE, SHAPE, torch.float32, 30.0)
            recorder.started(number)
            recorder.completed(number, failed=True)
    lines, matched = analyse(dump(tmp_path / "dumps", every))
    assert matched == 2
    assert "Not all ranks joining collective, sequence number: 3" in lines
    assert f"missing ranks: {{{culprit}}}" in lines
    assert "collective: gloo:all_reduce" in lines
    assert "collective state: started" in lines
    assert any("test_flight_recorder.py" in line for line in lines), "the user's line is in the stack"


def test_another_collective_and_another_size_are_named(tmp_path: Path) -> None:
    every = recorders(3)
    for recorder in every:
        play(recorder, "all_reduce")
        play(recorder, "broadcast" if recorder.rank == 2 else "all_reduce")
    lines, _ = analyse(dump(tmp_path / "kinds", every))
    # The analyser compares with the dump that it happens to read first, so either side may be called the culprit.
    (error,) = [line for line in lines if line.startswith("error msg: ")]
    assert "COLLECTIVE_TYPE_MISMATCH" in error
    assert "'all_reduce'" in error
    assert "'broadcast'" in error
    every = recorders(3)
    for recorder in every:
        play(recorder, "all_reduce", size=8 if recorder.rank == 1 else 16)
    lines, _ = analyse(dump(tmp_path / "sizes", every))
    (error,) = [line for line in lines if line.startswith("error msg: ")]
    assert "SIZE_OR_SYNTAX_MISMATCH" in error
    assert "'[[8]]'" in error
    assert "'[[16]]'" in error


def test_lists_of_tensors_match_as_the_analyser_counts_them(tmp_path: Path) -> None:
    every = recorders(2)
    for recorder in every:
        recorder.completed(recorder.begin("all_gather", [[3, 2]], [[3, 2], [3, 2]], torch.int64, 1.0))
        recorder.completed(recorder.begin("reduce_scatter", [[5], [5]], [[5]], torch.bfloat16, 1.0))
        recorder.completed(recorder.begin("all_gather_single", [[4]], [[8]], torch.float64, 1.0))
    lines, matched = analyse(dump(tmp_path / "dumps", every))
    assert matched == 3, lines


def test_sends_match_receives_and_leave_collectives_alone(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        play(recorder, "all_reduce")
        right, left = (recorder.rank + 1) % 4, (recorder.rank - 1) % 4
        for _ in range(2):
            recorder.completed(recorder.begin("send", SHAPE, SHAPE, torch.float32, 1.0, peer=right))
            recorder.completed(recorder.begin("recv", SHAPE, SHAPE, torch.float32, 1.0, peer=left))
        play(recorder, "barrier")
    lines, matched = analyse(dump(tmp_path / "dumps", every))
    assert matched == 2 + 2 * 4, lines
    assert not any("sequence number" in line for line in lines), lines


def test_a_missing_receive_names_the_receiver(tmp_path: Path) -> None:
    every = recorders(3)
    every[0].begin("send", SHAPE, SHAPE, torch.float32, 1.0, peer=2)
    lines, _ = analyse(dump(tmp_path / "dumps", every))
    assert "missing ranks: {2}" in lines
    assert any("group info: default 0->2" in line for line in lines)


def test_subgroups_share_one_dump_with_global_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(4):
        world = FlightRecorder("world", rank, 4, description="all")
        pair = FlightRecorder("pair", rank % 2, 2, ranks=[2, 3], description="tensor parallel") if rank >= 2 else None
        play(world, "all_reduce")
        if pair is not None and rank != 3:
            play(pair, "all_reduce")
        dump_groups(folder / f"rank_{rank}", [r for r in (world, pair) if r is not None])
    lines, matched = analyse(folder)
    assert matched == 1
    assert "missing ranks: {3}" in lines
    assert "group info: pair:tensor parallel" in lines


def test_the_ring_forgets_the_oldest(tmp_path: Path) -> None:
    every = recorders(2, capacity=3)
    for recorder in every:
        first = recorder.begin("barrier", [], [], None, 1.0)
        play(recorder, *["all_reduce"] * 4)
        recorder.started(first)
        recorder.completed(first)
        assert recorder.forgotten == 2
    folder = dump(tmp_path / "dumps", every)
    kept = pickle.loads((folder / "rank_0").read_bytes())
    assert [e["collective_seq_id"] for e in kept["entries"]] == [3, 4, 5]
    assert [e["record_id"] for e in kept["entries"]] == [2, 3, 4]
    assert kept["pg_status"]["0"]["last_enqueued_collective"] == 5
    lines, matched = analyse(folder)
    assert matched == 3, lines


def test_it_has_the_fields_of_torchs_own_dump(tmp_path: Path) -> None:
    recorder = recorders(1)[0]
    play(recorder, "all_reduce")
    recorder.dump(tmp_path / "rank_0")
    ours = pickle.loads((tmp_path / "rank_0").read_bytes())
    assert ours["version"] == "2.10"
    (entry,) = ours["entries"]
    assert entry["state"] == "completed"
    assert entry["input_dtypes"] == ["Float"]
    assert entry["timeout_ms"] == 30000
    assert entry["time_created_ns"] <= entry["time_discovered_started_ns"] <= entry["time_discovered_completed_ns"]
    assert set(entry) == {
        "collective_seq_id", "frames", "input_dtypes", "input_sizes", "is_p2p", "op_id", "output_dtypes",
        "output_sizes", "p2p_seq_id", "pg_id", "process_group", "profiling_name", "record_id", "retired", "state",
        "thread_id", "thread_name", "time_created_ns", "time_discovered_completed_ns", "time_discovered_started_ns",
        "timeout_ms",
    }  # fmt: skip


def test_threads_may_share_it(tmp_path: Path) -> None:
    recorder = FlightRecorder("default", 0, 1, capacity=10_000)
    threads = [threading.Thread(target=play, args=(recorder, *["all_reduce"] * 200)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    recorder.dump(tmp_path / "rank_0")
    entries = pickle.loads((tmp_path / "rank_0").read_bytes())["entries"]
    assert sorted(e["collective_seq_id"] for e in entries) == list(range(1, 801))
    assert {e["state"] for e in entries} == {"completed"}


def test_a_dump_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    recorder = recorders(1)[0]
    with pytest.raises(OSError, match="No such file"):
        recorder.dump(tmp_path / "missing" / "rank_0")
    (tmp_path / "rank_0").mkdir()
    with pytest.raises(OSError, match="directory"):
        recorder.dump(tmp_path / "rank_0")
    assert [p.name for p in tmp_path.iterdir()] == ["rank_0"]


def test_wrong_use_is_refused() -> None:
    recorder = recorders(2)[0]
    with pytest.raises(ValueError, match="no kind of operation"):
        recorder.begin("allreduce", SHAPE, SHAPE, torch.float32, 1.0)
    for peer in (None, 2, -1):
        with pytest.raises(ValueError, match="needs a peer"):
            recorder.begin("send", SHAPE, SHAPE, torch.float32, 1.0, peer=peer)
    with pytest.raises(ValueError, match="room"):
        FlightRecorder("default", 0, 2, 0)
    with pytest.raises(ValueError, match="global ranks"):
        FlightRecorder("default", 0, 2, ranks=[0, 1, 2])


def test_the_analyser_knows_every_kind() -> None:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES

    assert KINDS <= COLLECTIVES
