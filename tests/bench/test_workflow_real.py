"""Parts of a CPU, and the plans and tables of the real run."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from bench import cpu_share
from bench.cpu_share import NoSharesError, join
from bench.workflow_real import DRAFTER, JUDGE, SLICES, planned, split, table
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse

BURN = (
    "import time, resource\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
)


def shares_missing() -> str:
    try:
        cpu_share.root()
    except NoSharesError as error:
        return str(error)
    return ""


@pytest.mark.skipif(bool(shares_missing()), reason=shares_missing() or "all there")
def test_a_process_gets_no_more_than_its_part() -> None:
    with cpu_share.cpu_share("test", 0.2) as group:
        process = subprocess.Popen([sys.executable, "-c", f"input()\n{BURN}"], stdin=-1, stdout=-1, text=True)
        join(group, process.pid)
        output, _ = process.communicate("go\n", timeout=20)
    assert not group.exists()
    assert float(output) < 2 * 0.2 * 2


@pytest.mark.skipif(bool(shares_missing()), reason=shares_missing() or "all there")
def test_a_group_that_is_still_used_does_not_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "_LIMIT_S", 0.1)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, text=True)
    try:
        with pytest.raises(OSError, match="busy"), cpu_share.cpu_share("test", 0.2) as group:
            join(group, process.pid)
    finally:
        process.communicate("\n", timeout=10)
        until_s = time.monotonic() + 5
        while group.exists() and time.monotonic() < until_s:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)


def engine(slices: int, saturation: float) -> Curve:
    loads = (0.2, 0.6, 0.9)
    rates = tuple(load * saturation * slices for load in loads)
    return Curve(rates, tuple(1 / slices / (1 - load) for load in loads), rates, saturation * slices)


def test_the_plan_gives_the_busier_model_more_and_its_rate_is_one_that_it_carries() -> None:
    uses = (ModelUse(DRAFTER, 4.0, 4.0, 1.0, 0.8, 0.1, 60, 30), ModelUse(JUDGE, 1.0, 1.0, 0.2, 0.2, 0.1, 200, 4))
    seen = Aggregate("w", 10, uses, 0.0, 1.2, 0.1)
    curves = {slices: engine(slices, 1.0) for slices in range(2, 9)}
    profiles = {
        model: ModelProfile(model, {Shape(1, slices): curve for slices, curve in curves.items()}, {}, "test")
        for model in (DRAFTER, JUDGE)
    }
    plan, rate = planned(seen, Predictor(profiles))
    slices = {share.model: share.shape.slices * share.replicas for share in plan.shares}
    assert slices[DRAFTER] > slices[JUDGE]
    assert sum(slices.values()) <= SLICES
    assert 0 < rate < plan.forecasts[0].throughput


def test_an_equal_split_is_placed_on_one_gpu() -> None:
    plan = split(5, 5)
    assert {it.gpus for it in plan.instances} == {(0,)}


def test_the_table_has_a_line_for_each_split() -> None:
    forecast = {"latency_s": 2.0, "throughput": 0.5}
    row = {
        "name": "plan",
        "slices": {DRAFTER: 7, JUDGE: 3},
        "rate": 0.3,
        "mean_s": 2.1,
        "median_s": 2.0,
        "p99_s": 4.0,
        "forecast": forecast,
    }
    rows = [row, {**row, "name": "equal split", "mean_s": 4.2}, row, {**row, "name": "equal split", "mean_s": 6.3}]
    lines = table({"rows": rows}).splitlines()
    assert len(lines) == 5 + 3
    assert lines[5] == "equal split / plan, mean_s: 2.50 (2.00 to 3.00)"
    assert lines[1].split() == [
        "plan",
        "0.7",
        "0.3",
        "0.300",
        "2.10",
        "s",
        "2.00",
        "s",
        "4.00",
        "s",
        "2.00",
        "s",
        "0.500",
    ]
