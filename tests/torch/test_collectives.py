"""Collectives in real processes: against gloo, in every layout and call form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.torch import checks
from tests.torch.world import run_world

pytestmark = pytest.mark.ranks


def test_every_collective_type_and_operation_is_as_gloo_has_it() -> None:
    cells = run_world(4, checks.same_as_gloo)
    assert cells == [len(checks.DTYPES) * len(checks.OPS) * 5] * 4


@pytest.mark.parametrize(
    "check",
    [
        checks.moves_every_type,
        checks.layouts,
        checks.call_forms,
        checks.refusals,
        checks.delegated,
        checks.asynchronous,
        checks.groups_of_ranks,
        checks.functional_collectives,
        checks.timeouts,
    ],
)
def test_three_ranks(check: Callable[[], object]) -> None:
    run_world(3, check)


@pytest.mark.parametrize("check", [checks.layouts, checks.delegated, checks.asynchronous])
def test_two_ranks(check: Callable[[], object]) -> None:
    run_world(2, check)


def test_one_rank() -> None:
    run_world(1, checks.alone)


def test_device_string() -> None:
    run_world(2, checks.layouts, backend="cpu:headway")


@pytest.mark.parametrize("backend", ["cpu:headway,cuda:stand-in", "cuda:stand-in,cpu:headway"])
def test_beside_another_device(backend: str) -> None:
    assert run_world(2, checks.beside_another_device, backend=backend) == ["gloo"] * 2


def test_nothing_is_left_after_the_end() -> None:
    for left in run_world(3, checks.releases_everything):
        assert len(left) <= 1, left  # the socket of the store, which outlives the groups


def test_same_bits_whatever_the_plan() -> None:
    digests = {
        digest
        for plan in ("star", "direct", "")
        for digest in run_world(4, checks.exact_bits, environment={"HEADWAY_BITWISE": "1", "HEADWAY_PLAN": plan})
    }
    assert len(digests) == 1
