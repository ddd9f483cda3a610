"""`headway plan watch` proposes what `plan make` would make with the same options, and writes the same reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.serving.allocation.files import read_plan, write_plan
from headway.serving.allocation.types import Plan
from headway.serving.workflows.files import write_calls
from tests.cli.tabled import curve, prepare, recorded

MODELS = ("big", "mid", "tiny")
SIZES = {"big": (3, 10), "mid": (3, 6, 10), "tiny": (4, 10)}
HALVES = "".join(f"{model},1,5,{rate},0.25,0.25,5\n" for model in ("mid", "tiny") for rate in (0.001, 4.5))
"""Of two models that do better with 0.6 and 0.4."""
MEASURED_S = 0.9
"""Of a run: about what the plan in force promises."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The working directory: a plan for one GPU, three machines since, and now.jsonl with four times as many runs."""
    monkeypatch.chdir(tmp_path)
    curves = "".join(curve(model, 1, slices, saturation=slices) for model in MODELS for slices in SIZES[model])
    curves += HALVES
    prepare(recorded("ask", MODELS), gpus="n1=1", curves=curves)
    assert run(["plan", "make", "--calls", "calls.jsonl", "--rate", "ask=0.25"]) == 0
    prepare(recorded("ask", MODELS), gpus="n1=1 --gpus n2=1 --gpus n3=1", curves=curves)
    assert run(["plan", "nodes", "--gpus", "n1=1", "--gpus", "n2=1", "--device", "a100", "-o", "two.yaml"]) == 0
    Path("now.jsonl").write_text(write_calls(recorded("ask", MODELS, every_s=1.0, call_s=MEASURED_S / len(MODELS))))
    capsys.readouterr()


WATCH = "plan watch --journal now.jsonl -o new.yaml"


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("", 3),
        ("--nodes two.yaml", 2),
        ("--within ask=650ms", 2),
        ("--equal-parts", 3),
        ("--equal-parts --nodes two.yaml", 2),
    ],
)
def test_what_is_proposed_is_what_would_be_made(says: Callable[..., str], options: str, gpus: int) -> None:
    assert "wrote new.yaml and new.workflows.yaml" in says(f"{WATCH} {options}", 1)
    says(f"plan make --calls now.jsonl --rate ask=1 -o made.yaml {options}")
    new, made = read_plan(Path("new.yaml")), read_plan(Path("made.yaml"))
    assert new.shares == made.shares
    assert len(gpus_of(new)) == gpus
    assert [each.what for each in new.rejected] == [each.what for each in made.rejected]


def gpus_of(plan: Plan) -> set[tuple[str, int]]:
    return {(it.node, gpu) for it in plan.instances for gpu in it.gpus}


@pytest.mark.parametrize("options", ["--nodes two.yaml", "--within ask=650ms --nodes two.yaml"])
def test_reasons_have_the_figures_of_the_plan_where_it_is_placed(says: Callable[..., str], options: str) -> None:
    says(f"{WATCH} {options}", 1)
    new = read_plan(Path("new.yaml"))
    slower = [each.why for each in new.rejected if "slower" in each.why]
    assert slower
    assert all(f"instead of {new.forecasts[0].latency_s:.3g} s" in why for why in slower)


def test_how_few_gpus_are_enough_is_said_and_that_the_plan_in_force_is_too_slow(says: Callable[..., str]) -> None:
    told = says(f"{WATCH} --within ask=650ms", 1)
    assert "ask at 1/s: 0.9 s in the mean; at most 2.9/s, which big limits; not within 0.65 s\n" in told
    assert "\n2 of 3 GPUs are enough; with 1: ask takes 0.9 s instead of 0.65 s, of these 0." in told
    assert "proposed: 2 instances to start, 2 to stop" in told, "tiny stays where it is"


