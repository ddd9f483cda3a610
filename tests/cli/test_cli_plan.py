"""`headway profile` and `headway plan`, from recorded calls to a cluster that has what the plan says."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.serving.allocation import engine_profile
from headway.serving.allocation.files import read_aggregates, read_plan, read_profiles, write_profiles
from headway.serving.allocation.types import Shape
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls
from tests.fakes.kubernetes_api import api_server

TWO = ("llama-3-8b", "llama-3.2-1b")


def recorded(*, runs: int = 40, gap_s: float = 3.0, small_calls: int = 2, out: int = 60) -> list[Call]:
    """Runs of one large call and some small ones, one after the other."""
    chance = random.Random(1)
    calls = []
    at_s = 0.0
    for run_ in range(runs):
        at_s += chance.expovariate(1 / gap_s)
        end_s = at_s + 2.0 + chance.random()
        calls.append(Call("ask", f"r{run_}", "0", TWO[0], at_s, end_s, 900, out))
        for number in range(1, small_calls + 1):
            calls.append(Call("ask", f"r{run_}", str(number), TWO[1], end_s, end_s + 0.2, 300, 10))
            end_s += 0.25
    return calls


STEPS = (
    "profile --calls calls.jsonl --from engine-model --device a100 --domain-gpus 2",
    "plan nodes --gpus n1=2 --device a100 --domain-gpus 2",
    "plan make --calls calls.jsonl --rate ask=2",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a plan for 2 GPUs and all that it came from, and what making it printed."""
    folder, printed = tmp_path_factory.mktemp("plan"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(engine_profile, "CALLS", 100)  # enough to plan with
        Path("calls.jsonl").write_text(write_calls(recorded()))
        for step in STEPS:
            assert run(step.split()) == 0
    return folder, printed.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with calls in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("calls.jsonl").write_text(write_calls(recorded()))
    return tmp_path


@pytest.fixture
def planned(folder: Path, made: tuple[Path, str]) -> str:
    """The working directory has the plan, too; what making it printed."""
    shutil.copytree(made[0], folder, dirs_exist_ok=True)
    return made[1]


def test_a_plan_is_made_and_says_what_it_promises_and_why(planned: str) -> None:
    assert "ask at 2/s: " in planned
    assert "limits" in planned
    assert "Rejected, each for one step away" in planned
    assert "wrote plan.yaml and plan.workflows.yaml" in planned
    plan = read_plan(Path("plan.yaml"))
    assert {share.model for share in plan.shares} == set(TWO)
    assert {it.node for it in plan.instances} == {"n1"}
    (forecast,) = plan.forecasts
    assert forecast.throughput >= 2


def test_what_is_shown_is_what_was_made(planned: str, says: Callable[..., str]) -> None:
    shown = says("plan show plan.yaml --nodes nodes.yaml")
    assert shown.strip() in planned


def test_averages_will_do_instead_of_calls(planned: str, says: Callable[..., str]) -> None:
    again = says("plan make --workflows plan.workflows.yaml --rate ask=2 -o again.yaml")
    assert read_plan(Path("again.yaml")) == read_plan(Path("plan.yaml"))
    assert "wrote again.yaml and again.workflows.yaml" in again


def test_profiles_of_several_ways_stand_in_one_file(planned: str, says: Callable[..., str]) -> None:
    Path("t.csv").write_text(
        "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\nmine,1,5,1,0.2,0.3,9\nmine,1,10,1,0.1,0.2,18\n"
    )
    assert "mine" in says("profile --import t.csv")
    slices, profiles = read_profiles(Path("profiles.yaml"))
    assert slices == 10
    assert set(profiles) == {*TWO, "mine"}
    assert Shape(2, 10) in profiles[TWO[0]].curves
    assert Shape(1, 1) not in profiles[TWO[0]].curves, "an 8B model has no room in 8 GB"


def test_rates_that_no_plan_carries_are_no_success(planned: str, says: Callable[..., str], tmp_path: Path) -> None:
    told = says("plan make --calls calls.jsonl --rate ask=5000 -o much.yaml", 1)
    assert "ask: cannot be served at 5000/s" in told
    assert "wrote much.yaml" in told
    with api_server(tmp_path) as api:
        applied = says(f"plan apply --plan much.yaml --kubeconfig {api.kubeconfig}")
    assert "warning: ask: cannot be served at 5000/s" in applied
    assert "warning: ask: cannot be served" in says("plan manifests --plan much.yaml -o much")


def test_curves_of_parts_alone_are_parts(planned: str, says: Callable[..., str]) -> None:
    Path("t.csv").write_text(
        "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\n"
        + "".join(f"{model},1,5,1,1,1,500\n" for model in TWO)
    )
    says("profile --import t.csv --device a100 -o parts.yaml")
    says("plan nodes --gpus n1=1 --device a100")
    line = "plan make --calls calls.jsonl --profiles parts.yaml --rate ask=2 --interference"
    says(f"{line} 0 -o alone.yaml")
    says(f"{line} 0.9 -o beside.yaml")
    alone_s, beside_s = (read_plan(Path(name)).forecasts[0].latency_s for name in ("alone.yaml", "beside.yaml"))
    assert alone_s < beside_s <= alone_s * (1 + 0.9 * 0.5), "half a GPU's neighbour counted as a whole one's"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("plan make --calls calls.jsonl --rate ask=2 --calibrate aks=1.1", "--calibrate: aks is not planned for"),
        ("plan watch --journal calls.jsonl --better nan", "--better: nan is not from 0 to below 1"),
        ("plan watch --journal calls.jsonl --most-moves -1", "--most-moves: -1 is below 0"),
    ],
)
def test_figures_that_make_no_sense(planned: str, says: Callable[..., str], line: str, what: str) -> None:
    assert what in says(line, 2)


