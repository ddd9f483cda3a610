"""`headway doctor`: what this machine allows."""

from __future__ import annotations

import dataclasses
import json
import platform
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import headway
from headway.errors import UsageError
from headway.interleave import actuator, bpf
from headway.lab import build, kernel
from headway.lab.scenario import Scenario
from headway.transport import tcp_info

_USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
_CONTROLS = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table.

    Attributes:
        part: what it is about: `machine`, `lab`, `transport`, `interleave`.
        name: what `--require` calls it.
        ok: whether it is there.
        says: what was found, or what is missing and what to do.
    """

    part: str
    name: str
    ok: bool
    says: str


def doctor(
    require: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Exit with 1 unless this line says yes; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """What this machine allows: the lab, interleaving (and which actuator `auto` takes), flow statistics, torch."""
    checks = [check for part in _PARTS for check in part()]
    known = {check.name: check.ok for check in checks}
    wanted = list(require or ())
    for name in wanted:
        if name not in known:
            raise UsageError(f"{name!r} is no line of the table", where="--require", hint=f"one of {', '.join(known)}")
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        print("\n".join(_lines(checks)))
    if not all(known[name] for name in wanted):
        raise typer.Exit(1)


def _lines(checks: Sequence[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for before, check in zip((None, *checks), checks, strict=False):
        part = check.part if before is None or before.part != check.part else ""
        lines.append(f"{part:<11} {check.name:<{width}}  {'yes' if check.ok else 'no ':<3}  {check.says}".rstrip())
    return lines


def _machine() -> list[Check]:
    linux = platform.system() == "Linux"
    return [
        Check("machine", "headway", True, headway.__version__),
        Check("machine", "python", True, platform.python_version()),
        Check("machine", "linux", linux, f"{platform.release()}, {platform.machine()}" if linux else platform.system()),
        _distribution("torch", "for the backend: pip install 'headway[torch]'"),
        _distribution("mpi4py", "for comparisons with MPI: pip install 'headway[bench]'"),
    ]


def _distribution(name: str, hint: str) -> Check:
    try:
        return Check("machine", name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check("machine", name, False, f"not installed ({hint})")


def _lab() -> list[Check]:
    root = kernel.privileged()
    if root:
        rights = Check("lab", "lab", True, "as root")
    elif _number(_USER_NAMESPACES) > 0:
        says = "`lab run`, in a user namespace; `lab up` needs root" + _refused_control()
        rights = Check("lab", "lab", True, says)
    else:
        rights = Check("lab", "lab", False, "no CAP_NET_ADMIN and CAP_SYS_ADMIN, and no user namespaces")
    if root:
        netem = build.has_netem()
        says = (
            "delay and loss by the kernel" if netem else "not in this kernel: delay and loss by a relay in user space"
        )
    else:
        netem, says = False, "only root can tell; without it delay and loss come from a relay in user space"
    return [rights, Check("lab", "netem", netem, says)]


def _refused_control() -> str:
    """What to add where only root may choose the congestion control that scenarios have unless they say another."""
    default: str = Scenario.model_fields["congestion_control"].default
    try:
        allowed = (_CONTROLS / "tcp_allowed_congestion_control").read_text().split()
    except OSError:
        return ""
    if default in allowed:
        return ""
    return (
        f"; so do scenarios with {default}, their default, which is not in net.ipv4.tcp_allowed_congestion_control"
        f" ({' '.join(allowed)})"
    )


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _transport() -> list[Check]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        info = dataclasses.asdict(tcp_info.read(connection))
    missing = [name for name, value in info.items() if value is None]
    fields = f"{len(info) - len(missing)} of the {len(info)} fields that are used"
    return [
        Check("transport", "tcp-info", not missing, fields + (f"; not {', '.join(missing)}" if missing else "")),
        _controls(),
    ]


def _controls() -> Check:
    try:
        default, available, allowed = (
            (_CONTROLS / f"tcp_{which}congestion_control").read_text().split()
            for which in ("", "available_", "allowed_")
        )
    except OSError:
        return Check("transport", "congestion-control", False, "not told by this system")
    says = f"{', '.join(available)}; default {default[0]}; allowed to everybody: {', '.join(allowed)}"
    return Check("transport", "congestion-control", True, says)


def _interleave() -> list[Check]:
    needs = bpf.requirements(actuator.NAMES[0])
    found = [f"{name}: {'yes' if reason is None else reason}" for name, reason in needs.items()]
    checks = [Check("interleave", "bpf", not any(needs.values()), "; ".join(found))]
    for name in actuator.NAMES:
        reason = actuator.why_not(name)
        checks.append(Check("interleave", name, reason is None, _WORDS[name] if reason is None else reason))
    for name, foreign, whose in (("auto", False, "our own"), ("auto-gloo", True, "gloo's")):
        try:
            checks.append(Check("interleave", name, True, f"{actuator.choose(foreign=foreign)} on {whose} connections"))
        except UsageError as error:
            checks.append(Check("interleave", name, False, error.what))
    return checks


_WORDS = {
    "bpf-reno": "Reno in BPF, its growth scaled",
    "bpf-cubic": "CUBIC in BPF, its growth scaled",
    "streams": "as many connections as the weight says; our own transport only",
    "pacing": "a cap while contention is seen",
}
_PARTS: tuple[Callable[[], list[Check]], ...] = (_machine, _lab, _transport, _interleave)
