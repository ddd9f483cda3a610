"""The actuators `bpf-reno` and `bpf-cubic`: a TCP congestion control in BPF that follows iterations by itself.

The programs are in bpf/: the window grows by F times as many packets as were acknowledged, F from the connection's
own iteration (tracker.bpf.h is iterations.py in integers). flow.bpf.h has what else follows F, and why.

Each process that may load programs (root, or CAP_BPF with CAP_PERFMON) registers its own algorithm, under a name of its
own, so that two jobs never meet and each has its own parameters. A process that may not uses the one that
`headway interleave load` has registered for everybody, under its name in PUBLIC and with the default parameters.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import platform
import re
import secrets
import socket
import statistics
from pathlib import Path

from headway.errors import UsageError
from headway.interleave import bpf_build, libbpf
from headway.interleave.actuator import ActuatorError, FlowState
from headway.interleave.aggressiveness import Aggressiveness

PUBLIC = {"bpf-reno": "headway_reno", "bpf-cubic": "headway_cubic"}
"""The names under which `headway interleave load` registers the algorithms, for every user of the machine."""
_PROGRAMS = {"bpf-reno": "reno", "bpf-cubic": "cubic"}
LEAST_KERNEL = (6, 4)
_PLACEHOLDER = b"@@headway_name@"
_NAME_BYTES = 15
_ONE = 1 << 16
_GONE = (errno.EBADF, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.ENOPROTOOPT, errno.EINVAL)
"""What the kernel says of a descriptor that is closed, or leads to something that is no TCP socket."""
_KEEP, _PAUSES, _SPREAD_PERCENT = 8, 32, 15
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_KERNEL_TYPES = Path("/sys/kernel/btf/vmlinux")
_CAPABILITIES = {"CAP_PERFMON": 38, "CAP_BPF": 39}
_CAP_SYS_ADMIN = 21
"""Stands for both."""


class Settings(ctypes.Structure):
    """struct settings of bpf/flow.bpf.h: what user space says of one connection, in 16.16."""

    _fields_ = (
        ("slope", ctypes.c_uint32),
        ("intercept", ctypes.c_uint32),
        ("most", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
    )


class _Ended(ctypes.Structure):
    _fields_ = (
        ("start_ns", ctypes.c_uint64),
        ("last_ns", ctypes.c_uint64),
        ("sent", ctypes.c_uint64),
        ("next_ns", ctypes.c_uint64),
    )


class Tracked(ctypes.Structure):
    """struct tracker of bpf/tracker.bpf.h."""

    _fields_ = (
        ("start_ns", ctypes.c_uint64),
        ("last_ns", ctypes.c_uint64),
        ("total", ctypes.c_uint64),
        ("before", ctypes.c_uint64),
        ("threshold_ns", ctypes.c_uint64),
        ("expected_twice", ctypes.c_uint64),
        ("pauses_ns", ctypes.c_uint64 * _PAUSES),
        ("ended", _Ended * _KEEP),
        ("pauses", ctypes.c_uint32),
        ("iterations", ctypes.c_uint32),
    )


class Flow(ctypes.Structure):
    """struct flow of bpf/flow.bpf.h: what the programs know of one connection."""

    _fields_ = (
        ("tracker", Tracked),
        ("weight", ctypes.c_uint32),
        ("remainder", ctypes.c_uint32),
        ("plain_end", ctypes.c_uint32),
        ("repairs", ctypes.c_uint32),
    )


def settings(aggressiveness: Aggressiveness, held: float | None = None) -> Settings:
    """A connection's settings in fixed point."""
    return Settings(
        slope=_fixed(aggressiveness.slope),
        intercept=_fixed(aggressiveness.intercept),
        most=_fixed(aggressiveness.most),
        held=0 if held is None else _fixed(held),
    )


def _fixed(value: float) -> int:
    return max(1, min(2**32 - 1, round(value * _ONE)))


