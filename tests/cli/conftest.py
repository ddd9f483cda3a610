"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.cli.main import run


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a line (and words with blanks), checks its exit code, and gives back what it printed, or what it refused."""

    def asked(line: str, code: int = 0, *more: str) -> str:
        capsys.readouterr()
        assert run([*line.split(), *more]) == code
        printed = capsys.readouterr()
        return printed.err if code == 2 or not printed.out else printed.out

    return asked
