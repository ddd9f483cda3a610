"""The executor in rounds: what it does when others fail (its results are compared in `test_executor`)."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from headway.collectives.operation import OperationOutcome
from headway.collectives.plan import Collective
from headway.collectives.rounds import RoundsExecutor
from headway.errors import DeadlineError, PeerLostError, TransportError
from tests.collectives.harness import Outcomes, operation, ring_plan
from tests.fakes.matched import FakeMatchedNetwork


def test_past_its_limit_an_operation_names_whom_it_waits_for_and_all_later_ones_fail() -> None:
    network = FakeMatchedNetwork(3)
    executor = RoundsExecutor(network.transports[1])
    outcomes = Outcomes()
    for number in range(2):
        executor.start(
            operation(number, Collective.ALL_REDUCE, ring_plan(3), np.ones(9), deadline_s=time.monotonic() + 0.05),
            outcomes,
        )
    executor.close()
    error = outcomes.errors[0]
    assert isinstance(error, DeadlineError)
    assert error.rank == 0
    assert str(error) == "all_reduce #0 of group test: nothing came from rank 0"
    assert outcomes.errors == [error, error]
    assert executor.scratch_outstanding == 0


def test_a_peer_that_goes_away_is_named() -> None:
    network = FakeMatchedNetwork(2)
    executor = RoundsExecutor(network.transports[0])
    ended = threading.Event()
    outcomes = Outcomes()

    def done(outcome: OperationOutcome) -> None:
        outcomes(outcome)
        ended.set()

    executor.start(operation(0, Collective.ALL_REDUCE, ring_plan(2), np.ones(9)), done)
    network.transports[1].close()
    assert ended.wait(30)
    assert isinstance(outcomes.errors[0], PeerLostError)
    executor.close()


def test_a_failed_or_closed_executor_takes_nothing() -> None:
    executor = RoundsExecutor(FakeMatchedNetwork(1).transports[0])
    error = TransportError("aborted")
    executor.fail(error)
    outcomes = Outcomes()
    executor.start(operation(0, Collective.ALL_REDUCE, ring_plan(1), np.ones(9)), outcomes)
    executor.close()
    executor.close()
    assert outcomes.errors == [error]
    with pytest.raises(TransportError, match="closed"):
        executor.start(operation(1, Collective.ALL_REDUCE, ring_plan(1), np.ones(9)), outcomes)
