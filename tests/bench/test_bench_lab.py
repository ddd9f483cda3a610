"""The bench and the training inside a lab: every rank in a network namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.bench.families import check_installed
from headway.bench.lab_site import LabSite, in_force, in_words
from headway.bench.run import Request, run_request
from headway.bench.session import Measurement, started
from headway.bench.training import Phases, train, weights_differ
from headway.collectives.plan import Collective
from headway.decide.journal import EventRecord, parse_lines
from headway.decide.journal_file import FileJournal
from headway.errors import HeadwayError, UsageError
from headway.lab.files import parse_scenario
from headway.lab.lab import Lab, require_privileges

pytestmark = pytest.mark.lab

_SCENARIO = parse_scenario(
    {
        "name": "two",
        "hosts": 2,
        "access": "400Mbit",
        "events": [{"id": "slow", "type": "bw", "target": "host1", "direction": "down", "rate": "50%"}],
    },
    where="two",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        require_privileges()
    except HeadwayError as error:
        pytest.skip(str(error))
    with Lab.up(_SCENARIO) as built:
        yield built


def test_every_backend_is_right_and_its_limit_follows_the_events(lab: Lab) -> None:
    backends = ["gloo", "headway:packing"]
    for peer in ("openmpi", "mpich"):
        try:
            check_installed(peer)
        except UsageError:
            continue
        backends.append(peer)
    request = Request(
        collective=Collective.ALL_REDUCE, sizes_bytes=[2**20], type="float", redop="sum", root=0, backends=backends,
        how=Measurement(iterations=2, warmup=1, checks=2),
    )  # fmt: skip
    site = LabSite(lab)
    with started(site, backends, timeout_s=40) as ranks:
        rows = run_request(ranks, site.ranks, request, cluster=lambda: lab.cluster(with_events=True))
        assert [(row.backend, row.error, row.wrong) for row in rows] == [(name, "", 0) for name in backends]
        idle_s = rows[0].limit_s
        with in_force(lab, _SCENARIO.events):
            (slow, *_) = run_request(ranks, site.ranks, request, cluster=lambda: lab.cluster(with_events=True))
        assert idle_s is not None
        assert slow.limit_s is not None
        assert slow.limit_s > idle_s
        assert slow.bottleneck == "downlink of host1"
    assert in_words(lab, ()) == "idle"
    assert "host1" in in_words(lab, _SCENARIO.events)


def test_training_meets_the_neighbour_and_ends_with_the_same_weights(lab: Lab, tmp_path: Path) -> None:
    phases = Phases(2, 2, 2)
    events = FileJournal(tmp_path / "events.jsonl")
    runs = [train(lab, name, _SCENARIO.events[0], phases, tmp_path, events=events) for name in ("gloo", "headway")]
    events.close()
    assert [len(run.steps) for run in runs] == [6, 6]
    assert weights_differ(runs) < 1e-4
    text = (tmp_path / "events.jsonl").read_text()
    records = [r for r in parse_lines(text.splitlines(), where="events") if isinstance(r, EventRecord)]
    assert [record.phase for record in records] == ["begin", "end"] * 2
    assert all(run.limits_s["under"] > run.limits_s["before"] for run in runs)
    assert all(run.journal.stat().st_size > 0 for run in runs)


def test_a_script_that_fails_is_reported_with_its_last_line(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no data here')\n")
    events = FileJournal(tmp_path / "events.jsonl")
    with pytest.raises(HeadwayError, match="no data here"):
        train(lab, "gloo", _SCENARIO.events[0], Phases(2, 2, 2), tmp_path, script=script, events=events)
    events.close()
