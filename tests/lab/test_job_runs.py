"""Jobs on a lab's hosts: who runs where, what cannot run, and, in a real lab, what they did and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.bench.lab_jobs import run_jobs
from headway.decide.journal import EventRecord, InterleaveRecord, parse_lines
from headway.errors import UsageError
from headway.lab import state
from headway.lab.draws import ComputeTimes, mix
from headway.lab.files import parse_scenario
from headway.lab.job_runs import check_runnable, job_ranks
from headway.lab.jobs import Job, Phase
from headway.lab.lab import Lab
from headway.lab.placement import place
from headway.lab.scenario import Scenario
from headway.sim.run import simulate
from tests.lab.remains import remains

LAB = [sys.executable, "-m", "headway.cli.main", "lab", "run"]
COMPUTE = [{"compute": "10ms"}]
RACKS = {"racks": 2, "uplink": "100Mbit"}


def scenario(*jobs: Mapping[str, object], **more: object) -> Scenario:
    """Eight hosts with these jobs."""
    filled = [{"loop": COMPUTE, "iterations": 1, **job} for job in jobs]
    return parse_scenario({"name": "s", "hosts": 8, "access": "100Mbit", "jobs": filled, **more}, where="test")


class TestPlacement:
    def test_jobs_take_free_hosts_first_and_named_ones_are_placed_before(self) -> None:
        placed = place(
            scenario({"name": "a", "hosts": 4}, {"name": "b", "hosts": ["host1", "host0"]}, {"name": "c", "hosts": 5})
        )
        assert placed == {"a": (2, 3, 4, 5), "b": (1, 0), "c": (6, 7, 0, 1, 2)}
        assert list(placed) == ["a", "b", "c"]

    def test_spread_goes_round_the_racks(self) -> None:
        assert place(scenario({"name": "a", "hosts": 4, "placement": "spread"}, racks=RACKS))["a"] == (0, 4, 1, 5)
        tree = {"k": 4}
        assert place(scenario({"name": "a", "hosts": 4, "placement": "spread"}, fat_tree=tree))["a"] == (0, 2, 4, 6)
        assert place(scenario({"name": "a", "hosts": 3, "placement": "spread"}))["a"] == (0, 1, 2)

    def test_random_follows_the_seeds(self) -> None:
        def hosts(seed: int, run: int) -> tuple[int, ...]:
            jobs = scenario({"name": "a", "hosts": 8, "placement": "random", "seed": seed})
            return place(jobs, seed=run)["a"]

        assert hosts(1, 0) == hosts(1, 0)
        assert sorted(hosts(1, 0)) == list(range(8))
        assert len({hosts(1, 0), hosts(2, 0), hosts(1, 1)}) == 3

    def test_ranks_of_one_host_are_neighbours(self) -> None:
        assert place(scenario({"name": "a", "hosts": 2, "ranks_per_host": 2}))["a"] == (0, 0, 1, 1)


class TestDraws:
    def test_they_depend_on_job_rank_and_seeds_alone(self) -> None:
        phase = Phase(compute=0.1, noise=0.1)

        def draws(name: str, seed: int, rank: int, run: int) -> list[float]:
            times = ComputeTimes(Job(name=name, hosts=2, loop=(phase,), seed=seed), rank, seed=run)
            return [times.draw(phase) for _ in range(4)]

        kinds = [("a", 0, 0, 0), ("b", 0, 0, 0), ("a", 1, 0, 0), ("a", 0, 1, 0), ("a", 0, 0, 1)]
        assert draws("a", 0, 0, 0) == draws("a", 0, 0, 0)
        assert len({tuple(draws(*kind)) for kind in kinds}) == len(kinds)

    def test_without_noise_nothing_is_drawn_and_times_are_never_negative(self) -> None:
        job = Job(name="a", hosts=2, loop=(Phase(compute=0.1),))
        times = ComputeTimes(job, 0)
        assert times.draw(Phase(compute=0.1)) == 0.1
        assert times.draw(Phase(send=5)) == 0.0
        rough = Phase(compute=0.1, noise=0.99)
        assert [times.draw(rough), times.draw(rough)] == [ComputeTimes(job, 0).draw(rough), times_after(job, rough)]
        assert min(times.draw(rough) for _ in range(1000)) == 0.0

    def test_mix_stays_as_it_is(self) -> None:
        assert [mix(), mix(0), mix(1, 2), mix(2, 1), mix(-1)] == [
            11400714819323198485, 15590649930234121703, 5640054598490828357, 18027027221004770882, 8658983634636877031,
        ]  # fmt: skip

    def test_the_simulator_s_are_the_same(self) -> None:
        jobs = scenario(
            {"name": "a", "hosts": 3, "iterations": 4, "loop": [{"compute": "10ms", "noise": "20%"}], "seed": 5}
        )
        seen: dict[int, list[float]] = {}

        class Spans:
            def span(self, job: str, rank: int, kind: str, begin_s: float, end_s: float) -> None:
                seen.setdefault(rank, []).append(end_s - begin_s)

        simulate(jobs, seed=9, spans=Spans())
        job = jobs.jobs[0]
        for rank in range(3):
            times = ComputeTimes(job, rank, seed=9)
            assert seen[rank] == pytest.approx([times.draw(job.loop[0]) for _ in range(4)], rel=1e-9)


def times_after(job: Job, phase: Phase) -> float:
    """The second draw."""
    times = ComputeTimes(job, 0)
    times.draw(phase)
    return times.draw(phase)


class TestWhoRuns:
    def test_groups_have_their_own_ports_and_every_rank_its_own(self) -> None:
        ranks = job_ranks(
            scenario(
                {"name": "a", "hosts": ["host1", "host0"], "plan": "ring", "policy": "react"},
                {"name": "b", "hosts": ["host0"], "ranks_per_host": 2},
            )
        )
        assert [(rank.job.name, rank.rank, rank.host) for rank in ranks] == [
            ("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("b", 1, 0),
        ]  # fmt: skip
        assert len({rank.send_ports[rank.rank] for rank in ranks}) == 4
        assert ranks[0].send_ports == ranks[1].send_ports
        hosts = [SomeHost(f"host{i}", f"10.0.0.{i + 1}") for i in range(8)]
        first, last = ranks[0].environment(hosts), ranks[3].environment(hosts)
        assert first["MASTER_ADDR"] == "10.0.0.2"
        assert (first["HEADWAY_POLICY"], first["HEADWAY_PLAN"]) == ("react", "ring")
        assert (first["HEADWAY_INTERLEAVE"], first["HEADWAY_STREAMS"]) == ("off", "1")
        assert (last["RANK"], last["WORLD_SIZE"], last["LOCAL_RANK"], last["LOCAL_WORLD_SIZE"]) == ("1", "2", "1", "2")
        assert (last["HEADWAY_POLICY"], last["HEADWAY_PLAN"]) == ("off", "")
        assert first["MASTER_PORT"] != last["MASTER_PORT"]

    def test_what_a_job_says_of_its_connections_reaches_the_backend(self) -> None:
        turns = {"actuator": "pacing", "slope": 1.5, "intercept": 0.5, "most": 1.25}
        jobs = scenario(
            {"name": "a", "hosts": 2, "interleave": turns, "congestion_control": "reno"},
            {"name": "b", "hosts": 2, "weight": 4},
        )
        hosts = [SomeHost(f"host{i}", f"10.0.0.{i + 1}") for i in range(8)]
        a, _, b, _ = (rank.environment(hosts) for rank in job_ranks(jobs))
        assert a["HEADWAY_INTERLEAVE"] == "pacing"
        assert [a[f"HEADWAY_INTERLEAVE_{name}"] for name in ("SLOPE", "INTERCEPT", "MOST")] == ["1.5", "0.5", "1.25"]
        assert (a["HEADWAY_CONGESTION_CONTROL"], a["HEADWAY_STREAMS"]) == ("reno", "1")
        assert (b["HEADWAY_INTERLEAVE"], b["HEADWAY_STREAMS"]) == ("off", "4")
        assert "HEADWAY_CONGESTION_CONTROL" not in b

    @pytest.mark.parametrize(
        ("field", "value"), [("policy", "clairvoyant"), ("priority", 1)], ids=lambda value: str(value)
    )
    def test_what_is_for_the_simulator_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(UsageError, match=f"job a: {field}.*simulator only"):
            check_runnable(scenario({"name": "a", "hosts": 2, field: value}))

    @pytest.mark.parametrize("weight", [0.5, 1.5, 17])
    def test_a_weight_is_a_number_of_streams(self, weight: float) -> None:
        with pytest.raises(UsageError, match=r"job a: weight: .* no whole number from 1 to 16"):
            check_runnable(scenario({"name": "a", "hosts": 2, "weight": weight}))
        check_runnable(scenario({"name": "a", "hosts": 2, "weight": 4}))
        with pytest.raises(UsageError, match="an interleaved job has no weight"):
            check_runnable(scenario({"name": "a", "hosts": 2, "weight": 4, "interleave": {"actuator": "auto"}}))

    def test_a_job_has_one_congestion_control(self) -> None:
        fields = {"name": "a", "hosts": 2, "congestion_control": "reno"}
        check_runnable(scenario({**fields, "interleave": {"actuator": "streams"}}))
        with pytest.raises(UsageError, match="bpf-reno is a congestion control itself"):
            check_runnable(scenario({**fields, "interleave": {"actuator": "bpf-reno"}}))

    def test_a_scenario_without_jobs_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no jobs"):
            check_runnable(scenario())


class SomeHost:
    """A host of no lab."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address


