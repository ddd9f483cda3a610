"""Measuring with ranks that live in this process: order, checks, failures; and the words around it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.bench.data import DATA_TYPES, Cell
from headway.bench.results import Results, Row, load
from headway.bench.run import with_limit
from headway.bench.session import Measurement, measure, parse_backends
from headway.bench.table import header, line
from headway.bench.worker import PreparePart, Reply, RunPart, Station
from headway.cluster.model import star
from headway.collectives.plan import Collective
from headway.errors import HeadwayError, UsageError


class _ExactPeer:
    """A library of one rank that knows the answer."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._result: NDArray[np.generic] = np.empty(0, np.float32)

    def prepare(self, cell: Cell) -> None:
        expected = cell.expected(self.rank)
        assert expected is not None
        self._result = expected.astype(np.float32)

    def reset(self) -> None: ...

    def barrier(self) -> None: ...

    def run(self) -> None: ...

    def result(self) -> NDArray[np.generic]:
        return self._result.copy()

    def plan(self) -> str:
        return "the answer"


class _Ranks:
    """All ranks here; backend `broken` cannot prepare, `lost` ends in the middle."""

    def __init__(self, ranks: int, *, spoiled_rank: int = -1) -> None:
        def spoil(result: NDArray[np.generic]) -> None:
            result[7] = 3.5

        self._stations = [
            Station(lambda backend, rank=rank: self._make(backend, rank), spoil=spoil if rank == spoiled_rank else None)  # type: ignore[misc]
            for rank in range(ranks)
        ]
        self.asked: list[str] = []

    @staticmethod
    def _make(backend: str, rank: int) -> _ExactPeer:
        if backend == "broken":
            raise HeadwayError("no such backend\nsecond line")
        return _ExactPeer(rank)

    def prepare(self, part: PreparePart) -> Sequence[Reply]:
        return [station.prepare(part, rank=rank) for rank, station in enumerate(self._stations)]

    def run(self, part: RunPart) -> Sequence[Reply]:
        self.asked.append(part.backend)
        if part.backend == "lost":
            raise HeadwayError("rank 1 has ended")
        return [station.run(part, rank=rank) for rank, station in enumerate(self._stations)]


_CELL = Cell(Collective.ALL_REDUCE, 2**20, DATA_TYPES["float"], "sum", -1, 2, 5)


def test_backends_take_turns_in_every_iteration() -> None:
    ranks = _Ranks(2)
    rows = measure(ranks, ("a", "b"), _CELL, Measurement(iterations=3, warmup=1, checks=1))
    assert ranks.asked == ["a", "b"] * 4
    assert [len(row.iterations_s) for row in rows] == [3, 3]
    assert [len(row.warmup_s) for row in rows] == [1, 1]
    assert [row.wrong for row in rows] == [0, 0]
    assert rows[0].plan == "the answer"


def test_small_sizes_run_back_to_back() -> None:
    ranks = _Ranks(2)
    cell = Cell(Collective.ALL_REDUCE, 16, DATA_TYPES["float"], "sum", -1, 2, 5)
    (row,) = measure(ranks, ("a",), cell, Measurement(iterations=50, warmup=0, checks=1))
    assert ranks.asked == ["a"]
    assert len(row.iterations_s) == 50
    assert row.wrong == 0


def test_one_wrong_element_on_one_rank_is_counted_in_each_checked_iteration() -> None:
    (row,) = measure(_Ranks(2, spoiled_rank=1), ("a",), _CELL, Measurement(iterations=5, warmup=0, checks=3))
    assert row.wrong == 3
    assert Results(headway="0", where="here", command=[], rows=[row]).failed


def test_without_checks_the_column_says_so() -> None:
    (row,) = measure(_Ranks(2), ("a",), _CELL, Measurement(iterations=1, warmup=0, checks=0))
    assert row.wrong is None
    assert "  N/A  " in line(row)


def test_a_backend_that_fails_says_why_and_the_others_go_on() -> None:
    rows = measure(_Ranks(2), ("broken", "lost", "a"), _CELL, Measurement(iterations=2, warmup=0, checks=1))
    assert rows[0].error == "rank 0: no such backend"
    assert rows[1].error == "rank 1 has ended"
    assert len(rows[2].iterations_s) == 2
    assert rows[2].error == ""
    assert "broken: rank 0: no such backend" in line(rows[0])


def test_a_budget_ends_a_backend_early_with_its_result_checked() -> None:
    how = Measurement(iterations=100, warmup=0, checks=1, budget_s=0.0)
    (row,) = measure(_Ranks(2), ("a",), _CELL, how)
    assert len(row.iterations_s) == 1
    assert row.wrong == 0


def _row(**changes: object) -> Row:
    row = Row(
        backend="gloo", collective=Collective.ALL_REDUCE, size_bytes=8_000_000, count=2_000_000, type="float",
        redop="sum", root=-1, ranks=8, iterations_s=[0.5, 0.7],
    )  # fmt: skip
    return row.model_copy(update=changes)


def test_a_row_states_bandwidths_as_nccl_tests_does() -> None:
    row = _row()
    assert row.algbw_Bps == pytest.approx(8e6 / 0.6)
    assert row.busbw_Bps == pytest.approx(8e6 / 0.6 * 14 / 8)
    assert row.limit_percent is None
    limited = with_limit(row, star(8, 25e6))
    assert limited.limit_percent == pytest.approx(100 * (2 * 7 * 8e6 / (8 * 25e6)) / 0.6)
    assert limited.bottleneck == "all uplinks together"
    slow = with_limit(row, star(8, 25e6).with_host(3, downlink_Bps=6.25e6))
    assert slow.bottleneck == "downlink of host 3"


def test_columns_come_in_the_order_of_nccl_tests_then_ours() -> None:
    results = Results(headway="0", where="here", command=[])
    names = next(text for text in header(results).splitlines() if "algbw" in text and "size" in text)
    assert names.lstrip("#").split() == (
        [
            "size",
            "count",
            "type",
            "redop",
            "root",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "i_p99",
            "i_cv%",
            "limit%",
            "backend",
            "plan",
            "bottleneck",
        ]
    )
    assert "GB/s = 1e9 bytes" in header(results)
    cells = line(_row(wrong=0, plan="ring")).split()
    assert cells[:9] == ["8000000", "2000000", "float", "sum", "-1", "600000", "0.0133", "0.0233", "0"]
    assert cells[-3:] == ["gloo", "ring", "-"]


def test_the_document_reads_back_and_has_a_schema(tmp_path: Path) -> None:
    results = Results(headway="0.1.0", where="here", command=["all_reduce"], rows=[_row(wrong=0)])
    path = tmp_path / "results.json"
    results.save(path)
    assert load(path) == results
    data = json.loads(path.read_text())
    assert data["v"] == 1
    assert data["rows"][0]["iterations_s"] == [0.5, 0.7]
    required = Results.model_json_schema()["$defs"]["Row"]["required"]
    assert set(required) <= set(data["rows"][0])
    assert list(tmp_path.iterdir()) == [path]


def test_backends_as_people_write_them() -> None:
    assert parse_backends("headway, gloo,headway:react") == ("headway:packing", "gloo", "headway:react")


@pytest.mark.parametrize("text", ["nccl", "gloo:react", "headway:fast", "gloo,gloo", "headway,headway:packing", ""])
def test_bad_backends(text: str) -> None:
    with pytest.raises(UsageError, match="--backends"):
        parse_backends(text)
