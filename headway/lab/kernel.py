"""Namespaces, and what this kernel and this user can do. Linux only.

A lab's namespaces are files in /run/netns, where `ip netns` finds them too, or without root in the user's own
runtime directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headway.errors import HeadwayError, UsageError

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 1 << 20
_MNT_DETACH = 2
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21

_TCP = Path("/proc/sys/net/ipv4")
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(HeadwayError):
    """The lab could not be built, or something in it failed."""


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise LabError(f"{what}: {os.strerror(number)}")


def privileged() -> bool:
    """Whether this process may make namespaces and shape links."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            have = int(line.split()[1], 16)
            return bool(have >> _CAP_NET_ADMIN & 1 and have >> _CAP_SYS_ADMIN & 1)
    return False


def runtime_directory() -> Path:
    """Where labs leave what is needed to remove them: /run/headway, or for others their own runtime directory."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/headway")
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "headway"
    inner, outer, _ = Path("/proc/self/uid_map").read_text().split()[:3]  # the same user inside a user namespace
    return Path(f"/tmp/headway-{os.getuid() - int(inner) + int(outer)}")


def namespace_directory() -> Path:
    """Where namespaces are kept by name."""
    runtime = runtime_directory()
    return Path("/run/netns") if runtime == Path("/run/headway") else runtime / "netns"


def leave_for_new_namespace() -> None:
    """This thread moves into a new network namespace, for good: call it in a thread that then ends."""
    _check(_libc.unshare(_CLONE_NEWNET), "cannot make a network namespace")


def create_namespace(name: str) -> None:
    """Make a network namespace that lives until `delete_namespace`."""
    directory = namespace_directory()
    _share(directory)
    path = directory / name
    path.touch(mode=0o444, exist_ok=False)
    failed: list[LabError] = []

    def create() -> None:  # in a thread of its own: a thread leaves its namespace for good without touching others
        try:
            leave_for_new_namespace()
            source = f"/proc/self/task/{threading.get_native_id()}/ns/net".encode()
            _check(_libc.mount(source, str(path).encode(), b"none", _MS_BIND, None), f"cannot keep {path}")
        except LabError as error:
            failed.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    if failed:
        path.unlink()
        raise failed[0]


def _share(directory: Path) -> None:
    """Make the directory a shared mount, so that removing a namespace removes it from every process's view."""
    directory.mkdir(parents=True, exist_ok=True)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    if any(line.split()[4] == str(directory) for line in mounts):
        return
    name = str(directory).encode()
    _check(_libc.mount(name, name, b"none", _MS_BIND | _MS_REC, None), f"cannot mount {directory}")
    _check(_libc.mount(b"", name, b"none", _MS_SHARED | _MS_REC, None), f"cannot share {directory}")


def namespaces(prefix: str) -> list[str]:
    """Names of the namespaces that begin with `prefix`."""
    directory = namespace_directory()
    return sorted(p.name for p in directory.iterdir() if p.name.startswith(prefix)) if directory.is_dir() else []


def delete_namespace(name: str) -> None:
    """Forget a namespace; the kernel frees it with everything in it when the last process has left."""
    path = namespace_directory() / name
    _libc.umount2(str(path).encode(), _MNT_DETACH)  # a file left by a build that was cut short is no mount
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise LabError(f"cannot remove {path}: {os.strerror(error.errno or 0)}") from None


@contextlib.contextmanager
def allowed_congestion_controls(names: set[str]) -> Iterator[None]:
    """While this holds, namespaces may make these TCP congestion controls their default.

    A namespace may only choose among those that the machine allows to everybody, a list that root can extend. It is
    put back afterwards (a choice that was made stays), and labs that are built at the same time wait for each other.
    UsageError when the kernel has no such congestion control, or it is not allowed and we are not root.
    """
    available = (_TCP / "tcp_available_congestion_control").read_text().split()
    if missing := sorted(names - set(available)):
        raise UsageError(
            f"this kernel has no congestion control {missing[0]!r}",
            where="congestion_control",
            hint=f"one of {', '.join(available)}",
        )
    file = _TCP / "tcp_allowed_congestion_control"
    directory = runtime_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "congestion-control.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = file.read_text().split()
        if not names - set(before):
            yield
            return
        added = names - set(before)
        try:
            _rewrite(file, lambda allowed: [*allowed, *sorted(added)])
        except OSError:
            name = min(names - set(before))
            raise UsageError(
                f"congestion control {name!r} may be chosen by root only",
                where="congestion_control",
                hint=f"one of {', '.join(before)}, or as root: sysctl net.ipv4.{file.name}='{' '.join(before)} {name}'",
            ) from None
        try:
            yield
        finally:
            # Only what we added is taken away: others may have come (and be allowed), or gone, in the meantime.
            _rewrite(file, lambda allowed: [name for name in allowed if name not in added])


def _rewrite(file: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change a list of congestion controls. The kernel refuses a name that has gone since it was read: read again."""
    for last in (False, False, False, True):
        try:
            file.write_text(" ".join(change(file.read_text().split())))
            return
        except FileNotFoundError:
            if last:
                raise


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread works in namespace `name`: sockets made here belong to it for ever."""
    before = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(namespace_directory() / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(there, _CLONE_NEWNET), f"cannot enter namespace {name}")
        finally:
            os.close(there)
        try:
            yield
        finally:
            _check(_libc.setns(before, _CLONE_NEWNET), "cannot return to the namespace we came from")
    finally:
        os.close(before)


def processes_in(names: Iterable[str]) -> list[int]:
    """Process ids of all that run in one of the namespaces, this process aside."""
    inodes = set()
    namespace_device = Path("/proc/self/ns/net").stat().st_dev
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found_there = (namespace_directory() / name).stat()
            if found_there.st_dev == namespace_device:  # else a file that a build cut short has left
                inodes.add(f"net:[{found_there.st_ino}]")
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to look at
            if os.readlink(f"/proc/{entry}/ns/net") in inodes:
                found.append(int(entry))
    return found


def kill_in(names: list[str], *, limit_s: float = 5.0) -> int:
    """Kill every process in the namespaces; returns how many there were. LabError when some outlive the limit."""
    deadline = time.monotonic() + limit_s
    seen: set[int] = set()
    while remaining := processes_in(names):
        if time.monotonic() > deadline:
            raise LabError(f"processes {remaining} do not end; they hold the lab's namespaces")
        for pid in remaining:
            seen.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(seen)


def start_time(pid: int) -> int | None:
    """When a process started (clock ticks since boot), which tells it from a later one with its id; None if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
