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


def test_a_renamed_file_is_left_and_a_new_one_begun(tmp_path: Path) -> None:
    path, old = tmp_path / "journal.jsonl", tmp_path / "journal.jsonl.1"
    journal = FileJournal(path)
    journal.write(operation(0))
    path.rename(old)
    journal.write(operation(2))  # two seconds later by its own time
    path.rename(tmp_path / "journal.jsonl.2")
    journal.look()  # as at a signal, without waiting for a record
    assert path.exists()
    journal.write(operation(2))
    journal.close()
    assert list(read_journal(old).records) == [operation(0)]
    for each in (tmp_path / "journal.jsonl.2", path):
        assert list(read_journal(each).records) == [operation(2)]
    assert journal.dropped == 0


def test_the_file_is_not_looked_at_for_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    looks: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(journal, "look", lambda: looks.append(1) or FileJournal.look(journal))  # type: ignore[func-returns-value]
        for number in range(40):
            journal.write(operation(0).model_copy(update={"t_s": 100 + 0.1 * number}))
    journal.close()
    assert 3 <= len(looks) <= 5


def test_a_copied_and_truncated_file_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line_bytes = len(to_line(operation(0))) + 1
    lines: list[str] = []
    journal = FileJournal(path, max_bytes=4 * line_bytes, on_trouble=lines.append)
    for number in range(6):
        journal.write(operation(number))
    assert journal.dropped == 2
    os.truncate(path, 0)
    journal.write(operation(7))
    journal.write(operation(7))
    journal.close()
    dropped, *kept = read_journal(path).records
    assert isinstance(dropped, DroppedRecord)
    assert (dropped.count, kept) == (2, [operation(7)] * 2)
    assert len(lines) == 2
    assert "drops records: the file reached its limit" in lines[0]
    assert "written again; 2 records are missing" in lines[1]


class Disk(io.FileIO):
    """Takes `room` bytes, then none."""

    room = 10

    def write(self, line: bytes, /) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = super().write(line[: self.room])
        self.room -= taken
        return taken


def test_half_a_line_is_taken_back_where_the_file_was_truncated_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    for _ in range(3):
        journal.write(operation(0))
    os.truncate(path, 0)
    with monkeypatch.context() as patch, Disk(path, "a") as full:
        patch.setattr(journal, "_stream", full)
        journal.write(operation(0))
    journal.write(operation(0))
    journal.close()
    assert b"\0" not in path.read_bytes()
    assert [record.kind for record in read_journal(path).records] == ["dropped", "operation"]


def test_a_disk_with_room_for_a_count_only_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    lines: list[str] = []
    journal = FileJournal(path, on_trouble=lines.append)
    large = operation(0).model_copy(update={"plan": "x" * 4000})
    with monkeypatch.context() as patch, Disk(path, "a") as full:
        patch.setattr(journal, "_stream", full)
        for _ in range(5):
            full.room = 1000  # what is taken back is free again
            journal.write(large)
    assert path.read_bytes() == b""
    journal.write(large)
    journal.close()
    dropped, last = read_journal(path).records
    assert isinstance(dropped, DroppedRecord)
    assert (dropped.count, last) == (5, large)
    assert len(lines) == 2


def test_a_successor_that_cannot_be_opened_is_said_once_and_loses_nothing(tmp_path: Path) -> None:
    path, old = tmp_path / "folder" / "journal.jsonl", tmp_path / "old"
    lines: list[str] = []
    journal = FileJournal(path, on_trouble=lines.append)
    path.rename(old)
    path.mkdir()
    for number in range(0, 9, 3):
        journal.write(operation(number))
    path.rmdir()
    journal.write(operation(12))
    journal.close()
    assert list(read_journal(old).records) == [operation(0), operation(3), operation(6)]
    assert list(read_journal(path).records) == [operation(12)]
    assert len(lines) == 2
    assert "cannot be opened again (Is a directory): goes on in the old file" in lines[0]
    assert "was opened again" in lines[1]


def test_what_is_no_file_is_written_as_ever(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        journal = FileJournal(pipe)
        for number in range(3):
            journal.write(operation(2 * number))
        journal.close()
        assert os.read(reader, 65536).count(b"\n") == 3
    finally:
        os.close(reader)


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
