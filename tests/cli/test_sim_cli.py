"""`headway sim run` as people call it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import typer

from headway.cli import sim
from headway.cli.main import run
from headway.decide.journal_file import read_journal

JOBS = """
hosts: 5
access: 100Mbit
racks: {racks: 2, spines: 2, uplink: 100Mbit}
events:
  - {id: busy, type: load, target: host1, direction: down, udp: 50%, start: 100ms, duration: 200ms}
jobs:
  - {name: train, hosts: 4, iterations: 3, plan: direct, loop: [{compute: 20ms, noise: 5%}, {all_reduce: 400kB}]}
  - {name: serve, hosts: 3, placement: random, loop: [{compute: 30ms}, {send: 200kB}]}
"""
NETWORK = "topology: [Switch]\nnpus_count: [8]\nbandwidth: [0.01]\nlatency: [500]\n"
PLAIN = "hosts: 4\naccess: 100Mbit\nevents: [{id: busy, type: load, target: host1, udp: 75%}]\n"


@pytest.fixture
def jobs_file(tmp_path: Path) -> str:
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    return str(path)


@pytest.fixture
def plain_file(tmp_path: Path) -> str:
    path = tmp_path / "plain.yaml"
    path.write_text(PLAIN)
    return str(path)


def _told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a run printed, without how long it took here."""
    assert run(["sim", *arguments]) == 0
    return re.sub(r", simulated in .*", "", capsys.readouterr().out)


