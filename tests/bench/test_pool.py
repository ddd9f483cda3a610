"""The pool keeps every row, whatever happens to workers, to the run and to the file."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.bench.pool import ASIDE, ROWS, code_version, read_rows, run_cells
from headway.bench.progress import Shown
from headway.errors import HeadwayError, UsageError
from headway.sim.studies.cells import Cell, Json, Row, parse_row
from tests.running import left, members


def squared(work: Json) -> Json:
    """What most tests run."""
    log = work.get("log")
    if isinstance(log, str):
        with open(log, "a") as file:
            file.write(f"{work['x']}\n")
    number = work["x"]
    assert isinstance(number, int)
    return {"square": number * number}


def troubled(work: Json) -> Json:
    """Fails in as many ways as there are."""
    match work["x"]:
        case 1:
            raise HeadwayError("this cell cannot be")
        case 2:
            raise ZeroDivisionError("by\nzero")
        case 3:
            os.kill(os.getpid(), signal.SIGKILL)
        case 4:
            sys.exit(7)
        case 5:
            time.sleep(60)
        case 6:
            return {"bad": float("nan")}
    return {"fine": True}


def held(work: Json) -> Json:
    """A cell that, but for the first three, waits until it may go on."""
    for _ in range(1200):
        if int(str(work["x"])) < 3 or Path(str(work["go"])).exists():
            return squared(work)
        time.sleep(0.05)
    raise AssertionError("nobody let it go on")


def cells(count: int, **more: str) -> list[Cell]:
    return [Cell({"x": x}, {"x": x, **more}) for x in range(count)]


def values(rows: list[Row]) -> list[object]:
    return [row.values.get("square") for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_in_the_order_of_the_cells(tmp_path: Path, workers: int) -> None:
    rows = run_cells(cells(9), squared, workers=workers, out=tmp_path)
    assert values(rows) == [x * x for x in range(9)]
    assert read_rows(tmp_path / ROWS) == rows
    assert [row.parameters for row in rows] == [{"x": x} for x in range(9)]


def test_a_cell_that_fails_costs_only_itself(tmp_path: Path) -> None:
    rows = run_cells(cells(8), troubled, workers=2, out=tmp_path, limit_s=3)
    errors = [row.error for row in rows]
    assert errors[0] == errors[7] == ""
    assert errors[1] == "this cell cannot be"
    assert errors[2].startswith("ZeroDivisionError: by zero (in troubled, ")
    assert errors[3] == "the worker was ended by SIGKILL, perhaps for want of memory"
    assert errors[4] == "the worker ended with exit code 7"
    assert errors[5] == "took longer than 3 s"
    assert "JSON" in errors[6]
    assert read_rows(tmp_path / ROWS) == rows


def test_failed_cells_are_tried_again_and_others_are_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    todo = cells(4, log=str(log))
    run_cells(todo, squared, workers=0, out=tmp_path / "out")
    assert run_cells(todo, squared, workers=0, out=tmp_path / "out")[3].values == {"square": 9}
    assert log.read_text().split() == ["0", "1", "2", "3"]
    path = tmp_path / "out" / ROWS
    rows = read_rows(path)
    failed = Row(rows[1].key, rows[1].parameters, {}, "it was ill")
    path.write_text("".join(row.to_line() + "\n" for row in (rows[0], failed, *rows[2:])))
    assert values(run_cells(todo, squared, workers=0, out=tmp_path / "out")) == [0, 1, 4, 9]
    assert log.read_text().split() == ["0", "1", "2", "3", "1"]


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    run_cells(cells(3), squared, workers=0, out=tmp_path)
    path = tmp_path / ROWS
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read_rows(path)) == 2
    assert values(run_cells(cells(3), squared, workers=0, out=tmp_path)) == [0, 1, 4]


def test_rows_of_other_cells_go_aside_and_come_back(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    out = tmp_path / "out"
    told: list[tuple[int, int, int]] = []

    class Told(Shown):
        def begin(self, *, total: int, kept: int, aside: int) -> None:
            told.append((total, kept, aside))

    def run(which: list[Cell]) -> None:
        from rich.console import Console

        run_cells(which, squared, workers=0, out=out, progress=Told(Console(quiet=True)))

    run(cells(4, log=log))
    run(cells(2, log=log))
    assert len(read_rows(out / ROWS)) == 2
    assert len(read_rows(out / ASIDE)) == 2
    run(cells(5, log=log))
    assert len(read_rows(out / ROWS)) == 5
    assert read_rows(out / ASIDE) == []
    assert told == [(4, 0, 0), (2, 2, 2), (5, 4, 0)]
    assert sorted(Path(log).read_text().split()) == ["0", "1", "2", "3", "4"]


def test_a_key_depends_on_work_parameters_and_version() -> None:
    cell = Cell({"x": 1}, {"x": 1, "deep": {"a": [1, 2]}})
    assert cell.key("1") == Cell({"x": 1}, {"deep": {"a": [1, 2]}, "x": 1}).key("1")
    others = {cell.key("1"), cell.key("2"), Cell({"x": 2}, cell.work).key("1"), Cell({"x": 1}, {"x": 1}).key("1")}
    assert len(others) == 4
    assert code_version() == code_version() != ""


def test_rows_of_another_version_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    todo = cells(2, log=str(log))
    run_cells(todo, squared, workers=0, out=tmp_path / "out")
    monkeypatch.setattr("headway.bench.pool.code_version", lambda: "another")
    run_cells(todo, squared, workers=0, out=tmp_path / "out")
    assert log.read_text().split() == ["0", "1", "0", "1"]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"two cells are alike: \{'x': 0\}"):
        run_cells([*cells(1), *cells(1)], squared, workers=0, out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        run_cells(cells(1), squared, workers=0, out=tmp_path / "file")
    (tmp_path / ROWS).write_text("hello\n")
    with pytest.raises(UsageError, match=r"rows.jsonl:1: is no row of a sweep"):
        run_cells(cells(1), squared, workers=0, out=tmp_path)
    with pytest.raises(UsageError, match="limit"):
        run_cells(cells(1), squared, workers=0, out=tmp_path / "other", limit_s=1)
    with pytest.raises(UsageError):
        parse_row('{"key": "a", "parameters": 1, "values": {}, "error": "", "wall_s": 1}', where="here")


_PROGRAM = """
import sys
from pathlib import Path
from headway.bench.pool import run_cells
from headway.errors import HeadwayError
from tests.bench.test_pool import cells, held
if __name__ == "__main__":
    try:
        folder = Path(sys.argv[1])
        rows = run_cells(cells(12, go=str(folder / "go")), held, workers=2, out=folder / "out")
        print(sum(row.values["square"] for row in rows))
    except HeadwayError as error:
        print(error, flush=True)
        sys.exit(1)
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )


