"""A rank of a lab's job: what it needs, its loop, its connections, what is made of what it told. Without a lab."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from headway.bench.job_links import SendLinks
from headway.bench.job_measures import job_result, sentence, to_json
from headway.bench.job_worker import IterationTold, has_part, run_rank
from headway.bench.lab_jobs import check_jobs, headlines
from headway.bench.rank_lines import RankLine, RankLines, Said
from headway.errors import DeadlineError, HeadwayError, PeerLostError, UsageError
from headway.lab.files import load_scenario
from headway.lab.jobs import Interleave, Job, Phase

SEND = Phase(send=3_000_000, src=0, dst=1)
BACK = Phase(send=5, src=1, dst=0)


def job(*loop: Phase, iterations: int | None = 2) -> Job:
    return Job(name="a", hosts=3, loop=loop, iterations=iterations)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(params=["one", "three", "streams", "pacing"])
def links(request: pytest.FixtureRequest) -> Iterator[list[SendLinks]]:
    """Of ranks 0 and 1."""
    ports = free_ports(2)
    made: dict[int, SendLinks] = {}
    kind: str = request.param
    turns = Interleave(actuator="streams" if kind == "streams" else "pacing") if kind in ("streams", "pacing") else None

    def make(rank: int) -> None:
        made[rank] = SendLinks(
            rank=rank, loop=(SEND, BACK), addresses=["127.0.0.1"] * 2, ports=ports,
            streams=3 if kind == "three" else 1, interleave=turns,
        )  # fmt: skip

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [made[0], made[1]]
    made[0].close()
    made[1].close()


def test_ranks_that_only_send_load_neither_torch_nor_the_solver() -> None:
    code = "import headway.bench.job_worker, sys; print([n for n in ('torch', 'numba', 'scipy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.ranks
class TestSending:
    def test_messages_go_both_ways_over_connections_that_stay(self, links: list[SendLinks]) -> None:
        told: dict[int, list[IterationTold]] = {0: [], 1: []}
        both = job(SEND, BACK)

        def rank(number: int) -> None:
            run_rank(
                both, number, zero_s=time.monotonic(), seed=0, links=links[number], collective=lambda phase: None,
                tell=told[number].append,
            )  # fmt: skip

        other = threading.Thread(target=rank, args=(1,))
        other.start()
        rank(0)
        other.join()
        for mine in told.values():
            assert [each.iteration for each in mine] == [0, 1]
            assert all(list(each.marks_s) == sorted(each.marks_s) and len(each.marks_s) == 3 for each in mine)
            assert mine[1].marks_s[0] == mine[0].marks_s[-1]

    def test_a_peer_that_ends_is_named(self, links: list[SendLinks]) -> None:
        links[1].close()
        with pytest.raises(PeerLostError, match="rank 1") as lost:
            links[0].send(1, 50_000_000)
        assert lost.value.rank == 1

    def test_a_receiver_hears_of_a_sender_that_ends_too(self, links: list[SendLinks]) -> None:
        links[0].close()
        with pytest.raises(PeerLostError, match="rank 0"):
            links[1].receive(0, 10)


def test_a_rank_that_nobody_answers_says_whom_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.bench.job_links.START_LIMIT_S", 0.2)
    addresses, ports = ["127.0.0.1"] * 2, free_ports(2)
    with pytest.raises(DeadlineError, match="rank 1 took no connection"):
        SendLinks(rank=0, loop=(SEND,), addresses=addresses, ports=ports)
    with pytest.raises(DeadlineError, match="rank 0 did not connect"):
        SendLinks(rank=1, loop=(SEND,), addresses=addresses, ports=ports)


class TestLoop:
    def run(self, one: Job, rank: int) -> tuple[list[str], list[IterationTold]]:
        done: list[str] = []
        told: list[IterationTold] = []

        class Links(SendLinks):
            def __init__(self) -> None:
                pass

            def send(self, dst: int, size_bytes: int) -> None:
                done.append(f"send {size_bytes} to {dst}")

            def receive(self, src: int, size_bytes: int) -> None:
                done.append(f"receive {size_bytes} from {src}")

        run_rank(
            one, rank, zero_s=time.monotonic(), seed=0, links=Links(), tell=told.append,
            collective=lambda phase: done.append(phase.kind),
        )  # fmt: skip
        return done, told

    def test_phases_come_in_order_and_only_one_s_own(self) -> None:
        loop = job(Phase(compute=0.001), Phase(all_reduce=8), SEND, BACK)
        assert self.run(loop, 0)[0] == ["all_reduce", "send 3000000 to 1", "receive 5 from 1"] * 2
        assert self.run(loop, 1)[0] == ["all_reduce", "receive 3000000 from 0", "send 5 to 0"] * 2
        assert self.run(loop, 2)[0] == ["all_reduce"] * 2

    def test_it_begins_at_the_job_s_start_and_computes_as_long_as_drawn(self) -> None:
        one = Job(name="a", hosts=1, loop=(Phase(compute=0.01),), iterations=2, start=0.05)
        told = self.run(one, 0)[1]
        assert told[0].marks_s[0] >= 0.05
        assert all(each.marks_s[1] - each.marks_s[0] >= 0.01 for each in told)

    def test_a_rank_without_a_part_does_nothing_even_in_a_job_without_end(self) -> None:
        endless = job(SEND, Phase(compute=0.0), iterations=None)
        assert [has_part(endless, rank) for rank in range(3)] == [True, True, False]
        assert self.run(endless, 2) == ([], [])
        assert has_part(job(Phase(all_gather=1)), 2)
        assert has_part(job(Phase(compute=1.0)), 2)


def marks(iteration: int, *at_s: float) -> IterationTold:
    return IterationTold(iteration=iteration, marks_s=at_s)


class TestResult:
    LOOP: ClassVar[Job] = job(Phase(compute=1.0), Phase(all_reduce=8), SEND)
    TOLD: ClassVar[dict[int, list[IterationTold]]] = {
        0: [marks(0, 0.0, 1.0, 3.0, 5.0), marks(1, 5.0, 6.0, 8.0, 9.0)],
        1: [marks(0, 0.1, 2.0, 3.5, 4.0)],
        2: [marks(0, 0.0, 1.0, 3.2, 3.2), marks(1, 3.2, 4.2, 5.0, 5.0)],
    }

    def test_only_what_all_ranks_have_ended_counts(self) -> None:
        result = job_result(self.LOOP, ["x", "y", "z"], self.TOLD, {0: "ring"}, (0.0, 0.5, 0.25))
        assert [(each.start_s, each.end_s) for each in result.iterations] == [(0.0, 5.0)]
        reduce, send = result.operations
        assert (reduce.number, reduce.kind, reduce.plan, reduce.free_limit_s) == (0, "all_reduce", "ring", 0.5)
        assert (reduce.start_s, reduce.end_s) == (2.0, 3.5)
        assert (send.number, send.kind, send.plan, send.size_bytes) == (1, "send", "", 3_000_000)
        assert (send.start_s, send.end_s) == (3.5, 5.0)

    def test_it_is_told_in_words_and_as_json(self) -> None:
        result = job_result(self.LOOP, ["x", "y", "z"], self.TOLD, {}, (0.0, 0.5, 0.25))
        assert sentence(result) == "job a: 1 iteration, median 5.00 s, p99 5.00 s"
        assert sentence(job_result(self.LOOP, [], {}, {}, ())) == "job a: no iteration ended"
        document = json.loads(to_json("s", "gloo", {"a": result}))
        assert (document["v"], document["scenario"], document["backend"]) == (1, "s", "gloo")
        assert document["jobs"]["a"]["hosts"] == ["x", "y", "z"]
        assert document["jobs"]["a"]["operations"][1]["kind"] == "send"


def test_plans_and_backends_that_do_not_exist_are_refused() -> None:
    idle = load_scenario("star8")
    one = Job(name="a", hosts=2, loop=(Phase(all_reduce=8),), iterations=1)
    check_jobs(idle.model_copy(update={"jobs": (one,)}))
    with pytest.raises(UsageError, match="--backend: unknown backend 'nccl'"):
        check_jobs(idle.model_copy(update={"jobs": (one,)}), backend="nccl")
    with pytest.raises(UsageError, match="job a: plan: 'circle' is no plan"):
        check_jobs(idle.model_copy(update={"jobs": (one.model_copy(update={"plan": "circle"}),)}))
    heavy = idle.model_copy(update={"jobs": (one.model_copy(update={"weight": 2}),)})
    check_jobs(heavy)
    with pytest.raises(UsageError, match="job a: weight: gloo has one connection"):
        check_jobs(heavy, backend="gloo")
    turns = idle.model_copy(update={"jobs": (one.model_copy(update={"interleave": Interleave(actuator="streams")}),)})
    check_jobs(turns)
    with pytest.raises(UsageError, match=r"job a: interleave: actuator: .*another library"):
        check_jobs(turns, backend="gloo")


def test_a_headline_says_which_actuator_or_congestion_control_a_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.interleave.bpf.why_not", lambda name, *_: "no" if name == "bpf-reno" else None)
    plain = Job(name="a", hosts=("host0", "host2"), loop=(SEND,), iterations=2)
    reno = plain.model_copy(update={"name": "b", "congestion_control": "reno"})
    chosen = plain.model_copy(update={"name": "c", "interleave": Interleave()})
    asked = reno.model_copy(update={"name": "d", "interleave": Interleave(actuator="pacing")})
    scenario = load_scenario("star8").model_copy(update={"jobs": (plain, reno, chosen, asked)})
    on = "2 ranks on host0, host2"
    assert headlines(scenario) == [
        f"job a: {on}; cubic",
        f"job b: {on}; reno",
        f"job c: {on}; interleaved by bpf-cubic",
        f"job d: {on}; interleaved by pacing on reno",
    ]
    monkeypatch.setattr("headway.interleave.bpf.why_not", lambda *_: "no")
    both = chosen.model_copy(update={"loop": (SEND, Phase(all_reduce=8))})
    mixed = scenario.model_copy(update={"jobs": (both,)})
    assert headlines(mixed) == [f"job c: {on}; interleaved by streams on cubic"]
    assert headlines(mixed, backend="gloo") == [f"job c: {on}; interleaved by streams and pacing on cubic"]


class TestLines:
    def test_lines_go_both_ways_and_a_hang_up_is_told(self, tmp_path: Path) -> None:
        with RankLines(tmp_path / "lines") as lines:
            with pytest.raises(PeerLostError):
                lines.send("a", 1, "x")
            with closing(RankLine(str(lines.path), group="a", rank=1)) as line:
                line.send("one")
                assert lines.gather("a", [1], limit_s=10) == {1: "one"}
                assert lines.present("a", 1)
                lines.send("a", 1, "back")
                assert line.receive() == "back"
            said: list[Said] = []
            while not said or said[-1].text:
                said += lines.poll(1.0)
            assert said[-1] == Said("a", 1, "")
            assert not lines.present("a", 1)

    def test_waits_have_a_limit_and_hear_of_trouble(self, tmp_path: Path) -> None:
        with RankLines(tmp_path / "lines") as lines, closing(RankLine(str(lines.path), group="a", rank=1)):
            with pytest.raises(DeadlineError, match="rank 1 did not answer"):
                lines.gather("a", [1], limit_s=0.15)
            with pytest.raises(HeadwayError, match="it burns"):
                lines.gather("a", [1], limit_s=10, alive=lambda: "it burns")

    def test_a_rank_hears_that_the_coordinator_has_gone(self, tmp_path: Path) -> None:
        lines = RankLines(tmp_path / "lines")
        line = RankLine(str(lines.path), group="a", rank=1)
        lines.poll(1.0)
        lines.close()
        lines.close()
        assert line.receive() == ""
        line.close()
