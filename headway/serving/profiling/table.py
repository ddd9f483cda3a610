"""Curves from a CSV table, as spreadsheets and other tools' benchmarks leave them. Pure.

One line for each point:

    model,tensor_parallel,slices,rate,latency_s,p99_s,saturation
    llama-3-8b,1,5,0.5,0.61,0.9,14.2
    llama-3-8b,1,5,12.0,1.94,4.1,14.2

`saturation` stands in every line of a curve and is the same in all of them; `spread` (instances that share what comes
at one instant) may be left out. Lines in any order; other columns are ignored.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping

from headway.errors import UsageError
from headway.serving.allocation.types import Curve, ModelProfile, Shape

COLUMNS = ("model", "tensor_parallel", "slices", "rate", "latency_s", "p99_s", "saturation")
_Key = tuple[str, int, Shape]


FALLS = 0.1
"""Part of a latency by which it may be less at a higher rate (1): chance in what was measured."""


def read_table(lines: Iterable[str], *, slices_per_gpu: int, where: str) -> dict[str, ModelProfile]:
    """Profiles by model, on GPUs of so many slices. UsageError names line and column of what is wrong."""
    rows = csv.DictReader(lines)
    absent = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if absent:
        raise UsageError(f"has no column {', '.join(absent)}", where=where, hint=f"columns: {','.join(COLUMNS)}")
    points: dict[_Key, dict[float, tuple[float, float]]] = {}
    saturations: dict[_Key, float] = {}
    for row in rows:
        at = f"{where}:{rows.line_num}"
        shape = Shape(_count(row, "tensor_parallel", at), _count(row, "slices", at))
        if not shape.fits(slices_per_gpu):
            raise UsageError(
                f"{shape.tensor_parallel} x {shape.slices} slices is no shape where a GPU has {slices_per_gpu}",
                where=at,
                hint="several GPUs are whole ones; --slices says how many a GPU has",
            )
        model = (row["model"] or "").strip()
        if not model:
            raise UsageError("model: is empty", where=at)
        key = (model, _count(row, "spread", at) if row.get("spread") else 1, shape)
        rate, saturation = _number(row, "rate", at), _number(row, "saturation", at)
        if saturations.setdefault(key, saturation) != saturation:
            raise UsageError(f"saturation is {saturation:g}, and {saturations[key]:g} in another line", where=at)
        if rate in points.setdefault(key, {}):
            raise UsageError(f"this curve has the rate {rate:g} twice", where=at)
        if rate >= saturation:
            raise UsageError(f"rate {rate:g} is not below the saturation, {saturation:g}", where=at)
        latency_s, p99_s = _number(row, "latency_s", at), _number(row, "p99_s", at)
        if p99_s < latency_s:
            raise UsageError(f"p99_s: {p99_s:g} is below the mean, {latency_s:g}", where=at)
        points[key][rate] = (latency_s, p99_s)
    if not points:
        raise UsageError("has no lines", where=where)
    curves: dict[str, dict[int, dict[Shape, Curve]]] = {}
    for (model, spread, shape), by_rate in points.items():
        rates = sorted(by_rate)
        slowest_s, slowest_rate = 0.0, 0.0
        for rate in rates:
            latency_s = by_rate[rate][0]
            if latency_s < slowest_s * (1 - FALLS):
                raise UsageError(
                    f"{model} on {shape.tensor_parallel} x {shape.slices} slices takes {latency_s:g} s at {rate:g} "
                    f"calls/s, and {slowest_s:g} s at only {slowest_rate:g}",
                    where=where,
                    hint="latency does not fall where more calls come",
                )
            if latency_s > slowest_s:
                slowest_s, slowest_rate = latency_s, rate
        curve = Curve(
            rates=tuple(rates),
            latencies_s=tuple(by_rate[rate][0] for rate in rates),
            p99_s=tuple(by_rate[rate][1] for rate in rates),
            saturation=saturations[model, spread, shape],
        )
        curves.setdefault(model, {}).setdefault(spread, {})[shape] = curve
    profiles = {}
    for model, spreads in curves.items():
        alone = spreads.pop(1, {})
        if any(others.keys() != alone.keys() for others in spreads.values()):
            raise UsageError(f"{model} has not the same shapes for every spread", where=where)
        profiles[model] = ModelProfile(model, alone, {}, f"table: {where}", spreads)
    return profiles


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    text = row[column] or ""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{column}: {text!r} is no number", where=where) from None
    if not 0 < value < math.inf:
        raise UsageError(f"{column}: {text} is not above 0", where=where)
    return value


def _count(row: Mapping[str, str], column: str, where: str) -> int:
    value = _number(row, column, where)
    if not value.is_integer():
        raise UsageError(f"{column}: {value:g} is no whole number", where=where)
    return int(value)
