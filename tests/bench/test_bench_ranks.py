"""The bench with real processes on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.bench.families import check_installed
from headway.bench.place import loopback
from headway.bench.run import Request, run_request
from headway.bench.session import Measurement, started
from headway.collectives.plan import Collective
from headway.errors import HeadwayError, UsageError

pytestmark = pytest.mark.ranks


def _request(collective: Collective, backends: tuple[str, ...], *, redop: str = "sum", kind: str = "float") -> Request:
    return Request(
        collective=collective, sizes_bytes=[4096, 2**21], type=kind, redop=redop, root=1, backends=backends,
        how=Measurement(iterations=2, warmup=1, checks=2),
    )  # fmt: skip


def test_gloo_and_headway_give_right_results_in_every_collective(tmp_path: Path) -> None:
    backends = ("gloo", "headway:packing", "headway:react", "headway:off")
    with loopback(2, backends, timeout_s=30, journals=str(tmp_path)) as place:
        for collective in Collective:
            rows = run_request(place.ranks, place.world_size, _request(collective, backends))
            assert [(row.backend, row.error, row.wrong) for row in rows] == [(name, "", 0) for name in backends] * 2
            assert all(len(row.iterations_s) == 2 and row.time_s > 0 for row in rows)
        for kind, redop in (("bfloat16", "sum"), ("half", "max"), ("int8", "prod"), ("float", "avg")):
            rows = run_request(
                place.ranks, place.world_size, _request(Collective.ALL_REDUCE, backends, redop=redop, kind=kind)
            )
            assert [(row.error, row.wrong) for row in rows] == [("", 0)] * len(rows)
    assert {path.name for path in tmp_path.iterdir()} >= {"headway-packing.jsonl", "headway-react.jsonl"}


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_an_mpi_peer_gives_right_results(name: str) -> None:
    try:
        check_installed(name)
    except UsageError as error:
        pytest.skip(str(error))
    with loopback(2, (name,), timeout_s=30) as place:
        for collective in Collective:
            rows = run_request(place.ranks, place.world_size, _request(collective, (name,)))
            assert [(row.error, row.wrong) for row in rows] == [("", 0)] * 2
        (row, _) = run_request(place.ranks, place.world_size, _request(Collective.ALL_REDUCE, (name,), kind="bfloat16"))
        assert "bfloat16" in row.error


def test_ranks_that_do_not_start_are_reported_with_what_they_printed() -> None:
    class Nowhere:
        ranks = 2
        interface = "lo"

        def command_prefix(self, rank: int) -> list[str]:
            return ["sh", "-c", "echo no such host; exit 3"] if rank else []

        def address(self, rank: int) -> str:
            return "127.0.0.1"

    with pytest.raises(HeadwayError, match=r"code 3.*no such host"), started(Nowhere(), ("gloo",), timeout_s=30):
        pass


def test_a_missing_peer_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="apt install openmpi-bin"):
        check_installed("openmpi")
    with pytest.raises(UsageError, match="apt install mpich"):
        check_installed("mpich")