def test_nodes_from_a_cluster_and_from_a_matrix(folder: Path, says: Callable[..., str]) -> None:
    with api_server(folder) as api:
        api.labels = {"n9": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "4"}, "cpu": {}}
        assert "n9: 4 x a100, joined: 0,1,2,3" in says(f"plan nodes --cluster --kubeconfig {api.kubeconfig}")
    Path("topo").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert "n1: 2 x a100, joined: 0,1" in says("plan nodes --topo n1=topo --device a100")


def test_watching_what_is_as_planned_finds_nothing(planned: str, says: Callable[..., str]) -> None:
    promised_s = read_plan(Path("plan.yaml")).forecasts[0].latency_s
    calm = [
        Call(it.workflow, it.run, it.id, it.model, it.start_s, it.end_s, it.input_tokens, it.output_tokens)
        for it in recorded(gap_s=0.5)
    ]
    whole_s = 2.5 + 2 * 0.25
    shrunk = [
        Call(
            it.workflow,
            it.run,
            it.id,
            it.model,
            *_shrunk(it, calm, promised_s / whole_s),
            it.input_tokens,
            it.output_tokens,
        )
        for it in calm
    ]
    Path("now.jsonl").write_text(write_calls(shrunk))
    assert "nothing has drifted" in says("plan watch --journal now.jsonl")


def _shrunk(call: Call, calls: list[Call], factor: float) -> tuple[float, float]:
    """Its times, with its run's taking so many times as long."""
    start_s = min(it.start_s for it in calls if it.run == call.run)
    return start_s + factor * (call.start_s - start_s), start_s + factor * (call.end_s - start_s)


def test_watching_a_workload_that_has_changed_proposes_a_plan(planned: str, says: Callable[..., str]) -> None:
    Path("now.jsonl").write_text(write_calls(recorded(runs=200, gap_s=0.03, small_calls=12, out=20)))
    told = says("plan watch --journal now.jsonl -o new.yaml", 1)
    assert "llama-3.2-1b calls" in told
    assert "drifted" in told
    assert "proposed: " in told
    new, old = read_plan(Path("new.yaml")), read_plan(Path("plan.yaml"))
    assert new.shares != old.shares
    assert new.forecasts[0].rate > 20
    assert "wrote new.yaml and new.workflows.yaml" in told
    (workflow,) = read_aggregates(Path("new.workflows.yaml"))
    assert next(use for use in workflow.uses if use.model == TWO[1]).calls == pytest.approx(12)
    says("plan watch --plan new.yaml --journal now.jsonl", 1)


