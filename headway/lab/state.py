"""What each lab leaves on disk, so that the next `lab down` can remove it whatever happened to its owner."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from headway.errors import UsageError
from headway.lab import kernel

_ID = re.compile(r"^[0-9a-f]{6}$")


class LabRecord(BaseModel):
    """One lab. `detached`: made by `lab up`, and meant to outlive its owner."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    scenario: str
    owner_pid: int
    owner_start: int | None
    detached: bool
    created_s: float
    impairments: str
    congestion_control: str
    hosts: dict[str, str]

    @property
    def prefix(self) -> str:
        """What all its namespaces' names begin with."""
        return f"hw{self.id}-"

    @property
    def directory(self) -> Path:
        """Its files."""
        return kernel.runtime_directory() / f"lab-{self.id}"

    @property
    def owned(self) -> bool:
        """Whether the process that made it still runs."""
        return self.owner_start is not None and kernel.start_time(self.owner_pid) == self.owner_start


def new_record(
    *, scenario: str, detached: bool, impairments: str, congestion_control: str, hosts: Mapping[str, str]
) -> LabRecord:
    """Write the record of a lab that is about to be built. `hosts` are names and addresses."""
    record = LabRecord(
        id=secrets.token_hex(3), scenario=scenario, owner_pid=os.getpid(), owner_start=kernel.start_time(os.getpid()),
        detached=detached, created_s=time.time(), impairments=impairments,
        congestion_control=congestion_control, hosts=dict(hosts),
    )  # fmt: skip
    record.directory.mkdir(parents=True, mode=0o755)
    partial = record.directory / "lab.json.new"
    partial.write_text(record.model_dump_json())
    partial.rename(record.directory / "lab.json")
    return record


def labs() -> list[LabRecord]:
    """Every lab on this machine, oldest first. One whose record cannot be read counts as abandoned."""
    found = []
    for directory in sorted(kernel.runtime_directory().glob("lab-*")):
        lab = directory.name.removeprefix("lab-")
        if not _ID.match(lab):
            continue
        try:
            found.append(LabRecord.model_validate_json((directory / "lab.json").read_bytes()))
        except FileNotFoundError:
            if time.time() - directory.stat().st_mtime > 10:  # else it is just being written
                found.append(_unreadable(lab))
        except ValidationError:
            found.append(_unreadable(lab))
    return sorted(found, key=lambda record: record.created_s)


def _unreadable(lab: str) -> LabRecord:
    return LabRecord(
        id=lab, scenario="?", owner_pid=0, owner_start=None, detached=False, created_s=0.0, impairments="?",
        congestion_control="?", hosts={},
    )  # fmt: skip


def find(lab: str) -> LabRecord:
    """The lab with that id. UsageError when there is none."""
    known = labs()
    for record in known:
        if record.id == lab or record.prefix.rstrip("-") == lab:
            return record
    ids = ", ".join(record.id for record in known) or "none is up"
    raise UsageError(f"there is no lab {lab!r}", hint=f"known: {ids}")


def remove(record: LabRecord) -> int:
    """Kill what runs in a lab and remove its namespaces and files; returns the number of processes killed."""
    names = kernel.namespaces(record.prefix)
    killed = kernel.kill_in(names)
    for name in names:
        kernel.delete_namespace(name)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(record.directory)
    return killed
