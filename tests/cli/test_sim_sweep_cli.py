"""`headway sim sweep` and `headway sim compare` as people call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.bench.pool import ROWS, read_rows
from headway.bench.sim_cell import run_cell
from headway.cli.main import run
from headway.errors import HeadwayError
from headway.sim.studies.cells import Json
from headway.sim.studies.sweep import load_sweep

SWEEP = """
scenario:
  name: small
  hosts: 4
  access: 100Mbit
  events:
    - {id: busy, type: load, target: host1, direction: down, udp: 50%}
  jobs:
    - {name: train, hosts: 4, iterations: 3, loop: [{compute: 2ms, noise: 5%}, {all_reduce: 400kB}]}
axes:
  jobs.train.policy: [off, clairvoyant]
  events.busy.udp: [25%, 75%]
execution: streams
"""


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SWEEP)
    return path


def test_a_sweep_leaves_rows_a_table_and_a_page(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out", tmp_path / "p.html"
    assert run(["sim", "sweep", str(sweep_file), "--out", str(out), "-j", "2", "--page", str(page)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("s: 4 cells over jobs.train.policy (2), events.busy.udp (2)\n")
    assert said.err == ""
    rows = read_rows(out / ROWS)
    assert [tuple(row.parameters.values()) for row in rows] == [
        ("off", "25%"),
        ("off", "75%"),
        ("clairvoyant", "25%"),
        ("clairvoyant", "75%"),
    ]
    for row in rows:
        jobs = row.values["jobs"]
        assert isinstance(jobs, dict)
        train = jobs["train"]
        assert isinstance(train, dict)
        figures = {name: v for name, v in train.items() if isinstance(v, (int, float))}
        assert figures["iterations"] == 3
        assert 0 < figures["free_limit"] <= figures["limit"] <= 1
        assert figures["algbw_Bps"] == pytest.approx(figures["limit"] * figures["limit_Bps"])
        assert figures["mean_s"] > 0.002
        assert isinstance(row.values["events"], int)
        assert row.wall_s > 0
    assert page.read_text().count("<svg") == 2
    # The same bits here, in another process and order.
    last = load_sweep(sweep_file).cells[-1]
    assert rows[-1].values == run_cell(last.work)

    assert run(["sim", "sweep", str(sweep_file), "--out", str(out)]) == 0
    assert capsys.readouterr().err == "4 of 4 cells have been run already\n"

    sweep_file.write_text(SWEEP.replace("[25%, 75%]", "[25%]"))
    assert run(["sim", "sweep", str(sweep_file), "--out", str(out)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "2 of 2 cells have been run already",
        "2 rows fit no cell any more (the sweep or Headway has changed); they are set aside",
    ]


def _half(work: Json) -> Json:
    """Fails under heavy load."""
    if "75%" in json.dumps(work):
        raise HeadwayError("too busy")
    return run_cell(work)


def test_a_cell_that_fails_is_a_row_and_exit_code_1(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.bench.sim_cell.run_cell", _half)
    out, page = tmp_path / "out", tmp_path / "p.html"
    assert run(["sim", "sweep", str(sweep_file), "--out", str(out), "--page", str(page)]) == 1
    assert [row.error for row in read_rows(out / ROWS)] == ["", "too busy"] * 2
    assert "failed: jobs.train.policy off, events.busy.udp 75%: too busy" in capsys.readouterr().out
    assert "2 failed." in page.read_text()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[off, clairvoyant]", "[off, clairvoyance]", "s.yaml: axes.jobs.train.policy: clairvoyance: Input should be"),
        ("jobs.train.policy:", "jobs.train.polcy:", "s.yaml: axes.jobs.train.polcy: off: there is no such field"),
        ("execution: streams", "executoin: streams", "s.yaml: executoin: there is no such field"),
        ("axes:", "axes: [", "s.yaml: while parsing"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    sweep_file: Path, tmp_path: Path, before: str, after: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_file.write_text(SWEEP.replace(before, after))
    assert run(["sim", "sweep", str(sweep_file), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_cell_takes_longer_than_the_limit(sweep_file: Path, tmp_path: Path) -> None:
    assert run(["sim", "sweep", str(sweep_file), "--out", str(tmp_path), "--limit", "1us"]) == 1
    assert {row.error for row in read_rows(tmp_path / ROWS)} == {"took longer than 1e-06 s"}


def test_a_page_that_cannot_be_is_said_before_anything_runs(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sim", "sweep", str(sweep_file), "--out", str(tmp_path / "out"), "--page", "/nosuch/p.html"]
    assert run(arguments) == 2
    assert capsys.readouterr().err == "headway: /nosuch/p.html: cannot write it: No such file or directory\n"
    assert not (tmp_path / "out").exists()


def test_check_runs_nothing(sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "sweep", str(sweep_file), "--out", str(tmp_path / "out"), "--check"]) == 0
    assert "4 cells" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_options_that_exclude_each_other(sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["-j", "2"], ["--limit", "1s"]):
        assert run(["sim", "sweep", str(sweep_file), "--out", str(tmp_path), "--ray", "auto", *option]) == 2
    assert "--jobs: is for local processes" in capsys.readouterr().err


def test_ctrl_c_keeps_the_rows_and_says_so(sweep_file: Path, tmp_path: Path) -> None:
    sweep_file.write_text(SWEEP.replace("axes:", "axes:\n  seed: 1..400").replace("iterations: 3", "iterations: 40"))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "sim", "sweep", str(sweep_file), "--out", str(out), "-j", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(1200):
        if (out / ROWS).exists() and (out / ROWS).read_text().count("\n") > 3:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("headway: interrupted: ")
    assert "of 1600 cells are in" in errors
    assert "Traceback" not in errors
    assert len(read_rows(out / ROWS)) > 3


def test_compare_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    arguments = ["star8-udp75-down", "star8", "--plans", "ring,packing", "--sizes", "1MB,2MiB", "--json", str(path)]
    assert run(["sim", "compare", *arguments]) == 0
    said = capsys.readouterr().out
    assert "star8-udp75-down: 8 hosts, all_reduce, pieces; downlink of host3 loaded with UDP at 75 %" in said
    assert "star8: 8 hosts, all_reduce, pieces; idle" in said
    assert "1 MB" in said
    assert "2 MiB" in said
    lines = [line for line in said.splitlines() if " * " in line]
    assert len(lines) >= 4
    assert "packing: " in lines[0]
    document = json.loads(path.read_text())
    assert len(document["rows"]) == 8
    best = [row for row in document["rows"] if row["best"]]
    assert len(best) >= 4
    assert document["rows"][0]["blame"][0].startswith("downlink of host3 holds the all-reduce back")


def test_compare_where_no_network_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, path = tmp_path / "one.yaml", tmp_path / "c.json"
    scenario.write_text("hosts: 1\naccess: 100Mbit\n")
    assert run(["sim", "compare", str(scenario), "--plans", "ring,direct", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("one: 1 host, all_reduce")
    assert "*" not in said
    rows = json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(f"JSON has no {constant}"))["rows"]
    assert {(row["algbw_Bps"], row["limit"], row["best"]) for row in rows} == {(None, None, False)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no scenario 'nowhere'"),
        (["star8", "--plans", "rong"], "--plans: 'rong' is no plan"),
        (["star8", "--plans", "ring,ring"], "--plans: names a plan twice"),
        (["star8", "--sizes", "16"], "--sizes: '16' has no unit"),
        (["star8", "--sizes", "0MB"], "--sizes: must be above 0"),
        (["star8", "--collective", "all_gather", "--sizes", "1000001B"], "--sizes: must divide by the 8 ranks"),
        (["star8", "--execution", "magic"], "--execution"),
    ],
)
def test_compare_says_what_is_wrong(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "compare", *arguments]) == 2
    assert message in capsys.readouterr().err