class Registered:
    """One algorithm in the kernel, from now until `close` or the end of this process, however it ends."""

    def __init__(self, actuator: str, algorithm: str, defaults: Settings) -> None:
        """ActuatorError if it cannot be compiled, loaded or registered (the name is taken)."""
        code = bpf_build.compiled(bpf_build.SOURCES / f"{_PROGRAMS[actuator]}.bpf.c")
        if code.count(_PLACEHOLDER) != 1:
            raise ActuatorError("the compiled program has not exactly one place for its name")
        code = code.replace(_PLACEHOLDER, algorithm.encode().ljust(_NAME_BYTES, b"\0"))
        self.algorithm = algorithm
        self._object = libbpf.BpfObject(code, initial={".rodata": bytes(defaults)}, links=("headway_algorithm",))
        try:
            self._object.register("headway_algorithm")
        except BaseException:
            self._object.close()
            raise

    def set(self, connection: socket.socket, values: Settings) -> None:
        """Parameters of one connection."""
        libbpf.write_entry(self._object.map_descriptor("settings"), connection.fileno(), values)

    def flow(self, connection: socket.socket) -> Flow | None:
        """What the programs know of one connection; None if it does not use the algorithm."""
        flow = Flow()
        found = libbpf.read_entry(self._object.map_descriptor("flows"), connection.fileno(), flow)
        return flow if found else None

    def close(self) -> None:
        """Unregister it."""
        self._object.close()