def test_a_limit_that_measured_runs_miss_is_drift_though_no_figure_is(says: Callable[..., str]) -> None:
    now = recorded("ask", MODELS, every_s=4.0, call_s=MEASURED_S / len(MODELS))
    Path("now.jsonl").write_text(write_calls(now))
    assert "nothing has drifted" in says(WATCH, 0)
    assert "not within" not in says(f"{WATCH} --within ask=0.9s", 0), "the mean is what the limit allows"
    told = says(f"{WATCH} --within ask=850ms", 1)
    assert "nothing has drifted\nask: measured 0.9 s in the mean; not within 0.85 s\n" in told
    assert "wrote new.yaml" in told
    assert read_plan(Path("new.yaml")).forecasts[0].latency_s <= 0.85
    told = says(f"{WATCH} --within ask=899.9999ms", 1)
    assert "measured 0.9 s in the mean; not within 0.9 s: 0.9 s instead of 0.8999999 s\n" in told


def test_a_plan_that_keeps_its_limits_on_as_few_gpus_stays(says: Callable[..., str]) -> None:
    told = says(f"{WATCH} --within ask=2s", 1)
    assert "\n1 of 3 GPUs is enough\n" in told
    assert "no plan is clearly better" in told
    assert not Path("new.yaml").exists()


def test_fewer_gpus_are_proposed_where_the_limits_allow_it(says: Callable[..., str]) -> None:
    says("plan make --calls calls.jsonl --rate ask=0.25")
    assert len(gpus_of(read_plan(Path("plan.yaml")))) == 3
    Path("now.jsonl").write_text(write_calls(recorded("ask", MODELS, every_s=1.0)))
    assert "no plan is clearly better" in says(WATCH, 1)
    told = says(f"{WATCH} --within ask=650ms", 1)
    assert "proposed: 2 instances to start, 2 to stop" in told, "the whole instance on n1 stays"
    assert gpus_of(read_plan(Path("new.yaml"))) == {("n1", 0), ("n2", 0)}


def test_equal_parts_can_be_shared_by_the_device_plugin_and_others_cannot(says: Callable[..., str]) -> None:
    manifests = "plan manifests --plan new.yaml --nodes two.yaml -o k8s --sharing mps"
    says(f"{WATCH} --nodes two.yaml", 1)
    assert "n1 has parts of 0.4, 0.6 GPU, and the device plugin cuts into equal parts" in says(manifests, 2)
    says(f"{WATCH} --nodes two.yaml --equal-parts", 1)
    assert "wrote k8s/engines.yaml" in says(manifests)
    assert not read_plan(Path("new.yaml")).rejected


def test_a_plan_on_the_way_has_no_reasons_since_its_neighbours_lost_by_their_moves(says: Callable[..., str]) -> None:
    assert "proposed: 1 instance to start" in says(f"{WATCH} --nodes two.yaml --most-moves 1", 1)
    new = read_plan(Path("new.yaml"))
    assert new.instances
    assert not new.rejected


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--within other=2s", "--within: other is not planned for (by plan.yaml: ask)"),
        ("--within ask=2", "--within: '2'"),
        ("--within ask=0s", "--within: 0s is no time for a run of ask"),
        ("--within ask=2s --equal-parts", "--equal-parts: does not go with --within yet"),
    ],
)
def test_ways_that_there_are_not(says: Callable[..., str], options: str, what: str) -> None:
    error = says(f"{WATCH} {options}", 2)
    assert what in error
    assert error.count("\n") == 1


def test_a_limit_that_no_run_can_keep_is_drift_without_a_plan(says: Callable[..., str]) -> None:
    """A run of now has a fifth of a second in which it calls nobody."""
    calls = [
        call for call in recorded("ask", ("big", "idle", "idle", "mid", "tiny"), every_s=1.0) if call.model != "idle"
    ]
    Path("now.jsonl").write_text(write_calls(calls))
    assert "no plan can be proposed: ask: a limit of 0.15 s is not above the 0.2 s" in says(
        f"{WATCH} --within ask=150ms", 1
    )


def test_a_plan_that_is_not_placed_is_refused(says: Callable[..., str]) -> None:
    write_plan(Path("shares.yaml"), Plan(10, read_plan(Path("plan.yaml")).shares))
    assert "shares.yaml: is not placed" in says(f"{WATCH} --plan shares.yaml --workflows plan.workflows.yaml", 2)
