"""Replicas from a YAML or JSON file that is read again whenever it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from headway.errors import UsageError
from headway.serving.gateway.discovery.options import FileOptions, ReplicaOptions, check_distinct
from headway.serving.gateway.discovery.source import Replicas

_LOG = logging.getLogger(__name__)
MOST_BYTES = 16 << 20  # a list of replicas is some kilobytes: more is another file


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: tuple[ReplicaOptions, ...]

    @model_validator(mode="after")
    def _distinct(self) -> _List:
        check_distinct(self.replicas)
        return self


def read_replicas(path: Path) -> Replicas:
    """The replicas in a file: a list of addresses or of mappings as `ReplicaOptions`, alone or under `replicas`.

    Raises:
        UsageError: it cannot be read, or is no such list; names file and field.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the replicas: {error.strerror}", where=where) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"more than {MOST_BYTES} bytes: is this the list of replicas?", where=where)
    try:
        found = yaml.safe_load(content.decode())  # JSON is YAML
    except UnicodeDecodeError:
        raise UsageError("is no text", where=where) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 1}" if mark is not None else where
        raise UsageError(f"not YAML: {getattr(error, 'problem', None) or 'cannot be parsed'}", where=line) from None
    entries = found.get("replicas") if isinstance(found, dict) and set(found) == {"replicas"} else found
    if not isinstance(entries, list):
        raise UsageError("holds no list of replicas", where=where, hint="write - url: http://host:8000 for each")
    try:
        listed = _List.model_validate({"replicas": [{"url": e} if isinstance(e, str) else e for e in entries]})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "replicas"
        raise UsageError(f"{field}: {first['msg'].removeprefix('Value error, ')}", where=where) from None
    return tuple(replica.spec() for replica in listed.replicas)


class FileSource:
    """Looks at the file every `poll_s`, and reads it when its time, size or inode has changed.

    Polling, since a file on a network file system or in a mounted ConfigMap (which is swapped through a link) gives no
    dependable notice. A file that is bad or gone while the gateway runs (it may be half written) changes nothing: the
    last good set stays, and that is said once for each content.

    Raises:
        UsageError: in the constructor: the file is bad from the start.
    """

    def __init__(self, options: FileOptions) -> None:
        self.name = f"file {options.path}"
        self._path = options.path
        self._poll_s = options.poll_s
        self._stamp = self._look()
        self._replicas = read_replicas(self._path)

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """As `Source.watch`."""
        yield self._replicas
        said = ""
        while True:
            await asyncio.sleep(self._poll_s)
            stamp = await asyncio.to_thread(self._look)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                replicas = await asyncio.to_thread(read_replicas, self._path)
            except UsageError as error:
                if str(error) != said:
                    said = str(error)
                    _LOG.warning("%s; the %d replicas from before stay", error, len(self._replicas))
                continue
            if said:
                _LOG.warning("%s can be read again: %d replicas", self._path, len(replicas))
                said = ""
            if replicas != self._replicas:
                self._replicas = replicas
                yield replicas

    def _look(self) -> tuple[int, int, int, int] | None:
        """What changes with the content; None where there is no file."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
