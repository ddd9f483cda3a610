"""`headway plan make --within`: how few GPUs are enough, from files to the line that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.cli.plan_within import over_words
from headway.serving.allocation.files import read_plan, write_aggregates
from tests.serving.allocation.made import workflow

CURVES = "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\n"


def curve(model: str, degree: int, slices: int, *, saturation: float) -> str:
    """10 calls per second and GPU, each of 0.1 s over the GPUs; flat up to nine tenths of that."""
    latency_s = 0.1 * 10 / (degree * slices)
    rates = (0.001, 0.9 * saturation)
    return "".join(f"{model},{degree},{slices},{rate},{latency_s},{latency_s},{saturation}\n" for rate in rates)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The working directory, with what a plan is made from: 10 calls of one model on up to 4 joined GPUs."""
    monkeypatch.chdir(tmp_path)
    write_aggregates(Path("w.yaml"), [workflow("rag", {"big": 10.0}), workflow("chat", {"small": 1.0})])
    curves = [curve("big", degree, 10, saturation=10 * degree) for degree in (1, 2, 4)]
    curves += [curve("small", 1, slices, saturation=slices) for slices in (3, 5, 10)]
    Path("t.csv").write_text(CURVES + "".join(curves))
    for line in (
        "profile --import t.csv --device a100",
        "plan nodes --gpus n1=4 --gpus n2=2 --device a100 --domain-gpus 4",
    ):
        assert run(line.split()) == 0
    capsys.readouterr()


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Makes a plan, checks the exit code, and gives back what was printed."""

    def asked(options: str, code: int = 0) -> str:
        assert run(["plan", "make", "--workflows", "w.yaml", *options.split()]) == code
        printed = capsys.readouterr()
        return printed.err if code == 2 else printed.out

    return asked


def test_fewer_gpus_are_enough_and_one_less_says_what_it_would_do(says: Callable[..., str]) -> None:
    told = says("--rate rag=0.1 --within rag=600ms")
    assert told.splitlines()[0] == (
        "2 of 6 GPUs are enough; with 1: rag takes 1 s instead of 0.6 s, of these 1 s in big"
    )
    assert "rag at 0.1/s: 0.5 s in the mean" in told
    plan = read_plan(Path("plan.yaml"))
    assert [(it.node, it.gpus) for it in plan.instances] == [("n1", (0, 1))]
    table = told[told.index("node  GPU") : told.index("\nRejected")].splitlines()[1:]
    assert [line.split()[-2:] for line in table if line.strip()] == [["big", "#0"]] * 2 + [["-", "1"]] * 4


def test_slices_that_stay_free_are_said(says: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    told = says("--rate chat=0.1 --within chat=400ms --interference 0")
    assert told.startswith("1 of 6 GPUs is enough\n"), "the GPU is taken whole, for the least latency"
    told = says("--rate rag=0.1 --rate chat=0.1 --within rag=1s --within chat=1s")
    assert told.startswith("2 of 6 GPUs are enough; with 1: the 2 models of rag and chat cannot all be on 1 GPU at")
    Path("t.csv").write_text(CURVES + curve("small", 1, 3, saturation=3))
    assert run(["profile", "--import", "t.csv", "--device", "a100"]) == 0
    capsys.readouterr()
    told = says("--rate chat=0.1 --within chat=400ms")
    assert told.startswith("1 of 6 GPUs is enough; 0.7 of it is free\n")


def test_all_gpus_are_not_enough(says: Callable[..., str]) -> None:
    told = says("--rate rag=0.1 --within rag=0.249s", 1)
    assert told.startswith("6 GPUs are not enough: rag takes 0.25 s instead of 0.249 s, of these 0.25 s in big\n")
    assert "wrote plan.yaml" in told
    assert read_plan(Path("plan.yaml")).forecasts[0].latency_s == pytest.approx(0.25)
    told = says("--rate rag=0.1 --within rag=0.2499999s", 1)
    assert "takes 0.25 s instead of 0.2499999 s" in told, "two figures that differ are not printed as the same"


def test_rates_that_all_gpus_do_not_carry(says: Callable[..., str]) -> None:
    told = says("--rate rag=50 --within rag=20s", 1)
    assert told.startswith("6 GPUs are not enough: rag at most at 6/s instead of 50/s, which big limits\n")


def test_without_limits_all_gpus_are_used(says: Callable[..., str]) -> None:
    told = says("--rate rag=0.1")
    assert "enough" not in told
    assert read_plan(Path("plan.yaml")).forecasts[0].latency_s == pytest.approx(0.25)


def test_a_latency_on_its_limit_is_within_it_whatever_the_rounding() -> None:
    assert not over_words("rag", 0.65 * (1 + 1e-12), {"rag": 0.65})
    assert over_words("rag", 0.7, {"rag": 0.65}) == "; not within 0.65 s"
    assert over_words("rag", 0.65001, {"rag": 0.65}) == "; not within 0.65 s: 0.65001 s instead of 0.65 s"
    assert not over_words("rag", 0.7, {"chat": 0.65})
    assert not over_words("rag", float("inf"), {"rag": 0.65}), "which is said in other words"


@pytest.mark.parametrize(
    ("within", "what"),
    [
        ("rag", "--within: 'rag' is not NAME=TIME (rag=20s)"),
        ("=2s", "--within: '=2s' is not NAME=TIME"),
        ("rag=20", "--within: '20'"),
        ("chat=2s", "--within: chat is not planned for (by --rate: rag)"),
        ("rag=2s --within rag=3s", "--within: rag is there twice"),
        ("rag=0s", "--within: 0s is no time for a run of rag"),
        (f"rag={'9' * 400}s", "s is no time for a run of rag"),
    ],
)
def test_limits_that_make_no_sense(says: Callable[..., str], within: str, what: str) -> None:
    error = says(f"--rate rag=0.1 --within {within}", 2)
    assert what in error
    assert len(error.strip().splitlines()) == 1
