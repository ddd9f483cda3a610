"""What a plan is made from, of curves in a table: 10 calls per second and GPU of `big`, of 0.1 s; 1 of `small`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.cli.main import run
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls

CURVES = "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\n"


def curve(model: str, degree: int, slices: int, *, saturation: float) -> str:
    """Calls of 0.1 s over the GPUs; flat up to nine tenths of the saturation."""
    latency_s = 0.1 * 10 / (degree * slices)
    rates = (0.001, 0.9 * saturation)
    return "".join(f"{model},{degree},{slices},{rate},{latency_s},{latency_s},{saturation}\n" for rate in rates)


def recorded(
    workflow: str, models: Sequence[str], *, runs: int = 20, every_s: float = 4.0, call_s: float = 0.1
) -> list[Call]:
    """Runs that call the models one after the other, so many seconds apart."""
    calls = []
    for number in range(runs):
        at_s = number * every_s
        for place, model in enumerate(models):
            calls.append(Call(workflow, f"r{number}", str(place), model, at_s, at_s + call_s, 100, 10))
            at_s += call_s
    return calls


def prepare(calls: Sequence[Call], *, gpus: str = "n1=2", curves: str = "") -> None:
    """calls.jsonl, profiles.yaml and nodes.yaml in the working directory."""
    Path("calls.jsonl").write_text(write_calls(calls))
    known = [curve("big", degree, 10, saturation=10 * degree) for degree in (1, 2)]
    known += [curve("small", 1, slices, saturation=slices) for slices in (2, 5, 10)]
    Path("t.csv").write_text(CURVES + (curves or "".join(known)))
    for line in ("profile --import t.csv --device a100", f"plan nodes --gpus {gpus} --device a100 --domain-gpus 2"):
        assert run(line.split()) == 0
