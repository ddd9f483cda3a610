"""The congestion controls in BPF: the tracker, the actuator on real sockets, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.interleave import bpf, bpf_build, libbpf
from headway.interleave.actuator import ActuatorError, FlowState, choose, open_actuator, why_not
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.iterations import IterationTracker
from headway.lab import kernel

NAMES = ("bpf-reno", "bpf-cubic")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def registered() -> list[str]:
    """All algorithms; other jobs on this machine may have theirs."""
    return AVAILABLE.read_text().split()


def algorithm(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def send(near: socket.socket, far: socket.socket, size: int) -> None:
    """In steps that fit into the buffers; all of it has been received at the end."""
    while size:
        step = min(size, 16384)
        near.sendall(bytes(step))
        assert len(far.recv(step, socket.MSG_WAITALL)) == step
        size -= step


class Event(ctypes.Structure):
    _fields_ = (
        ("now_ns", ctypes.c_uint64),
        ("total", ctypes.c_uint64),
        ("idle", ctypes.c_uint64),
        ("ratio", ctypes.c_int64),
    )


def history(seed: int, *, iterations: int = 40) -> list[tuple[int, int, bool]]:
    """Microseconds, bytes in all, idle before: bursts with short pauses, changes of size, stalls."""
    draw = random.Random(seed)
    now, total, size = 1_000, 0, 4_000_000
    events: list[tuple[int, int, bool]] = []
    for _ in range(iterations):
        if draw.random() < 0.1:
            size = draw.randrange(1_000_000, 8_000_000)
        sent = round(size * draw.uniform(0.93, 1.07))
        pieces = draw.randrange(1, 12)
        for piece in range(pieces):
            now += round(draw.choice((200, 3_000, 12_000, 30_000)) * draw.uniform(0.5, 1.5))
            total += sent // pieces
            events.append((now, total, piece == 0 or draw.random() < 0.7))
        now += round(draw.uniform(100_000, 400_000))
        if draw.random() < 0.3:
            events.append((now, total, True))  # nothing new
    return events


@pytest.mark.usefixtures("loadable")
@pytest.mark.parametrize("seed", range(8))
def test_the_tracker_in_bpf_and_the_one_in_python_agree_on_any_history(seed: int) -> None:
    tracker, ratios, last = IterationTracker(), 0, 0
    with libbpf.BpfObject(bpf_build.compiled(Path(__file__).with_name("tracker.bpf.c"))) as programs:
        for now_us, total, idle in history(seed):
            event = Event(now_us * 1000, total, idle, 0)
            programs.run("feed", event)
            tracker.sent(now_us / 1e6, total, idle=idle)
            if total == last:
                continue  # a pause; the programs are asked for F when something moves
            last = total
            assert (event.ratio < 0) == (tracker.ratio is None)
            if tracker.ratio is not None:
                ratios += 1
                assert event.ratio / 65536 == pytest.approx(tracker.ratio, abs=2 / 65536)
        tracked = bpf.Tracked()
        assert libbpf.read_entry(programs.map_descriptor("tracked"), 0, tracked)
    state = bpf.flow_state(bpf.Flow(tracker=tracked, weight=65536))
    assert ratios > 10
    assert state.iterations == tracker.iterations
    assert state.iteration_bytes == tracker.iteration_bytes
    assert (state.period_s is None) == (tracker.period_s is None)
    if state.period_s is not None:
        assert state.period_s == pytest.approx(tracker.period_s)


@pytest.mark.usefixtures("loadable")
@pytest.mark.parametrize("name", NAMES)
def test_iterations_of_a_real_sender_are_found_and_f_follows_them(name: str) -> None:
    actuator = open_actuator(name, Aggressiveness(slope=1.0, intercept=0.5))
    with contextlib.closing(actuator), connected() as (near, far):
        before = algorithm(near)
        actuator.adopt(near)
        assert algorithm(near) not in (before, bpf.PUBLIC[name])
        for _ in range(5):
            send(near, far, 400_000)
            time.sleep(0.1)
        send(near, far, 200_000)
        until(lambda: (actuator.state(near).ratio or 0.0) > 0.49, "half of an iteration is not seen")
        state = actuator.state(near)
        assert state.iteration_bytes == pytest.approx(400_000, abs=2)
        assert state.ratio == pytest.approx(0.5, abs=0.01)
        assert state.iterations == 5
        assert state.period_s is not None
        assert state.period_s >= 0.1
        assert 0.5 <= state.weight <= 1.01
        actuator.release(near)
        assert algorithm(near) == before


@pytest.mark.usefixtures("loadable")
def test_a_held_weight_stays_until_iterations_are_followed_again() -> None:
    actuator = open_actuator("bpf-reno", Aggressiveness())
    with contextlib.closing(actuator), connected() as (near, far):
        actuator.adopt(near)
        actuator.push(near, 3.5)
        send(near, far, 100_000)
        until(lambda: actuator.state(near).weight == 3.5, "the weight is not held")
        actuator.push(near, None)
        send(near, far, 100_000)
        until(lambda: actuator.state(near).weight == 1.0, "the weight is not let go")


@pytest.mark.usefixtures("loadable")
@pytest.mark.parametrize(("aggressiveness", "least", "most"), [
    (Aggressiveness(slope=1.0, intercept=2.0), 2.9, 3.0),
    (Aggressiveness(slope=1.0, intercept=2.0, most=2.5), 2.5, 2.5),
])  # fmt: skip
def test_slope_intercept_and_the_dial_reach_the_kernel(
    aggressiveness: Aggressiveness, least: float, most: float
) -> None:
    actuator = open_actuator("bpf-reno", aggressiveness)
    with contextlib.closing(actuator), connected() as (near, far):
        actuator.adopt(near)
        for _ in range(4):
            send(near, far, 300_000)
            time.sleep(0.05)
        until(lambda: least <= actuator.state(near).weight <= most, str(actuator.state(near)))


@pytest.mark.usefixtures("loadable")
def test_a_duplicate_of_a_descriptor_is_adopted_as_the_socket_itself() -> None:
    actuator = open_actuator("bpf-reno", Aggressiveness())
    with contextlib.closing(actuator), connected() as (near, far):
        with socket.socket(fileno=os.dup(near.fileno())) as duplicate:
            actuator.adopt(duplicate)
            assert algorithm(near).startswith("hw_reno_")
            send(near, far, 50_000)
            assert actuator.state(duplicate).weight == 1.0
            actuator.release(duplicate)
        assert not algorithm(near).startswith("hw_")


@pytest.mark.usefixtures("loadable")
def test_two_jobs_have_algorithms_of_their_own_and_leave_nothing() -> None:
    first, second = (bpf.open_actuator("bpf-cubic", Aggressiveness()) for _ in range(2))
    assert first.algorithm != second.algorithm
    assert {first.algorithm, second.algorithm} <= set(registered())
    with connected() as (near, _far):
        first.adopt(near)
        second.adopt(near)
        assert algorithm(near) == second.algorithm
        second.close()
        assert algorithm(near) == first.algorithm
        first.close()
        assert algorithm(near) not in (first.algorithm, second.algorithm)
    assert not {first.algorithm, second.algorithm} & set(registered())


@pytest.mark.usefixtures("loadable")
def test_a_closed_connection_does_no_harm() -> None:
    with contextlib.closing(open_actuator("bpf-reno", Aggressiveness())) as actuator:
        with connected() as (near, _far):
            actuator.adopt(near)
        actuator.push(near, 2.0)
        assert math.isnan(actuator.state(near).weight)
        actuator.release(near)


def test_a_descriptor_that_is_gone_or_leads_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bpf.PUBLIC, "bpf-reno", "reno")  # every kernel has it
    actuator = bpf.BpfActuator("bpf-reno", Aggressiveness(), None)
    with connected() as (near, far):
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        actuator.adopt(near)
        actuator.release(near)
        assert algorithm(near) == "cubic"
        numbers = [os.dup(near.fileno()) for _ in range(3)]
        closed, other, datagrams = (socket.socket(fileno=number) for number in numbers)
        for each in (closed, other, datagrams):
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            actuator.adopt(each)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            os.close(closed.fileno())
            os.dup2(far.fileno(), other.fileno())
            os.dup2(udp.fileno(), datagrams.fileno())
            actuator.close()
        assert (algorithm(near), algorithm(far)) == ("reno", "cubic")
        closed.detach()
        other.close()
        datagrams.close()


@pytest.mark.usefixtures("loadable")
def test_nothing_is_left_behind_by_a_process_that_was_killed() -> None:
    program = (
        "import socket, time; from headway.interleave.bpf import open_actuator\n"
        "from headway.interleave.aggressiveness import Aggressiveness\n"
        "actuator = open_actuator('bpf-reno', Aggressiveness())\n"
        "server = socket.create_server(('127.0.0.1', 0)); near = socket.create_connection(server.getsockname())\n"
        "actuator.adopt(near); near.send(b'x' * 1000); print(actuator.algorithm, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name in registered()
        process.send_signal(signal.SIGKILL)
    until(lambda: name not in registered(), f"{name} is left behind")


@pytest.mark.usefixtures("loadable")
def test_building_a_lab_meanwhile_changes_nothing_for_algorithms_that_come_or_go() -> None:
    if not kernel.privileged():
        pytest.skip("changing what is allowed needs root")
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    gone = bpf.open_actuator("bpf-reno", Aggressiveness())
    with kernel.allowed_congestion_controls({"cubic"}):
        gone.close()
        come = bpf.open_actuator("bpf-reno", Aggressiveness())
    with contextlib.closing(come):
        assert come.algorithm in allowed.read_text().split()
        assert gone.algorithm not in allowed.read_text().split()


@pytest.mark.usefixtures("loadable")
def test_a_name_that_is_taken_is_an_error_and_not_a_second_one() -> None:
    first = bpf.Registered("bpf-reno", "hw_taken", bpf.settings(Aggressiveness()))
    with contextlib.closing(first), pytest.raises(ActuatorError, match="register"):
        bpf.Registered("bpf-cubic", "hw_taken", bpf.settings(Aggressiveness()))
    assert "hw_taken" not in registered()


@pytest.mark.usefixtures("loadable")
def test_an_algorithm_for_everybody_is_used_where_a_process_may_load_none(monkeypatch: pytest.MonkeyPatch) -> None:
    if any(name in registered() for name in ("headway_reno", "headway_cubic")):
        pytest.skip("somebody has loaded algorithms for everybody on this machine")
    command = [sys.executable, "-m", "headway.cli.main", "interleave", "load", "bpf-reno"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith("loaded headway_reno")
        try:
            monkeypatch.setattr(bpf, "requirements", lambda _name: {"rights": "no rights"})
            assert why_not("bpf-reno") is None
            assert "no rights" in (why_not("bpf-cubic") or "")
            actuator = open_actuator("bpf-reno", Aggressiveness())
            with contextlib.closing(actuator), connected() as (near, _far):
                actuator.adopt(near)
                assert algorithm(near) == "headway_reno"
                assert math.isnan(actuator.state(near).weight)
                with pytest.raises(ActuatorError, match="another process"):
                    actuator.push(near, 2.0)
            with pytest.raises(UsageError, match="default slope"):
                open_actuator("bpf-reno", Aggressiveness(most=1.0))
            plain = "import socket; socket.socket().setsockopt(6, socket.TCP_CONGESTION, b'headway_reno')"
            python = [os.path.realpath(sys.executable), "-I", "-S", "-c", plain]
            drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
            subprocess.run([*drop, *python], check=True)
        finally:
            daemon.send_signal(signal.SIGINT)
        assert daemon.wait(timeout=20) == 0
    assert "headway_reno" not in registered()


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf, "public", lambda _name: False)
    monkeypatch.setattr("platform.release", lambda: "5.15.0")
    monkeypatch.setattr(bpf_build, "compiler", lambda: None)
    reason = why_not("bpf-cubic") or ""
    assert "5.15.0 is too old: 6.4" in reason
    assert "no clang" in reason
    assert "headway interleave load bpf-cubic" in reason
    with pytest.raises(UsageError, match=r"bpf-cubic cannot be used here: .*too old"):
        choose("bpf-cubic")
    assert choose() == "streams"
    assert choose(foreign=True) == "pacing"


def test_an_unknown_actuator_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"no actuator 'bpf'.*auto, bpf-reno"):
        choose("bpf")


def test_streams_are_not_for_connections_of_others() -> None:
    assert why_not("streams") is None
    assert "opens no second one" in (why_not("streams", foreign=True) or "")


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    assert bpf_build.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headway" / "bpf"
    (tmp_path / "headway" / "bpf").chmod(0o777)
    assert bpf_build.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) is None
    assert bpf_build.cache_folder({}) is None


@pytest.mark.skipif(bpf_build.compiler() is None, reason="no clang")
def test_what_was_compiled_once_is_read_the_next_time(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    source = bpf_build.SOURCES / "reno.bpf.c"
    code = bpf_build.compiled(source, environment=environment)
    (kept,) = (tmp_path / "headway" / "bpf").iterdir()
    assert kept.read_bytes() == code
    kept.write_bytes(b"kept")
    assert bpf_build.compiled(source, environment=environment) == b"kept"
    broken = tmp_path / "broken.bpf.c"
    broken.write_text("int a = b;")
    with pytest.raises(ActuatorError, match=r"broken.bpf.c:1:9: error: .*'b'"):
        bpf_build.compiled(broken, environment=environment)


def test_a_flow_that_is_not_periodic_has_a_weight_and_nothing_else() -> None:
    flow = bpf.Flow(weight=65536)
    flow.tracker.iterations = 1
    assert bpf.flow_state(flow) == FlowState(weight=1.0, iterations=1)
