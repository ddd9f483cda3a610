"""The script that measures the search for shares: what its lines say."""

from __future__ import annotations

from pathlib import Path

from bench.allocation_cases import GPU_BYTES, case
from bench.allocation_search import Compared, compare, line, profiled, quantile
from headway.serving.allocation.files import write_aggregates, write_profiles


def test_cases_are_what_their_seed_says_and_fit_in_memory() -> None:
    made = case(7, models=3, gpus=4, slices_per_gpu=4, workflows=2)
    assert made.demands == case(7, models=3, gpus=4, slices_per_gpu=4, workflows=2).demands
    assert made.demands != case(8, models=3, gpus=4, slices_per_gpu=4, workflows=2).demands
    for profile in made.predictor.profiles.values():
        for shape in profile.curves:
            assert profile.memory_bytes[shape.tensor_parallel] <= GPU_BYTES * shape.slices / 4


def test_a_line_tells_regret_and_what_is_worse_than_regret() -> None:
    rows = [
        Compared("a", (2.0, 1.0), True, (2.0, 1.0, 0.1), (2.5, 1.0, 0.1)),
        Compared("b", (2.0, 1.0), True, (2.0, 1.0, 0.1), (9.0, 0.5, 0.1)),
        Compared("c", (2.0, 0.8), True, (2.0, 0.8, 0.1), None),
    ]
    words = line("all", rows).split()
    assert words[:3] == ["all", "3", "2"]
    assert words[3:10] == ["0.00%", "0.0%", "0.0%", "100%", "0", "1.00", "0"]
    assert words[10:] == ["24.98%", "25.0%", "25.0%", "0%", "1", "0.50", "1"]


def test_quantiles() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.95) == 3.0


def test_both_ways_of_knowing_the_best_agree() -> None:
    made = case(5, models=3, gpus=4, slices_per_gpu=4)
    by_all, by_bounds = compare("x", made, everything=True), compare("x", made, everything=False)
    assert by_all.best_exact
    assert by_bounds.best_exact
    assert abs(by_all.best[0] / by_bounds.best[0] - 1) < 1e-3


def test_profiles_from_files(tmp_path: Path) -> None:
    made = case(5, models=3, gpus=4, slices_per_gpu=4, workflows=2)
    write_profiles(tmp_path / "p.yaml", list(made.predictor.profiles.values()), slices_per_gpu=4)
    write_aggregates(tmp_path / "a.yaml", [demand.aggregate for demand in made.demands])
    rows = profiled(tmp_path / "p.yaml", tmp_path / "a.yaml")
    assert {row.name for row in rows} >= {"workflow-0, 4 GPUs", "workflow-0+workflow-1, 16 GPUs"}
    assert all(row.found[1] <= 1.0 for row in rows)
