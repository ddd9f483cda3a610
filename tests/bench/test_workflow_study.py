"""The workflow study's cells, on a small workload and short runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pydantic import JsonValue

from bench import workflow_cell, workflow_known, workflow_oracle, workflow_study, workflow_tables
from bench.workflow_known import Json, Known
from headway.serving.allocation import engine_profile
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.types import Shape, Share
from headway.serving.simulate import steady
from headway.sim.studies.cells import Cell, Row

GPUS = 2


@pytest.fixture(scope="module")
def facts() -> Json:
    """What is known of the ReAct agents' workload, from few runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow_known, "LONELY_RUNS", 60)
        patch.setattr(engine_profile, "CALLS", 80)

        def run(part: str, cells: list[Cell], function: workflow_study.Function) -> list[Row]:
            return [Row(str(at), cell.parameters, function(cell.work), "", 0.0) for at, cell in enumerate(cells)]

        return workflow_study.known_cells(run, ["react"], slices=2, runs=40, seed=1)["react"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_cell, "FEWEST_RUNS", 30)
    monkeypatch.setattr(workflow_cell, "TURNS", 0.4)
    monkeypatch.setattr(workflow_cell, "WITHIN", 0.3)
    monkeypatch.setattr(workflow_cell, "LOW", (0.1,))
    monkeypatch.setattr(steady, "WARM_UP", 0.5)


def peak(facts: Json, method: str) -> Row:
    shown: dict[str, JsonValue] = {"workload": "react", "gpus": GPUS, "method": method, "seed": 1}
    values = workflow_cell.find_peak({**facts, **shown, "limits": [3.0], "span": 1.0})
    return Row(method, shown, values, "", 0.0)


@pytest.mark.usefixtures("short")
def test_a_peak_is_the_last_rate_within_the_limit(facts: Json) -> None:
    row = peak(facts, "equal")
    scale = workflow_tables.peak_of(row, 3.0)
    within = {}
    for point in workflow_tables.items(row.values["points"]):
        seen = workflow_tables.fields(point["react"])
        over = float("inf") if not seen["whole"] else seen["mean_s"] / seen["alone_s"]  # type: ignore[operator]
        within[workflow_tables.number(point["scale"])] = over <= 3.0
    assert within[scale]
    assert not any(holds for rate, holds in within.items() if rate > scale)
    assert min(rate for rate in within if rate > scale) <= scale * (1 + workflow_cell.WITHIN)
    assert all(rate > 0 for rate in workflow_tables.fields(row.values["full"]).values())  # type: ignore[operator]


@pytest.mark.usefixtures("short")
def test_tables_have_a_line_for_each_cell(facts: Json) -> None:
    rows = [peak(facts, method) for method in ("plan", "each alone", "pool")]
    table = workflow_tables.peak_table(rows, 3.0, ["plan", "each alone", "pool"])
    assert table.count("\n") == 2
    assert "| react | 2 |" in table
    errors = workflow_tables.error_table(rows)
    assert "| react in react |" in errors
    assert workflow_tables.throughput_table(rows).count("| react | 2 |") == 2
    latencies = workflow_tables.latency_table(rows).splitlines()[2:]
    assert len(latencies) == sum(
        bool(workflow_tables.fields(point["react"])["whole"])
        for row in rows
        for point in workflow_tables.items(row.values["points"])
    )


def test_every_plan_is_packed_and_full(facts: Json) -> None:
    known = Known.of(facts)
    plans = workflow_oracle.every_plan(known, GPUS)
    names = [workflow_oracle.named_by(shares, known) for shares in plans]
    assert len(set(names)) == len(names) > 2
    whole = (Share("qwen2.5-14b", Shape(1, 2), 1), Share("llama-3.2-3b", Shape(1, 2), 1))
    assert workflow_oracle.named_by(whole, known) in names
    for shares in plans:
        assert {it.model for it in shares} == set(known.profiles)
        assert shares_fit(shares, (GPUS,), known.slices)
    halves = (Share("qwen2.5-14b", Shape(1, 2), 1), Share("llama-3.2-3b", Shape(1, 1), 1))
    assert workflow_oracle.named_by(halves, known) not in names  # there is room for another half


def test_the_best_plan_is_first_and_others_are_over_it() -> None:
    rows = [
        Row(plan, {"plan": plan}, {"mean_s": mean_s, "said_s": 1.0}, "", 0.0)
        for plan, mean_s in (("a", 4.0), ("b", 2.0), ("c", None), ("d", 3.0))
    ]
    found = [workflow_oracle.judged(rows, plan) for plan in "bda"]
    assert [(it.place, it.over_best) for it in found if it] == [(1, 1.0), (2, 1.5), (3, 2.0)]
    assert all(one.mean_s < two.mean_s for one, two in pairwise(it for it in found if it))
    assert workflow_oracle.judged(rows, "c") is None
