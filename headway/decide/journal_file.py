"""The journal as a file of JSON lines: written through at once, so that a killed job leaves what it knew."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.decide.journal import DroppedRecord, Record, parse_lines, to_line
from headway.errors import UsageError

MAX_BYTES = 256 * 2**20  # about a million records; a job of weeks must not fill a disk unasked
LOOK_EVERY_S = 1.0
"""Between two looks at whether the file was rotated, by the records' own times."""


class FileJournal:
    """Appends records to a file, one line and one system call each. Holds nothing back, so its memory is constant.

    `write` never raises: what cannot be written (disk full, file at its limit, closed) is counted in `dropped`, and
    the count goes into the file as one `dropped` record together with the first record that can be written again, at
    the latest by `close`. No clock is read; a `dropped` record takes the time of the record that follows it. Any thread
    may write: lines stay whole because each is one append; only the count could lose some if two threads fail at one
    moment.

    The file may be rotated: about once in a second of the records' times, and where a record does not fit, `write`
    looks whether the path leads to another file, and then opens that one, or whether the file became shorter.

    Args:
        path: the file; created with its folders, else appended to.
        max_bytes: size of the file beyond which records are dropped, until it is rotated.
        on_trouble: called with one line when records begin to be dropped, when they are written again, and when a
            rotated file's successor cannot be opened; must not raise.

    Raises:
        UsageError: the file cannot be opened for appending.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_BYTES,
        on_trouble: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path = Path(path)
        self.dropped = 0
        self._reported = 0
        self._why = ""
        self._last_t_s = 0.0
        self._last_group = "default"
        self._max_bytes = max_bytes
        self._on_trouble = on_trouble
        self._looked_s = 0.0
        self._full = self._cannot_follow = False
        self._stream: io.FileIO | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = io.FileIO(self.path, "a")
            self._size_bytes = self._end_whole_line(self._stream)
        except OSError as error:
            self.close()
            raise UsageError(
                f"cannot write the journal: {error.strerror}", where=str(path), hint="set HEADWAY_JOURNAL to a file"
            ) from None

    def write(self, record: Record) -> None:
        """Append one record, or count it as dropped."""
        self._last_t_s, self._last_group = record.t_s, record.group
        if abs(record.t_s - self._looked_s) >= LOOK_EVERY_S:
            self.look()
        missing, dropped = self.dropped - self._reported, self.dropped
        why = self._append([self._missing(missing), record] if missing else [record])
        if why:
            self.dropped += 1
            self._why = why
            if not missing and self._stream is not None:
                self._on_trouble(f"the journal {self.path} drops records: {why}")
        elif missing:
            self._reported = dropped
            self._on_trouble(f"the journal {self.path} is written again; {missing} records are missing")

    def look(self) -> None:
        """Follow a rotation now: open the file that is now at the path, or note how long the file is. Never raises."""
        self._looked_s = self._last_t_s
        stream = self._stream
        if stream is None:
            return
        try:
            ours = os.fstat(stream.fileno())
            if not stat.S_ISREG(ours.st_mode):
                return
            if not self._is_at_path(ours):
                self._open_next(stream)
            elif ours.st_size != self._size_bytes:  # shorter: copied and truncated; longer: others append too
                self._full = self._full and ours.st_size > self._size_bytes
                self._size_bytes = ours.st_size if ours.st_size > self._size_bytes else self._end_whole_line(stream)
            if self._cannot_follow:
                self._cannot_follow = False
                self._on_trouble(f"the journal {self.path} was opened again")
        except OSError as error:
            if not self._cannot_follow:
                self._cannot_follow = True
                self._on_trouble(
                    f"the journal {self.path} was rotated and cannot be opened again ({error.strerror}): "
                    f"goes on in the old file"
                )

    def close(self) -> None:
        """Write down what was dropped, close the file. Idempotent; later writes are dropped."""
        if self._stream is None:
            return
        missing = self.dropped - self._reported
        if missing and not self._append([self._missing(missing)], last=True):
            self._reported += missing
        try:
            self._stream.close()
        except OSError:  # the data is written already; a late complaint of the file system changes nothing
            self._why = "closing failed"
        self._stream = None

    def _is_at_path(self, ours: os.stat_result) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(ours, there)

    def _open_next(self, old: io.FileIO) -> None:
        """OSError: it cannot be opened; then the old file stays."""
        stream = io.FileIO(self.path, "a")
        try:
            size_bytes = self._end_whole_line(stream)
        except OSError:
            stream.close()
            raise
        self._stream, self._size_bytes, self._full = stream, size_bytes, False
        old.close()

    def _missing(self, count: int) -> DroppedRecord:
        return DroppedRecord(t_s=self._last_t_s, group=self._last_group, count=count, what=self._why)

    def _append(self, records: list[Record], *, last: bool = False) -> str:
        """All of `records` by one call, or none; returns what went wrong, or an empty string.

        At the file's limit nothing more is taken, also what is small, but the count of what is missing by the `last`
        call: else the last bytes would be filled by such counts.
        """
        if self._stream is None:
            return "the journal was closed"
        try:
            lines = b"".join(to_line(record).encode() + b"\n" for record in records)
            limit_bytes = self._max_bytes + 4096 if last else self._max_bytes
            if not last and not self._full and self._size_bytes + len(lines) > limit_bytes:
                self.look()
            self._full = self._full or self._size_bytes + len(lines) > limit_bytes
            if self._full and not (last and self._size_bytes + len(lines) <= limit_bytes):
                return f"the file reached its limit of {self._max_bytes} bytes"
            return self._append_lines(self._stream, lines)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def _append_lines(self, stream: io.FileIO, lines: bytes) -> str:
        """Write `lines` whole or not at all; returns what went wrong, or an empty string."""
        written = stream.write(lines)
        if written == len(lines):
            self._size_bytes += written
            return ""
        # A full disk took a part, and half a line would spoil the file. The file itself says where that part begins:
        # others may have appended or truncated since we looked.
        self._size_bytes = max(0, os.fstat(stream.fileno()).st_size - written)
        os.ftruncate(stream.fileno(), self._size_bytes)
        return "the disk took only part of a line"

    @staticmethod
    def _end_whole_line(stream: io.FileIO) -> int:
        """Size of the file, after dropping a record that a killed writer left unfinished at its end."""
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes == 0 or not os.path.isfile(stream.name):
            return size_bytes
        with open(stream.name, "rb") as existing:
            existing.seek(-1, os.SEEK_END)
            if existing.read(1) == b"\n":
                return size_bytes
            existing.seek(0)
            content = existing.read()
        whole_bytes = content.rfind(b"\n") + 1
        if content[whole_bytes:].startswith(b'{"v":') and not content.endswith(b"}"):
            os.ftruncate(stream.fileno(), whole_bytes)
            return whole_bytes
        return size_bytes + stream.write(b"\n")


@dataclass(frozen=True)
class JournalFile:
    """What a journal file holds.

    Attributes:
        path: where it was read from.
        records: its records, in order.
        cut_off: whether the last line was unfinished and is left out (the job was killed, or still writes).
    """

    path: Path
    records: tuple[Record, ...]
    cut_off: bool


def read_journal(path: str | Path) -> JournalFile:
    """Read a whole journal. UsageError names file and line where it cannot be read, or holds no record."""
    where = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the journal: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", where=where, hint="a journal is a file of JSON lines") from None
    lines = text.split("\n")  # splitlines would also split at separators inside JSON strings
    cut_off = bool(lines[-1]) and not lines[-1].endswith("}")
    records = tuple(parse_lines(lines[:-1] if cut_off else lines, where=where))
    if not records:
        raise UsageError("holds no record", where=where, hint="was HEADWAY_JOURNAL set for this run?")
    return JournalFile(path=Path(path), records=records, cut_off=cut_off)
