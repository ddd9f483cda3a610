"""Starting the ranks: torch processes, Open MPI, MPICH; each rank on its host of a lab, or all on loopback.

What differs between hosts sits in a `Site`. In a lab every rank runs in its host's network namespace under a host name
of its own, so that the MPI libraries take the hosts for different machines, as they are, and use TCP between them.

mpi4py's wheel holds one module per MPI ABI and picks by `MPI4PY_MPIABI`. Open MPI's library has the name that it looks
for (libmpi.so.40); MPICH's is libmpi.so.12 upstream but libmpich.so.12 in Debian, so a link of the upstream name is put
into a folder of `LD_LIBRARY_PATH`.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from headway.errors import HeadwayError, UsageError

APT_PACKAGES = {"openmpi": "openmpi-bin", "mpich": "mpich"}
_PROGRAMS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}
_TAIL_LINES = 12


class Site(Protocol):
    """Where the ranks run, one per host."""

    @property
    def ranks(self) -> int:
        """World size."""
        ...

    @property
    def interface(self) -> str:
        """Network interface of every rank."""
        ...

    def command_prefix(self, rank: int) -> Sequence[str]:
        """What to put before a command so that it runs on the host of `rank`, under a host name of its own.

        Empty when all ranks run here.
        """
        ...

    def address(self, rank: int) -> str:
        """IP address of the host of `rank`."""
        ...


@dataclass(frozen=True)
class Loopback:
    """All ranks here, on loopback."""

    ranks: int
    interface: str = "lo"

    def command_prefix(self, rank: int) -> Sequence[str]:
        """Nothing: ranks run here."""
        return ()

    def address(self, rank: int) -> str:
        """Loopback."""
        return "127.0.0.1"


def family_of(backend: str) -> str:
    """`openmpi` and `mpich` are families of processes of their own; every torch backend lives in one, `torch`."""
    return backend if backend in _PROGRAMS else "torch"


def check_installed(family: str) -> None:
    """UsageError with the Debian package's name where an MPI peer is missing."""
    program = _PROGRAMS.get(family)
    if program is None:
        return
    if shutil.which(program) is None:
        raise UsageError(f"{family} is not installed", hint=f"apt install {APT_PACKAGES[family]}")
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError(f"{family} needs mpi4py", hint="pip install 'headway[bench]'")


