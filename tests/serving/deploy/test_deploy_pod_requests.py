"""CPU and memory that an engine's pod asks for."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.deploy.engines import Engine, EngineOptions, engines
from headway.serving.deploy.pod_requests import check_requests, requests, shm_size
from tests.serving.deploy.plans import NODES, part, plan, whole


def engine(model: str, *gpus: int) -> Engine:
    made = engines(plan(whole(model, 0, *gpus)), NODES, EngineOptions())
    return made[0]


def test_memory_holds_the_weights_once_and_something_for_each_gpu() -> None:
    assert requests(engine("llama-3-8b", 0)) == {"cpu": "2", "memory": "21Gi"}  # 15.0 GiB of weights, 4, 2
    assert requests(engine("llama-3-8b", 0, 1)) == {"cpu": "4", "memory": "23Gi"}


def test_a_part_asks_as_if_it_had_the_gpu() -> None:
    (small,) = engines(plan(part("llama-3-8b", 0, 5, 0)), NODES, EngineOptions())
    assert requests(small) == requests(engine("llama-3-8b", 0))


def test_unknown_weights_are_not_counted_until_the_model_is_named() -> None:
    assert requests(engine("mine", 0)) == {"cpu": "2", "memory": "6Gi"}
    (named,) = engines(plan(whole("mine", 0, 0)), NODES, EngineOptions(known_as={"mine": "llama-3-8b"}))
    assert requests(named) == requests(engine("llama-3-8b", 0))


def test_what_is_said_stands() -> None:
    assert requests(engine("mine", 0), cpu="8") == {"cpu": "8", "memory": "6Gi"}
    assert requests(engine("mine", 0), memory="1Ti") == {"cpu": "2", "memory": "1Ti"}


def test_shared_memory_grows_with_the_gpus() -> None:
    assert [shm_size(engine("mine", *range(count))) for count in (2, 4)] == ["3Gi", "5Gi"]


@pytest.mark.parametrize(("cpu", "memory"), [("", ""), ("4", "24Gi"), ("0.5", "1.5Ti"), ("500m", "24000M")])
def test_quantities_of_kubernetes(cpu: str, memory: str) -> None:
    check_requests(cpu=cpu, memory=memory)


@pytest.mark.parametrize("cpu", ["0", "0m", "-1", "4 ", "4Gi", "nan", "1e3"])
def test_no_number_of_cores(cpu: str) -> None:
    with pytest.raises(UsageError, match="--cpu"):
        check_requests(cpu=cpu, memory="")


@pytest.mark.parametrize("memory", ["24", "24GiB", "24m", "0Gi", "-1Gi", "Gi"])
def test_no_size(memory: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        check_requests(cpu="", memory=memory)