def lab_run(*arguments: str, limit_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAB, *arguments], capture_output=True, text=True, timeout=limit_s)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no jobs"),
        (("--backend", "gloo", "--", "true"), "--backend"),
        (("--json", "x", "--", "true"), "--json"),
        (("--journals", "x", "--", "true"), "--journals"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments: tuple[str, ...], words: str) -> None:
    done = lab_run("star8", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


MIXED = """
hosts: 3
access: 100Mbit
events:
  - {id: slow, type: bw, target: host0, rate: 50%, start: 50ms}
jobs:
  - name: ar
    hosts: [host0, host1]
    iterations: 3
    plan: ring
    loop:
      - {all_reduce: 300KB}
      - {all_gather: 100001B}
      - {broadcast: 10KB, root: 1}
  - name: snd
    hosts: [host1, host2]
    start: 20ms
    iterations: 4
    loop:
      - {compute: 20ms, noise: 10%}
      - {send: 100KB, src: 0, dst: 1}
      - {send: 1KB, src: 1, dst: 0}
  - name: on
    hosts: [host0, host2]
    loop:
      - {send: 50KB, src: 1, dst: 0}
"""


@pytest.mark.lab
@pytest.mark.usefixtures("privileged")
class TestInALab:
    def test_collectives_sends_and_events_run_together(self, tmp_path: Path) -> None:
        file, out, events = tmp_path / "mixed.yaml", tmp_path / "out.json", tmp_path / "events.jsonl"
        file.write_text(MIXED)
        options = ["--json", str(out), "--journals", str(tmp_path), "--events-journal", str(events)]
        done = lab_run(str(file), *options)
        assert done.returncode == 0, done.stderr
        assert "job ar: 3 iterations" in done.stdout
        document: dict[str, Any] = json.loads(out.read_text())
        assert document["scenario"] == "mixed"
        ar, snd, on = (document["jobs"][name] for name in ("ar", "snd", "on"))
        assert ar["hosts"] == ["host0", "host1"]
        assert [each["kind"] for each in ar["operations"]] == ["all_reduce", "all_gather", "broadcast"] * 3
        assert [each["number"] for each in ar["operations"]] == list(range(9))
        assert {each["plan"] for each in ar["operations"][::3]} == {"ring"}
        assert len(snd["iterations"]) == 4
        assert [each["size_bytes"] for each in snd["operations"]] == [100_000, 1000] * 4
        assert snd["iterations"][0]["start_s"] >= 0.02
        assert len(on["iterations"]) >= 1
        begun = parse_lines(events.read_text().splitlines(), where="events")
        assert [each.event for each in begun if isinstance(each, EventRecord)] == ["slow", "slow"]
        assert {path.name for path in tmp_path.glob("*.jsonl")} == {"ar.jsonl", "events.jsonl"}
        assert state.labs() == [] or all(record.scenario != "mixed" for record in state.labs())

    def test_ranks_compute_as_long_as_the_simulator_s(self) -> None:
        loop = [{"compute": "10ms", "noise": "30%"}, {"send": "1KB"}]
        jobs = scenario({"name": "a", "hosts": 2, "iterations": 5, "loop": loop}, hosts=2)
        with Lab.up(jobs) as lab:
            done = run_jobs(lab, seed=3, limit_s=60)
        assert done.ended.ok
        both = [ComputeTimes(jobs.jobs[0], rank, seed=3) for rank in range(2)]
        slowest = [max(times.draw(jobs.jobs[0].loop[0]) for times in both) for _ in range(5)]
        real = [each.duration_s for each in done.jobs["a"].iterations]
        assert len(real) == 5
        # A sleep is never shorter than asked for, and the sender waits for the receiver.
        assert all(took >= drawn - 1e-3 for took, drawn in zip(real, slowest, strict=True))

    def test_jobs_that_take_turns_and_their_baselines_run(self) -> None:
        loop = [{"compute": "100ms"}, {"send": "800KB"}]
        kinds: list[dict[str, object]] = [
            {"interleave": {"actuator": "streams", "most": 4}},
            {"interleave": {"actuator": "pacing"}},
            {"congestion_control": "reno"},
            {"weight": 3},
            {"period": "300ms"},
        ]
        names = "abcde"
        jobs = scenario(
            *({"name": names[i], "hosts": [f"host{i}", "host5"], "iterations": 4, "loop": loop, **kind}
              for i, kind in enumerate(kinds)),
            hosts=6,
        )  # fmt: skip
        with Lab.up(jobs) as lab:
            prefix = lab.record.prefix
            done = run_jobs(lab, limit_s=60)
        assert done.ended.ok, done.ended.failure
        assert {name: len(job.iterations) for name, job in done.jobs.items()} == dict.fromkeys(names, 4)
        starts_s = [each.start_s for each in done.jobs["e"].iterations]
        assert all(start_s >= 0.3 * number - 1e-3 for number, start_s in enumerate(starts_s))
        assert remains(prefix) == []

    @pytest.mark.parametrize(("backend", "actuator"), [("headway", "streams"), ("gloo", "pacing")])
    def test_collectives_take_turns_too(self, backend: str, actuator: str, tmp_path: Path) -> None:
        job = {"hosts": 2, "iterations": 5, "loop": [{"compute": "100ms"}, {"all_reduce": "1MB"}]}
        more: dict[str, object] = {"interleave": {"actuator": actuator}, "congestion_control": "reno"}
        jobs = scenario({"name": "a", **job, **more}, hosts=2)
        with Lab.up(jobs) as lab:
            done = run_jobs(lab, backend=backend, journals=tmp_path, limit_s=60)
        assert done.ended.ok, done.ended.failure
        assert len(done.jobs["a"].iterations) == 5
        if backend == "headway":
            lines = (tmp_path / "a.jsonl").read_text().splitlines()
            (learnt,) = [each for each in parse_lines(lines, where="a") if isinstance(each, InterleaveRecord)]
            assert learnt.actuator == "streams"
            assert learnt.iterations >= 3

    def test_one_failure_ends_all_jobs_and_names_who_it_was(self) -> None:
        jobs = scenario(
            {"name": "a", "hosts": ["host0", "host1"], "iterations": 100_000, "loop": [*COMPUTE, {"send": "1KB"}]},
            {"name": "b", "hosts": ["host0", "host2"], "loop": [*COMPUTE, {"send": "1KB"}]},
            hosts=3,
        )
        begun: list[bool] = []
        killed: list[int] = []

        def kill_one() -> None:
            if begun and not killed:
                killed.extend(_workers("b", 1))
                os.kill(killed[0], signal.SIGKILL)

        with Lab.up(jobs) as lab:
            prefix = lab.record.prefix
            done = run_jobs(lab, limit_s=60, on_zero=lambda: begun.append(True), on_tick=kill_one)
        assert done.ended.failure == "job b: rank 1 on host2 was killed by SIGKILL"
        assert len(done.ended.codes) == 4
        assert remains(prefix) == []
        assert [pid for job in ("a", "b") for rank in (0, 1) for pid in _workers(job, rank)] == []


def _workers(job: str, rank: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if (
            "headway.bench.job_worker" in words
            and "headway-jobs-" in "".join(words)
            and [job, str(rank)] == words[-3:-1]
        ):
            found.append(int(path.parent.name))
    return found