def _until_rows(path: Path, count: int) -> None:
    for _ in range(600):
        if path.exists() and path.read_text().count("\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no rows came")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_goes_on_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    process = _start(tmp_path)
    rows = tmp_path / "out" / ROWS
    _until_rows(rows, 2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 1
        assert "interrupted: " in said
        assert "the same command goes on from there" in said
        assert len(said.splitlines()) == 1
    assert left(process.pid) == []
    kept = len(read_rows(rows))
    assert 2 <= kept <= 3
    (tmp_path / "go").touch()
    again = _start(tmp_path)
    said, _ = again.communicate(timeout=60)
    assert said.split() == [str(sum(x * x for x in range(12)))]
    assert len(read_rows(rows)) == 12


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    process = _start(tmp_path)
    try:
        _until_rows(tmp_path / "out" / ROWS, 1)
        with pytest.raises(UsageError, match="another run is writing there"):
            run_cells(cells(1), squared, workers=0, out=tmp_path / "out")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_progress_is_quiet_without_a_terminal_but_says_what_it_kept(tmp_path: Path) -> None:
    import io

    from rich.console import Console

    text = io.StringIO()
    run_cells(cells(3), squared, workers=0, out=tmp_path, progress=Shown(Console(file=text)))
    assert text.getvalue() == ""
    run_cells(cells(4), squared, workers=0, out=tmp_path, progress=Shown(Console(file=text)))
    assert text.getvalue() == "3 of 4 cells have been run already\n"
    run_cells(cells(1), squared, workers=0, out=tmp_path, progress=Shown(Console(file=text)))
    assert "3 rows fit no cell any more" in text.getvalue()
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=100)
    run_cells(cells(3), troubled, workers=0, out=tmp_path, progress=Shown(console))
    assert "2 failed" in seen.getvalue()


def test_rows_are_json_lines(tmp_path: Path) -> None:
    run_cells(cells(1), squared, workers=0, out=tmp_path)
    fields = json.loads((tmp_path / ROWS).read_text())
    assert fields.keys() == {"key", "parameters", "values", "error", "wall_s"}
    assert fields["values"] == {"square": 0}


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of one node with two processors, on loopback."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'headway[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Paths of Ray's sockets are long, and a socket's path may have 107 characters: pytest's folders leave too few.
    folder = Path(tempfile.mkdtemp(prefix="hwray"))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    # A token of its own, whatever this user's other clusters have.
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    patch = pytest.MonkeyPatch()
    for name, value in tokens.items():
        patch.setenv(name, value)
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [*command, f"--temp-dir={folder / 'r'}"],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{Path(__file__).parent}"},
    )
    try:
        for _ in range(600):
            if "Ray runtime started" in (folder / "log").read_text():
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        log.close()
        for number in members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        patch.undo()


@pytest.mark.ranks
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_cells_run_on_ray(tmp_path: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code_version.cache_clear()  # sources may have been edited since another test asked
    todo = cells(5)
    rows = run_cells(todo, squared, workers=0, out=tmp_path, ray=ray_address)
    assert [row.error for row in rows] == [""] * 5
    assert values(rows) == [0, 1, 4, 9, 16]
    failing = [cell for cell in todo if cell.parameters["x"] in (0, 1, 2, 3)]
    rows = run_cells(failing, troubled, workers=0, out=tmp_path, ray=ray_address)
    assert rows[0].values == {"fine": True}
    assert rows[1].error == "this cell cannot be"
    assert rows[2].error.startswith("ZeroDivisionError")
    assert rows[3].error.startswith("on Ray: ")
    monkeypatch.setattr("headway.bench.pool.code_version", lambda: "another")
    (row,) = run_cells(cells(1), squared, workers=0, out=tmp_path, ray=ray_address)
    assert row.error.startswith("the node runs Headway ")
    assert row.error.endswith(", not another")


@pytest.mark.ranks
def test_a_ray_cluster_that_is_not_there(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'headway[ray]'")
    with pytest.raises(UsageError, match=r"--ray: no Ray cluster at '127.0.0.1:1'"):
        run_cells(cells(1), squared, workers=2, out=tmp_path, ray="127.0.0.1:1")


def test_ray_says_what_is_missing(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed here")
    with pytest.raises(UsageError, match=r"--ray: Ray is not installed"):
        run_cells(cells(1), squared, workers=2, out=tmp_path, ray="auto")