def test_a_run_in_tables(jobs_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _told(capsys, jobs_file).splitlines()
    assert lines[0] == "jobs: 5 hosts, 2 jobs, pieces"
    assert lines[1].split() == [
        "job",
        "ranks",
        "iterations",
        "mean",
        "p50",
        "p99",
        "algbw",
        "MB/s",
        "limit",
        "%",
        "plans",
    ]
    assert lines[2].split()[:3] == ["train", "4", "3"]
    assert lines[3].split()[:2] == ["serve", "3"]
    assert lines[4].split() == ["busiest", "links", "rate", "events", "took", "%", "in", "use", "%"]
    assert "link of" in lines[5]
    assert re.fullmatch(r"[0-9.]+ s of network, [0-9]+ events", lines[-1])
    assert all(line == line.rstrip() for line in lines)


def test_without_the_word_run(jobs_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(capsys, jobs_file) == _told(capsys, "run", jobs_file)


def test_a_scenario_of_the_lab_runs_too(capsys: pytest.CaptureFixture[str]) -> None:
    told = _told(capsys, "star8-udp50-down", "--iterations", "2", "--execution", "streams")
    assert told.splitlines()[2].split()[:3] == ["all", "8", "2"]


def test_a_journal_is_explained_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, page = tmp_path / "journal.jsonl", tmp_path / "page.html"
    options = ["--policy", "packing", "--iterations", "60", "--size", "4MB", "--execution", "streams"]
    _told(capsys, "star8-udp50-down", "--journal", str(journal), *options)
    kinds = [record.kind for record in read_journal(journal).records]
    assert {"start", "operation", "flow", "decision", "event"} == set(kinds)
    assert run(["explain", str(journal)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Group all: 8 ranks on 8 hosts, policy packing" in told
    assert "downlink of host3 loaded with UDP at 50 %" in told
    assert "keep" in told
    assert run(["report", str(journal), "-o", str(page)]) == 0
    assert page.read_text().startswith("<!")


def test_a_journal_of_several_jobs_has_a_group_for_each(
    jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    for _ in range(2):  # a second run replaces the first
        _told(capsys, jobs_file, "--journal", str(journal))
    starts = [record.group for record in read_journal(journal).records if record.kind == "start"]
    assert starts == ["train"]
    assert run(["explain", str(journal)]) == 0


def test_a_trace_has_a_process_per_job_and_a_thread_per_rank(
    jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    _told(capsys, jobs_file, "--trace", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(names.values()) == {"job train", "job serve", "network"}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert len(threads) == 7
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in spans} == {"compute", "communicate", "event"}
    for lane in threads:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == lane)
        assert mine
        assert all(end <= begin + 0.002 for (_, end), (begin, _) in itertools.pairwise(mine))
    counters = [event for event in events if event["ph"] == "C"]
    assert {"uplink of host0", "downlink of host1"} <= {event["name"] for event in counters}
    assert all(0 <= event["args"]["%"] <= 100.001 for event in counters)
    assert any(event["args"]["%"] > 50 for event in counters)


def test_a_trace_changes_no_bit(jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for more in ([], ["--trace", str(tmp_path / "trace.json")]):
        _told(capsys, jobs_file, "--json", str(tmp_path / "run.json"), *more)
        texts.append((tmp_path / "run.json").read_text())
    assert texts[0] == texts[1]


OPTIONS: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "execution": ("jobs", ["--execution", "pieces"], ["--execution", "streams"]),
    "seed": ("jobs", [], ["--seed", "1"]),
    "until": ("jobs", [], ["--until", "50ms"]),
    "network": ("jobs", [], ["--network", "NETWORK"]),
    "size": ("plain", [], ["--size", "1MB"]),
    "iterations": ("plain", [], ["--iterations", "2"]),
    "policy": ("plain", [], ["--policy", "clairvoyant"]),
    "realism": ("jobs", [], ["--realism", "lab"]),
    "incast": ("jobs", [], ["--incast", "0.5"]),
    "slow_start": ("jobs", [], ["--slow-start"]),
}
FILES = {"journal": "--journal", "trace": "--trace", "json_file": "--json", "page": "--page"}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_something(
    option: str, jobs_file: str, plain_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "network.yml").write_text(NETWORK)
    scenario, before, after = OPTIONS[option]
    base = [jobs_file if scenario == "jobs" else plain_file, "--json", str(tmp_path / "run.json")]
    if option == "network":  # its links have no names for events
        base[0] = str(tmp_path / "still.yaml")
        Path(base[0]).write_text(re.sub(r"(?s)events:.*?jobs:", "jobs:", JOBS))
    runs = []
    for options in (before, after):
        _told(capsys, *base, *(str(tmp_path / "network.yml") if each == "NETWORK" else each for each in options))
        runs.append((tmp_path / "run.json").read_text())
    assert runs[0] != runs[1]


@pytest.mark.parametrize("option", FILES)
def test_an_option_writes_a_file(
    option: str, jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _told(capsys, jobs_file, FILES[option], str(tmp_path / "file"))
    assert (tmp_path / "file").stat().st_size > 100


def test_every_option_has_a_test() -> None:
    command = typer.main.get_command(sim.app)
    parameters = command.commands["run"].params  # type: ignore[attr-defined]
    assert {each.name for each in parameters} == {"scenario", *OPTIONS, *FILES}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "there is no scenario 'nosuch'"),
        (["star8", "--execution", "fast"], "--execution: 'fast' is no execution (one of pieces, rounds, streams)"),
        (["star8", "--policy", "best"], "--policy: 'best' is no policy"),
        (["star8", "--realism", "real"], "--realism: 'real' is none (one of ideal, lab)"),
        (["star8", "--size", "16"], "--size: '16' has no unit"),
        (["star8", "--size", "0B"], "--size: must be above 0"),
        (["star8", "--until", "5"], "--until: '5' has no unit"),
        (["star8", "--incast", "-1"], "an incast loss of -1.0 cannot be"),
        (["star8", "--incast", "2"], "an incast loss of 2.0 cannot be"),
        (["two-jobs", "--size", "1MB"], "--size: the scenario has jobs of its own (set it in the file)"),
        (["two-jobs", "--iterations", "3"], "--iterations: the scenario has jobs of its own"),
        (["star8", "--network", "nosuch.yml"], "nosuch.yml"),
        (["star8", "--json", "/nosuch/run.json"], "/nosuch/run.json: cannot write it"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_file_that_cannot_be_written_costs_nothing_else(
    jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--journal", "/dev/full", "--json", str(tmp_path / "run.json"), "--page", str(tmp_path / "p.html")]
    assert run(["sim", jobs_file, *files, "--trace", "/dev/full"]) == 2
    said = capsys.readouterr()
    assert " s of network, " in said.out
    assert said.err.count("/dev/full: cannot write it: No space left on device") == 2
    assert len(said.err.splitlines()) == 1
    assert json.loads((tmp_path / "run.json").read_text())["jobs"]
    assert (tmp_path / "p.html").stat().st_size > 100


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_narrow_terminal_loses_nothing(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "run": ["star8-udp75-down", "--iterations", "2", "--execution", "streams"],
        "compare": ["star8-udp75-down", "--plans", "ring,packing", "--execution", "streams"],
    }[verb]
    words = []
    for columns in ("40", "200"):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", columns)
        words.append(sorted(_told(capsys, verb, *arguments).split()))
    assert words[0] == words[1]
    assert "busiest" in words[0]


def test_messages_on_another_network_cost_what_the_scenario_says_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "network.yml").write_text(NETWORK)
    ends = {}
    for message in ("", "0us", "10us"):
        scenario, answer = tmp_path / "scenario.yaml", tmp_path / "answer.json"
        scenario.write_text("extends: star8\n" + (f"costs: {{message: {message}, local: 0us}}\n" if message else ""))
        options = ["--network", str(tmp_path / "network.yml"), "--size", "1KB", "--iterations", "1"]
        assert run(["sim", str(scenario), *options, "--json", str(answer)]) == 0
        ends[message] = json.loads(answer.read_text())["end_s"]
    assert ends[""] == ends["0us"] < ends["10us"]


def test_a_network_that_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "network.yml").write_text(NETWORK.replace("[8]", "[4]"))
    assert run(["sim", "star8", "--network", str(tmp_path / "network.yml")]) == 2
    assert "has 4 hosts, the scenario 8" in capsys.readouterr().err


def test_an_interrupted_run_says_what_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(
        "hosts: 8\naccess: 200Mbit\njobs: [{name: a, hosts: 8, iterations: 1000000, loop: [{all_reduce: 1MB}]}]"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "sim", str(path), "--json", str(tmp_path / "run.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + 100
        while not (tmp_path / "run.json").exists() and time.monotonic() < deadline:  # it is made before the run
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.splitlines() == ["headway: interrupted; above is what had ended"]
    assert int(out.splitlines()[2].split()[2]) > 0
    assert json.loads((tmp_path / "run.json").read_text())["jobs"][0]["iterations"] > 0