class BpfActuator:
    """See `actuator.Actuator`.

    Without an algorithm of its own it uses the public one, whose parameters are the defaults and whose state belongs
    to another process: `state` then knows nothing (a weight that is not a number), and `push` is refused.
    """

    self_driven = True

    def __init__(self, name: str, aggressiveness: Aggressiveness, own: Registered | None) -> None:
        self.name = name
        self._aggressiveness = aggressiveness
        self._own = own
        self.algorithm = PUBLIC[name] if own is None else own.algorithm
        self._before: dict[socket.socket, bytes] = {}

    def adopt(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        if connection in self._before:
            return
        before = _algorithm(connection)
        _choose(connection, self.algorithm.encode())
        self._before[connection] = before
        if self._own is not None:
            self._own.set(connection, settings(self._aggressiveness))

    def release(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        before = self._before.pop(connection, None)
        if before is None or not self._uses(connection):
            return
        try:
            _choose(connection, before)
        except ActuatorError:
            if self._uses(connection):  # else it was closed just now
                raise

    def _uses(self, connection: socket.socket) -> bool:
        """Whether its descriptor still leads to a socket with this algorithm.

        Its owner may have closed it: then there is none, or it leads to something else that is not ours to change.
        """
        try:
            return _algorithm(connection) == self.algorithm.encode()
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise ActuatorError(f"a connection does not tell its algorithm: {error.strerror}") from None

    def push(self, connection: socket.socket, weight: float | None) -> None:
        """See `Actuator`."""
        if self._own is None:
            raise ActuatorError(f"{self.algorithm} belongs to another process and takes no weight from this one")
        if connection in self._before and connection.fileno() >= 0:
            self._own.set(connection, settings(self._aggressiveness, weight))

    def state(self, connection: socket.socket) -> FlowState:
        """See `Actuator`."""
        flow = self._own.flow(connection) if self._own is not None and connection.fileno() >= 0 else None
        return FlowState(weight=math.nan) if flow is None else flow_state(flow)

    def close(self) -> None:
        """See `Actuator`. A connection that cannot be released keeps the algorithm; the first reason is raised."""
        refused: ActuatorError | None = None
        for connection in list(self._before):
            try:
                self.release(connection)
            except ActuatorError as error:
                refused = refused or error
        if self._own is not None:
            self._own.close()
        if refused is not None:
            raise refused


def flow_state(flow: Flow) -> FlowState:
    """What the programs know of a flow, in our own units; the same figures as `iterations.IterationTracker`'s."""
    tracked = flow.tracker
    weight = flow.weight / _ONE
    if not tracked.expected_twice:
        return FlowState(weight=weight, iterations=tracked.iterations)
    expected = tracked.expected_twice / 2
    sent = tracked.total - tracked.before
    kept = [tracked.ended[i] for i in range(min(_KEEP, tracked.iterations))]
    return FlowState(
        weight=weight,
        ratio=min(1.0, sent / expected) if 100 * sent <= (100 + _SPREAD_PERCENT) * expected else None,
        iterations=tracked.iterations,
        iteration_bytes=expected,
        period_s=statistics.median(each.next_ns - each.start_ns for each in kept) / 1e9,
    )


def _algorithm(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def _choose(connection: socket.socket, algorithm: bytes) -> None:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
    except OSError as error:
        raise ActuatorError(f"a connection does not take {algorithm.decode()}: {error.strerror}") from None


def public(name: str) -> bool:
    """Whether another process has registered this actuator's algorithm for everybody."""
    try:
        return PUBLIC[name] in _ALLOWED.read_text().split()
    except OSError:
        return False


def register_public(name: str) -> Registered:
    """Register this actuator's algorithm for everybody, with the default parameters. ActuatorError if it is there."""
    return Registered(name, PUBLIC[name], settings(Aggressiveness()))


def requirements(name: str) -> dict[str, str | None]:
    """What loading an algorithm takes here: each requirement, and why it is not met (None: it is)."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    kernel = (int(found[1]), int(found[2])) if found else (0, 0)
    least = ".".join(map(str, LEAST_KERNEL))
    old = f"{platform.release()} is too old: {least} is the first with links for struct_ops"
    version = libbpf.version()
    return {
        f"Linux {least}": None if kernel >= LEAST_KERNEL else old,
        "kernel BTF": None if _KERNEL_TYPES.exists() else f"{_KERNEL_TYPES} is missing (CONFIG_DEBUG_INFO_BTF)",
        "rights": _missing_rights(),
        "libbpf": None if version is not None and version >= (1, 0) else f"{libbpf.LIBRARY} is missing (apt: libbpf1)",
        "clang": None if bpf_build.compiler() is not None else "no clang from 14 on (apt: clang-16)",
    }


def _missing_rights() -> str | None:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        mapped = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return "no /proc"
    if mapped != ["0", "0", "4294967295"]:
        return "inside a user namespace, where the kernel loads no program"
    have = int(lines["CapEff"], 16)
    if have >> _CAP_SYS_ADMIN & 1:
        return None
    missing = [capability for capability, bit in _CAPABILITIES.items() if not have >> bit & 1]
    return f"{', '.join(missing)} missing (root has them)" if missing else None


@functools.cache
def _trial(name: str) -> str | None:
    """Register it once, to be sure; None if that worked."""
    try:
        Registered(name, _own_name(name), settings(Aggressiveness())).close()
    except ActuatorError as error:
        return str(error)
    return None


def why_not(name: str, aggressiveness: Aggressiveness | None = None) -> str | None:
    """See `actuator.why_not`."""
    reasons = [reason for reason in requirements(name).values() if reason is not None]
    if not reasons:
        failed = _trial(name)
        reasons = [failed] if failed is not None else []
    if not reasons:
        return None
    if public(name):
        return None if aggressiveness in (None, Aggressiveness()) else _only_defaults(name)
    return f"{'; '.join(reasons)}; or let root run `headway interleave load {name}`"


def open_actuator(name: str, aggressiveness: Aggressiveness) -> BpfActuator:
    """See `actuator.open_actuator`.

    Raises:
        UsageError: only the public algorithm can be used, and the job wants other parameters than it has.
        ActuatorError: the kernel refused to load ours.
    """
    if any(requirements(name).values()) or _trial(name) is not None:
        if aggressiveness != Aggressiveness():
            raise UsageError(
                _only_defaults(name),
                where="interleave", hint="leave them out, choose streams or pacing, or run as root",
            )  # fmt: skip
        return BpfActuator(name, aggressiveness, None)
    return BpfActuator(name, aggressiveness, Registered(name, _own_name(name), settings(aggressiveness)))


def _only_defaults(name: str) -> str:
    return f"{PUBLIC[name]}, which another process registered, has the default slope, intercept and most"


def _own_name(name: str) -> str:
    """Unlike any other process's: two jobs never share an algorithm, nor its parameters."""
    return f"hw_{_PROGRAMS[name]}_{secrets.token_hex(3)}"
