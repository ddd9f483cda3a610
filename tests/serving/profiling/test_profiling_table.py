"""Curves from tables, and what is wrong with a table."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.types import Curve, Shape
from headway.serving.profiling.table import read_table

HEAD = "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation"


def test_points_become_curves_whatever_their_order() -> None:
    lines = [f"{HEAD},note", "m,1,5,12,1.9,4.1,14,x", "m,1,5,0.5,0.6,0.9,14,", "m,2,10,1,0.2,0.3,40,"]
    profile = read_table(lines, slices_per_gpu=10, where="t.csv")["m"]
    assert profile.curves == {
        Shape(1, 5): Curve((0.5, 12.0), (0.6, 1.9), (0.9, 4.1), 14.0),
        Shape(2, 10): Curve((1.0,), (0.2,), (0.3,), 40.0),
    }
    assert profile.source == "table: t.csv"
    assert not profile.spread_curves


def test_a_column_for_spreads_makes_curves_for_more_instances() -> None:
    lines = [f"{HEAD},spread", "m,1,5,1,0.6,0.9,14,1", "m,1,5,1,0.3,0.4,14,4"]
    profile = read_table(lines, slices_per_gpu=10, where="t.csv")["m"]
    assert profile.curve(Shape(1, 5), 1).latencies_s == (0.6,)
    assert profile.curve(Shape(1, 5), 6).latencies_s == (0.3,)


def test_a_latency_that_falls_by_chance_is_taken() -> None:
    lines = [HEAD, "m,1,5,1,1,2,9", "m,1,5,4,0.95,2,9"]
    assert read_table(lines, slices_per_gpu=10, where="t.csv")["m"].curves[Shape(1, 5)].latencies_s == (1.0, 0.95)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["model,rate"], r"t.csv: has no column tensor_parallel, slices"),
        ([HEAD], r"t.csv: has no lines"),
        ([HEAD, "m,1,5,x,1,1,9"], r"t.csv:2: rate: 'x' is no number"),
        ([HEAD, "m,1,5,1,1,1"], r"t.csv:2: saturation: '' is no number"),
        ([HEAD, "m,1,5,1,-1,1,9"], r"t.csv:2: latency_s: -1 is not above 0"),
        ([HEAD, "m,1,2.5,1,1,1,9"], r"t.csv:2: slices: 2.5 is no whole number"),
        ([HEAD, "m,1,5,9,1,1,9"], r"t.csv:2: rate 9 is not below the saturation"),
        ([HEAD, "m,1,5,1,1,1,9", "m,1,5,1,1,1,9"], r"t.csv:3: this curve has the rate 1 twice"),
        ([HEAD, "m,1,5,1,1,1,9", "m,1,5,2,1,1,8"], r"t.csv:3: saturation is 8, and 9"),
        ([HEAD, "m,1,11,1,1,1,9"], r"t.csv:2: 1 x 11 slices is no shape where a GPU has 10"),
        ([HEAD, "m,2,5,1,1,1,9"], r"t.csv:2: 2 x 5 slices is no shape .*whole ones"),
        ([HEAD, "m,1,5,1,2,1.5,9"], r"t.csv:2: p99_s: 1.5 is below the mean, 2"),
        ([HEAD, ",1,5,1,1,1,9"], r"t.csv:2: model: is empty"),
        ([HEAD, "m,1,5,1,2,3,9", "m,1,5,4,1,3,9"], r"m on 1 x 5 slices takes 1 s at 4 calls/s, and 2 s at only 1"),
        ([HEAD, *(f"m,1,5,{at},{1 - at / 20},3,99" for at in (1, 2, 3, 4))], r"takes 0.85 s at 3 .* 0.95 s at only 1"),
        ([f"{HEAD},spread", "m,1,5,1,1,1,9,1", "m,1,6,2,1,1,8,2"], r"not the same shapes"),
    ],
)
def test_errors_name_line_and_column(lines: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_table(lines, slices_per_gpu=10, where="t.csv")
