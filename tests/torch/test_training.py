"""Training ends with gloo's weights."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from tests.torch import training
from tests.torch.world import Body, run_world

pytestmark = pytest.mark.ranks


def against_gloo(size: int, body: Body, *args: object, atol: float = 1e-5) -> None:
    """Every rank ends with the same values, and they are gloo's within `atol`."""
    ours: list[list[float]] = run_world(size, body, *args)
    assert all(values == ours[0] for values in ours)
    theirs: list[Any] = run_world(size, body, *args, backend="gloo")
    assert torch.allclose(torch.tensor(ours[0]), torch.tensor(theirs[0]), atol=atol, rtol=0)


@pytest.mark.parametrize("hook", ["", "allreduce"])
def test_ddp(hook: str) -> None:
    against_gloo(4, training.ddp, hook)


def test_ddp_with_half_precision_gradients() -> None:
    against_gloo(3, training.ddp, "fp16", atol=0.05)  # sums in float16, in another order, over 50 steps


def test_ddp_with_powersgd() -> None:
    against_gloo(2, training.ddp, "powersgd", atol=0.01)


def test_ddp_gradient_accumulation() -> None:
    against_gloo(2, training.ddp_without_sync)


def test_fsdp() -> None:
    against_gloo(4, training.fsdp, (4,))


def test_hsdp() -> None:
    against_gloo(4, training.fsdp, (2, 2))


def test_compiled_ddp() -> None:
    compiler = "inductor" if shutil.which("g++") else "aot_eager"  # inductor writes C++ for the CPU
    against_gloo(2, training.compiled_ddp, compiler)


def test_compiled_collectives() -> None:
    assert run_world(2, training.compiled_collectives) == [[7.0] * 4] * 2


def test_begin_again_in_the_same_process() -> None:
    assert run_world(2, training.second_group_after_the_first) == [[3.0] * 4] * 2
