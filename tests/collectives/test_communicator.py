"""The whole loop on real sockets: plans change between operations, never inside one, and the sums stay right."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from headway.cluster.model import Cluster, star
from headway.collectives import decider as decider_module
from headway.collectives.communicator import Communicator
from headway.collectives.families import direct
from headway.collectives.families import star as star_tree
from headway.collectives.operation import OperationOutcome
from headway.collectives.plan import Collective, Plan
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.collectives.verdict import EpochMeasures, Planner, Verdict
from headway.decide.journal import DecisionRecord, FailureRecord, MemoryJournal, OperationRecord, StartRecord
from headway.settings import Settings
from headway.transport.tcp import TcpTransport
from tests.transport.harness import group

pytestmark = pytest.mark.ranks
SIZE = 4
COUNT = 80_000  # float32: above LARGE_BYTES
LIMIT_S = 30.0


class _Restless:
    """A tuner that orders another star plan at the end of every epoch."""

    def __init__(self, cluster: Cluster, planner: Planner, *, name: str, trust_nominal: bool) -> None:
        self._cluster = cluster
        self._plans: Iterator[Plan | None] = itertools.cycle(
            [direct([1.0, 2.0, 3.0, 4.0]), star_tree(SIZE, 2), None, direct([5.0, 0.0, 1.0, 1.0]), star_tree(SIZE, 0)]
        )

    def usual_cluster(self) -> Cluster:
        return self._cluster

    def decide(self, measures: EpochMeasures) -> Verdict:
        return Verdict(
            action="try",
            reason="restless",
            collective=Collective.ALL_REDUCE,
            plans={Collective.ALL_REDUCE: next(self._plans)},
            epoch_weight=1.0 + measures.epoch % 2,
            lead_operations=measures.epoch % 3,
        )


class _Broken(_Restless):
    def decide(self, measures: EpochMeasures) -> Verdict:
        raise ArithmeticError("no verdict from this one")


class _World:
    """One communicator per rank, in threads of this process."""

    def __init__(self, transports: list[TcpTransport], settings: Settings) -> None:
        self.journal = MemoryJournal()
        self.ranks = [
            Communicator(
                transport,
                group="default",
                cluster=star(SIZE, 1e9),
                settings=settings,
                journal=self.journal if transport.rank == 0 else MemoryJournal(),
            )
            for transport in transports
        ]

    def all_reduce(self, vectors: list[npt.NDArray[np.float32]]) -> list[OperationOutcome]:
        outcomes: list[OperationOutcome | None] = [None] * SIZE
        left = threading.Semaphore(0)

        def keep(rank: int, outcome: OperationOutcome) -> None:
            outcomes[rank] = outcome
            left.release()

        for rank, communicator in enumerate(self.ranks):
            communicator.run(
                Collective.ALL_REDUCE,
                vectors[rank].data.cast("B"),
                element_bytes=4,
                reducer=NumpyReducer(ReduceKind.SUM, np.float32, size=SIZE),
                timeout_s=LIMIT_S,
                done=partial(keep, rank),
            )
        for _ in range(SIZE):
            assert left.acquire(timeout=LIMIT_S)
        return [outcome for outcome in outcomes if outcome is not None]

    def close(self) -> None:
        for communicator in self.ranks:
            communicator.close()


def test_in_bitwise_mode_no_change_of_plan_changes_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider_module, "Tuner", _Restless)
    random = np.random.default_rng(7)
    given = [(random.standard_normal(COUNT) * 10.0**rank).astype(np.float32) for rank in range(SIZE)]
    expected = ((given[0] + given[1]) + given[2]) + given[3]
    with group(SIZE) as transports:
        world = _World(transports, Settings(bitwise=True))
        for _ in range(24):
            vectors = [vector.copy() for vector in given]
            assert [outcome.error for outcome in world.all_reduce(vectors)] == [None] * SIZE
            for vector in vectors:
                assert vector.tobytes() == expected.tobytes()
        world.close()
    records = world.journal.records
    assert isinstance(records[0], StartRecord)
    assert "predicted" in records[0].settings["bitwise_cost"]
    plans = [record.plan for record in records if isinstance(record, OperationRecord)]
    assert len(plans) == 24
    assert len(set(plans)) >= 3, "the plans never changed, so nothing was shown"
    rulings = [record.from_operation for record in records if isinstance(record, DecisionRecord)]
    assert rulings == sorted(set(rulings))


def test_a_tuner_that_fails_is_reported_and_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider_module, "Tuner", _Broken)
    with group(SIZE) as transports:
        world = _World(transports, Settings())
        for _ in range(8):
            vectors = [np.full(COUNT, rank + 1, np.float32) for rank in range(SIZE)]
            assert [outcome.error for outcome in world.all_reduce(vectors)] == [None] * SIZE
            assert all((vector == 10).all() for vector in vectors)
        world.close()
    failures = [record for record in world.journal.records if isinstance(record, FailureRecord)]
    assert len(failures) == 1
    assert "no verdict from this one" in failures[0].what


def test_after_an_abort_every_rank_refuses_with_its_reason() -> None:
    with group(SIZE) as transports:
        world = _World(transports, Settings(policy="off"))
        world.ranks[2].abort("somebody pulled the plug")
        vectors = [np.zeros(COUNT, np.float32) for _ in range(SIZE)]
        errors = [outcome.error for outcome in world.all_reduce(vectors)]
        assert all(error is not None and "somebody pulled the plug" in str(error) for error in errors)
        world.close()


def test_without_a_verdict_a_mismatch_still_ends_every_rank() -> None:
    with group(SIZE) as transports:
        cluster = star(SIZE, 1e9)
        ranks = {
            transport.rank: Communicator(
                transport, group="default", cluster=cluster, settings=Settings(), journal=MemoryJournal()
            )
            for transport in transports[1:]  # nobody is there to compare
        }
        errors: dict[int, Exception | None] = {}
        left = threading.Semaphore(0)

        def keep(rank: int, outcome: OperationOutcome) -> None:
            errors[rank] = outcome.error
            left.release()

        for rank, communicator in ranks.items():
            vector = np.zeros(1000 if rank == 1 else 2000, np.float32)
            communicator.run(
                Collective.BROADCAST,
                vector.data.cast("B"),
                element_bytes=4,
                reducer=None,
                root=1,
                timeout_s=LIMIT_S,
                done=partial(keep, rank),
            )
        for _ in ranks:
            assert left.acquire(timeout=LIMIT_S)
        texts = [str(errors[rank]) for rank in (2, 3)]
        assert any("called different things: all ranks must call the same" in text for text in texts), texts
        for communicator in ranks.values():
            communicator.close()