def test_a_proposal_knows_how_much_memory_the_gpus_have(planned: str, says: Callable[..., str]) -> None:
    Path("now.jsonl").write_text(write_calls(recorded(runs=200, gap_s=0.03, small_calls=12, out=20)))
    says("plan watch --journal now.jsonl -o roomy.yaml", 1)
    assert any(share.shape.slices < 10 for share in read_plan(Path("roomy.yaml")).shares)
    slices, profiles = read_profiles(Path("profiles.yaml"))
    large = [replace(each, memory_bytes=dict.fromkeys(each.memory_bytes, 70 << 30)) for each in profiles.values()]
    write_profiles(Path("profiles.yaml"), large, slices_per_gpu=slices)
    assert "no plan is clearly better" in says("plan watch --journal now.jsonl -o whole.yaml", 1)
    assert not Path("whole.yaml").exists(), "parts of GPUs that have no room for the model were proposed"


def test_too_few_runs_say_nothing(planned: str, says: Callable[..., str]) -> None:
    Path("now.jsonl").write_text(write_calls(recorded(runs=5)))
    assert "ask: 5 runs seen: 10 are needed" in says("plan watch --journal now.jsonl", 3)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("profile --calls calls.jsonl", "say where the curves come from"),
        ("profile --calls calls.jsonl --from engine-model", "--device: is needed"),
        ("profile --calls calls.jsonl --from thin-air", "'thin-air' is none of engine-model"),
        ("profile --calls calls.jsonl --engine 1x5", "'1x5' is no engine"),
        ("profile --from engine-model --device a100", "--calls: are needed to replay"),
        ("profile --calls calls.jsonl --engine 1x5=http://h:1", "engines serve one model"),
        ("profile --calls calls.jsonl --model llama-3-8b --engine 2x5=http://h:1", "2x5 is no shape"),
        ("profile --import none.csv", "none.csv: cannot read it"),
        ("profile --import none.csv --domain-gpus 2", "--domain-gpus: goes with --from engine-model"),
        ("plan nodes", "say what there is"),
        ("plan nodes --gpus n1=2 --device a1000", "--device: 'a1000' is none of"),
        ("plan nodes --gpus n1=1 --topo n1=topo --device a100", "--gpus and --topo: n1 is there twice"),
        ("plan nodes --gpus n1 --device a100", "--gpus: 'n1' is not NAME=NUMBER"),
        ("plan make --calls calls.jsonl --rate other=1", "no run of other was recorded"),
        ("plan make --rate ask=1", "by --calls, or by --workflows"),
        ("plan make --calls none.jsonl --rate ask=1", "none.jsonl: cannot read it"),
        ("plan show none.yaml", "none.yaml: cannot read it"),
    ],
)
def test_mistakes_are_one_line_that_names_them(folder: Path, says: Callable[..., str], line: str, what: str) -> None:
    Path("topo").write_text("\tGPU0\nGPU0\t X \n")
    error = says(line, 2)
    assert what in error
    assert len(error.strip().splitlines()) == 1


def test_a_plan_that_does_not_fit_says_what_is_missing(planned: str, says: Callable[..., str]) -> None:
    Path("small.yaml").write_text(Path("profiles.yaml").read_text().replace("device: a100", "device: t4"))
    says("plan nodes --gpus n1=1 --device t4")
    assert "llama-3-8b" in says("plan make --profiles small.yaml --calls calls.jsonl --rate ask=2", 2)


def test_profiles_of_other_gpus_than_the_nodes_are_refused(planned: str, says: Callable[..., str]) -> None:
    line = "plan make --calls calls.jsonl --rate ask=2 -o again.yaml"
    says("plan nodes --gpus n1=2 --device t4")
    error = says(line, 2)
    assert "profiles.yaml: llama-3-8b was profiled on a100, and n1 has t4" in error
    assert "headway profile --device t4" in error
    assert not Path("again.yaml").exists()
    nodes = Path("nodes.yaml").read_text()
    Path("profiles.yaml").write_text(Path("profiles.yaml").read_text().replace("device: a100", "device: ''"))
    Path("nodes.yaml").write_text(nodes.replace("t4", "a1000"))
    assert "n1 has 'a1000', which is none of" in says(line, 2)
    Path("nodes.yaml").write_text(nodes.replace("t4", "a100"))
    assert "does not say of which GPUs the curves of llama-3-8b, llama-3.2-1b are" in says(line)


def test_a_table_of_curves_may_say_of_which_gpu_they_are(folder: Path, says: Callable[..., str]) -> None:
    Path("t.csv").write_text("model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\nmine,1,10,1,0.1,0.2,18\n")
    assert "note: without --device" in says("profile --import t.csv")
    assert "note" not in says("profile --import t.csv --device h100")
    assert read_profiles(Path("profiles.yaml"))[1]["mine"].device == "h100"
