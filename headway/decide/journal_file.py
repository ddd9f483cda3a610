"""The journal as a file of JSON lines: written through at once, so that a killed job leaves what it knew."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from headway.decide.journal import DroppedRecord, Record, parse_lines, to_line
from headway.errors import UsageError

MAX_BYTES = 256 * 2**20  # about a million records; a job of weeks must not fill a disk unasked


class FileJournal:
    """Appends records to a file, one line and one system call each. Holds nothing back, so its memory is constant.

    `write` never raises: what cannot be written (disk full, file at its limit, closed) is counted in `dropped`, and
    the count goes into the file as a `dropped` record as soon as a write succeeds again, at the latest by `close`.
    No clock is read; a `dropped` record takes the time of the record that follows it. Any thread may write: lines
    stay whole because each is one append; only the count could lose some if two threads fail at one moment.

    Args:
        path: the file; created with its folders, else appended to.
        max_bytes: size beyond which records are dropped.

    Raises:
        UsageError: the file cannot be opened for appending.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(path)
        self.dropped = 0
        self._reported = 0
        self._why = ""
        self._last_t_s = 0.0
        self._last_group = "default"
        self._max_bytes = max_bytes
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
        if self.dropped > self._reported and not self._report():
            self._drop(self._why)
            return
        self._append(record, limit_bytes=self._max_bytes)

    def close(self) -> None:
        """Write down what was dropped, close the file. Idempotent; later writes are dropped."""
        if self._stream is None:
            return
        if self.dropped > self._reported:
            self._report(last=True)
        try:
            self._stream.close()
        except OSError:  # the data is written already; a late complaint of the file system changes nothing
            self._why = "closing failed"
        self._stream = None

    def _report(self, *, last: bool = False) -> bool:
        """The count of dropped records as a line; at the file's limit only once, by the last call."""
        missing, dropped = self.dropped - self._reported, self.dropped
        record = DroppedRecord(t_s=self._last_t_s, group=self._last_group, count=missing, what=self._why)
        limit_bytes = self._max_bytes + 4096 if last else self._max_bytes
        if not self._append(record, limit_bytes=limit_bytes, count=False):
            return False
        self._reported = dropped
        return True

    def _append(self, record: Record, *, limit_bytes: int, count: bool = True) -> bool:
        why = ""
        if self._stream is None:
            why = "the journal was closed"
        else:
            try:
                line = to_line(record).encode() + b"\n"
                if self._size_bytes + len(line) > limit_bytes:
                    why = f"the file reached its limit of {self._max_bytes} bytes"
                else:
                    why = self._append_line(self._stream, line)
            except (OSError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
        if why:
            self._why = why
            if count:
                self._drop(why)
        return not why

    def _append_line(self, stream: io.FileIO, line: bytes) -> str:
        """Write `line` whole or not at all; returns what went wrong, or an empty string."""
        written = stream.write(line)
        if written == len(line):
            self._size_bytes += written
            return ""
        os.ftruncate(stream.fileno(), self._size_bytes)  # a full disk took a part: half a line would spoil the file
        return "the disk took only part of a line"

    def _drop(self, why: str) -> None:
        self.dropped += 1
        self._why = why

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
