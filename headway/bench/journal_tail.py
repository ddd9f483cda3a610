"""Reading a journal while it grows."""

from __future__ import annotations

from pathlib import Path

from headway.decide.journal import Record, parse_lines


class JournalTail:
    """Gives the records that were added to a journal since the last look; none while the file is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_records(self) -> list[Record]:
        """Whole lines only: one that is just being written waits for the next look."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(parse_lines(whole.decode().splitlines(), where=str(self._path)))
