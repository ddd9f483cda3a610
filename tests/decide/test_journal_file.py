"""The journal's file: whole lines, never an exception into the operation, and an honest count of what is missing."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from headway.decide.journal import DroppedRecord, EventRecord, OperationRecord, Record, to_line
from headway.decide.journal_file import FileJournal, read_journal
from headway.errors import UsageError


def operation(number: int) -> OperationRecord:
    return OperationRecord(
        t_s=100.0 + number,
        rank=0,
        operation=number,
        collective="all_reduce",
        size_bytes=1 << 20,
        plan="ring",
        duration_s=0.5,
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    records: list[Record] = [
        operation(0),
        EventRecord(t_s=101.0, event="udp", phase="begin", what="line\u2028separator", links=["downlink of host 3"]),
    ]
    journal = FileJournal(path)
    for record in records:
        journal.write(record)
    assert list(read_journal(path).records) == records, "a record is in the file as soon as write returns"
    journal.close()
    journal.close()
    assert journal.dropped == 0


def test_a_second_job_appends(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for number in range(2):
        journal = FileJournal(path)
        journal.write(operation(number))
        journal.close()
    assert list(read_journal(path).records) == [operation(0), operation(1)]


def test_a_line_cut_off_by_a_kill_is_left_out_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(to_line(operation(0)) + "\n" + to_line(operation(1))[:30])
    read = read_journal(path)
    assert read.cut_off
    assert list(read.records) == [operation(0)]
    journal = FileJournal(path)
    journal.write(operation(2))
    journal.close()
    assert list(read_journal(path).records) == [operation(0), operation(2)]


def test_a_foreign_last_line_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    journal = FileJournal(path)
    journal.write(operation(0))
    journal.close()
    assert path.read_text() == "my notes\n" + to_line(operation(0)) + "\n"
    with pytest.raises(UsageError, match=r"notes\.txt:1: "):
        read_journal(path)


def test_at_its_limit_it_counts_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line_bytes = len(to_line(operation(0))) + 1
    journal = FileJournal(path, max_bytes=2 * line_bytes + 5)
    for number in range(6):
        journal.write(operation(number))
    assert journal.dropped == 4
    journal.close()
    *kept, last = read_journal(path).records
    assert kept == [operation(0), operation(1)]
    assert isinstance(last, DroppedRecord)
    assert (last.count, last.t_s) == (4, 105.0)
    assert "limit" in last.what


def test_a_full_disk_drops_counts_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    journal.write(operation(0))
    stream = journal._stream
    assert stream is not None

    class FullDisk(io.FileIO):
        """Takes `room` bytes, then none."""

        room = 10

        def write(self, line: bytes, /) -> int:  # type: ignore[override]
            if not self.room:
                raise OSError(28, "No space left on device")
            taken = super().write(line[: self.room])
            self.room -= taken
            return taken

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_stream", FullDisk(path, "a"))
        journal.write(operation(1))
        journal.write(operation(2))
        full = journal._stream
        assert full is not None
        full.close()
    journal.write(operation(3))
    journal.close()
    first, dropped, last = read_journal(path).records
    assert (first, last) == (operation(0), operation(3))
    assert isinstance(dropped, DroppedRecord)
    assert dropped.count == journal.dropped == 2
    assert "No space left" in dropped.what


def test_writing_after_close_is_counted(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    journal.close()
    journal.write(operation(0))
    assert journal.dropped == 1


@pytest.mark.parametrize("make", ["folder", "under a file"])
def test_a_bad_path_is_the_users_mistake(tmp_path: Path, make: str) -> None:
    path = tmp_path
    if make == "under a file":
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "journal.jsonl"
    with pytest.raises(UsageError, match="cannot write the journal"):
        FileJournal(path)


def test_reading_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with pytest.raises(UsageError, match="cannot read the journal"):
        read_journal(path)
    path.write_text("\n\n")
    with pytest.raises(UsageError, match="holds no record"):
        read_journal(path)
    path.write_bytes(b"\xff\xfe\x00" + os.urandom(4))
    with pytest.raises(UsageError, match="is not text"):
        read_journal(path)
    path.write_text(to_line(operation(0)) + '\n{"v":2,"kind":"operation"}\n')
    with pytest.raises(UsageError, match=r"journal\.jsonl:2: "):
        read_journal(path)