class Family:
    """The running processes of one family.

    Args:
        name: `torch`, `openmpi` or `mpich`.
        site: where the ranks run.
        socket_path: the coordinator's socket.
        folder: for outputs and scripts; the caller removes it.
        journals: folder for headway's journals; empty for none.
        timeout_s: limit of each operation.
    """

    def __init__(
        self, name: str, site: Site, *, socket_path: Path, folder: Path, journals: str = "", timeout_s: float
    ) -> None:
        self.name = name
        self._output: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            if name == "torch":
                self._start_torch(site, socket_path, journals, timeout_s)
            else:
                check_installed(name)
                command, environment = mpi_command(name, site, socket_path=socket_path, folder=folder)
                self._spawn(command, environment)
        except BaseException:
            self.close()
            raise

    def _start_torch(self, site: Site, socket_path: Path, journals: str, timeout_s: float) -> None:
        port = free_port()
        for rank in range(site.ranks):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(site.ranks),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": site.address(0),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": site.interface,
                "HEADWAY_INTERFACE": site.interface,
                "OMP_NUM_THREADS": "1",
            }
            worker = [sys.executable, "-m", "headway.bench.torch_worker", str(socket_path), journals, str(timeout_s)]
            self._spawn([*site.command_prefix(rank), *worker], environment)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._processes.append(
            subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def trouble(self) -> str:
        """Why the family is no longer whole, with the end of its output; "" while all its processes live."""
        ended = [process for process in self._processes if process.poll() is not None]
        if not ended:
            return ""
        return f"a process ended with code {ended[0].returncode}: {self.tail()}"

    def tail(self) -> str:
        """The last lines of what the processes printed, on one line."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip()) or "no output"

    def close(self, *, grace_s: float = 10.0) -> None:
        """End the processes: they leave when the coordinator hangs up; what stays is terminated, then killed.

        Idempotent.
        """
        if self._output.closed:
            return
        deadline_s = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                _end(process)
        self._processes.clear()
        self._output.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(3)
            return
        except subprocess.TimeoutExpired:
            continue
    raise HeadwayError(f"process {process.pid} does not end")


def free_port() -> int:
    """A TCP port that nobody listens on here now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def mpi_command(name: str, site: Site, *, socket_path: Path, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    """Command line and extra environment that start an MPI family on `site`.

    In a lab the launcher itself runs on the first host, and its agent enters the others' namespaces where it would
    otherwise use ssh. On loopback both libraries may use shared memory: that is what one gets from a plain mpirun.
    """
    in_lab = bool(site.command_prefix(0))
    program = shutil.which(_PROGRAMS[name]) or _PROGRAMS[name]
    worker = [sys.executable, "-m", "headway.bench.mpi_worker", str(socket_path), name]
    agent = str(write_agent(site, folder)) if in_lab else ""
    hosts = ",".join(site.address(rank) + (":1" if name == "openmpi" else "") for rank in range(site.ranks))
    environment = {"MPI4PY_MPIABI": name, "OMP_NUM_THREADS": "1"}
    count = ["-n", str(site.ranks)]
    if name == "openmpi":
        # Idle ranks give up the core: the hosts of a lab share the machine's few.
        options = ["--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1"]
        if in_lab:
            options += [
                "--host",
                hosts,
                "--mca",
                "plm_rsh_agent",
                agent,
                "--mca",
                "btl",
                "tcp,self",
                "--mca",
                "pml",
                "ob1",
            ]
            for component in ("oob_tcp_if_include", "btl_tcp_if_include"):
                options += ["--mca", component, site.interface]
        else:
            options += ["--oversubscribe"]
        return _on_first_host(site, [program, *options, *count, *worker], in_lab), environment
    environment["LD_LIBRARY_PATH"] = str(mpich_library_folder(folder))
    options = []
    if in_lab:
        options = ["-launcher", "ssh", "-launcher-exec", agent, "-hosts", hosts, "-iface", site.interface]
        environment |= {
            "MPIR_CVAR_NOLOCAL": "1",
            "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": site.interface,
        }
    return _on_first_host(site, [program, *options, *count, *worker], in_lab), environment


def _on_first_host(site: Site, command: Sequence[str], in_lab: bool) -> Sequence[str]:
    return [*site.command_prefix(0), *command] if in_lab else command


def write_agent(site: Site, folder: Path) -> Path:
    """A stand-in for ssh: `agent [options] ADDRESS COMMAND...` runs the command on that host of the lab."""
    cases = []
    for rank in range(site.ranks):
        address = site.address(rank)
        cases.append(f'  {address}) exec {shlex.join(site.command_prefix(rank))} sh -c "$*" ;;')
    path = folder / "agent"
    path.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'host="$1"; shift\n'
        'case "$host" in\n' + "\n".join(cases) + "\n"
        '  *) echo "no host $host in this lab" >&2; exit 2 ;;\nesac\n'
    )
    path.chmod(0o755)
    return path


def mpich_library_folder(folder: Path) -> Path:
    """A folder in which MPICH's library has the name that mpi4py asks for."""
    library = ctypes.util.find_library("mpich")
    if library is None:
        raise UsageError("MPICH's library is not installed", hint=f"apt install {APT_PACKAGES['mpich']}")
    found = _library_path(library)
    where = folder / "mpich"
    where.mkdir(exist_ok=True)
    link = where / "libmpi.so.12"
    if not link.exists():
        link.symlink_to(found)
    return where


def _library_path(name: str) -> Path:
    ctypes.CDLL(name)
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(" ", 1)[-1]
        if "/" in path and Path(path).name.startswith(name):
            return Path(path)
    raise HeadwayError(f"cannot find the file of {name}")
