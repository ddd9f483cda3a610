"""What is said of a training run, the journal that grows, and the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.bench.journal_tail import JournalTail
from headway.bench.markdown import algbw_table
from headway.bench.results import Row
from headway.bench.settle import Settling
from headway.bench.training import Phases, Step, TrainingRun, default_script, weights_differ
from headway.collectives.plan import Collective
from headway.decide.journal import OperationRecord, to_line


def _run(tmp_path: Path, backend: str = "gloo") -> TrainingRun:
    run = TrainingRun(backend, Phases(3, 4, 3), tmp_path / "journal", tmp_path / f"{backend}.pt", gradient_bytes=10)
    times = [9.0, 1.0, 1.0, 9.0, 4.0, 2.0, 2.0, 9.0, 1.0, 0.5]
    run.steps = [Step(number, 0.1, time_s, 0.0) for number, time_s in enumerate(times)]
    run.limits_s = {"before": 0.5, "under": 1.0, "after": 0.5}
    return run


def test_phases_leave_out_the_first_step_and_those_that_saw_a_change(tmp_path: Path) -> None:
    run = _run(tmp_path)
    assert run.times_s("before") == [1.0, 1.0]
    assert run.times_s("under") == [4.0, 2.0, 2.0]
    assert run.times_s("under", settled=True) == [2.0, 2.0]
    assert run.times_s("after") == [1.0, 0.5]
    assert run.steps_per_s("under") == 0.5
    assert run.algbw_Bps("before") == 10
    assert run.limit_percent("under") == 50


def test_weights_are_compared_element_by_element(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "gloo"), _run(tmp_path, "headway")]
    weights = torch.arange(4.0)
    torch.save({"w": weights}, runs[0].weights)
    torch.save({"w": weights + torch.tensor([0.0, 0.25, 0.0, -0.5])}, runs[1].weights)
    assert weights_differ(runs) == 0.5


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    tail = JournalTail(path)
    assert tail.new_records() == []
    record = OperationRecord(
        t_s=1, rank=0, operation=0, collective="all_reduce", size_bytes=1, plan="ring", duration_s=1
    )
    line = to_line(record) + "\n"
    path.write_text(line + line[:10])
    assert tail.new_records() == [record]
    assert tail.new_records() == []
    with path.open("a") as stream:
        stream.write(line[10:])
    assert tail.new_records() == [record]


def test_operations_until_the_plan_rested() -> None:
    assert Settling((1.0,) * 5, ("a", "a", "b", "b", "b"), settled=True).operations == 2
    assert Settling((1.0,) * 2, ("a", "a"), settled=True).operations == 0
    assert Settling((), (), settled=False).operations == 0


def test_a_markdown_table_has_a_line_per_condition_and_size() -> None:
    def row(backend: str, *times_s: float) -> Row:
        return Row(
            backend=backend, collective=Collective.ALL_REDUCE, size_bytes=8_000_000, count=2_000_000, type="float",
            redop="sum", root=-1, ranks=8, iterations_s=list(times_s), limit_s=0.5, condition="idle",
        )  # fmt: skip

    lines = algbw_table([row("gloo", 1.0), row("headway:packing", 0.8, 1.0, 2.0)], ("gloo", "headway:packing"))
    heads, _, figures = lines.splitlines()
    assert heads == "| condition | size | gloo | headway:packing | limit | headway:packing / limit |"
    assert figures == "| idle | 8 MB | 8.00 | 8.00 (4.00-10.00) | 16.00 | 50 % |"


def test_the_training_example_is_in_the_source_tree_and_knows_nothing_of_headway() -> None:
    text = default_script().read_text()
    assert "import headway" not in text
    assert "from headway" not in text


@pytest.mark.parametrize(("step", "name"), [(0, ""), (2, "before"), (3, ""), (4, "under"), (7, ""), (9, "after")])
def test_names_of_phases(step: int, name: str) -> None:
    assert Phases(3, 4, 3).name(step) == name
