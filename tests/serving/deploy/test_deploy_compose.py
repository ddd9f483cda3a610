"""The compose file and the gateway's file of a plan."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headway.errors import UsageError
from headway.serving.deploy.compose import compose, ports
from headway.serving.deploy.engines import Engine, EngineOptions, engines
from headway.serving.deploy.gateway_file import gateway_file
from headway.serving.gateway.config_file import parse_config
from tests.serving.deploy.plans import MIXED, NODES, plan, whole

DEVICES = {node.name: node.device for node in NODES}


@pytest.fixture
def servers() -> list[Engine]:
    """Of the mixed plan."""
    return engines(MIXED, NODES, EngineOptions(arguments=("--hf-overrides", "$x")))


@pytest.fixture
def services(servers: list[Engine]) -> dict[str, Any]:
    """What the compose file starts."""
    found: dict[str, Any] = compose(servers, name="plan", image="vllm:1")["services"]
    return found


def gpus(service: dict[str, Any]) -> list[str]:
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    found: list[str] = device["device_ids"]
    return found


def test_each_server_sees_its_gpus_and_no_others(services: dict[str, Any]) -> None:
    assert gpus(services["llama-3-8b-0"]) == ["0", "1"]
    assert gpus(services["llama-3-2-1b-0"]) == gpus(services["mps-gpu2"]) == ["2"]
    assert services["llama-3-8b-0"]["ipc"] == "host"


def test_servers_on_a_shared_gpu_are_clients_of_its_own_daemon(services: dict[str, Any]) -> None:
    assert {name for name in services if name.startswith("mps-")} == {"mps-gpu2", "mps-gpu3"}
    small = services["llama-3-2-1b-0"]
    assert small["ipc"] == "service:mps-gpu2"
    assert "mps-gpu2:/tmp/nvidia-mps" in small["volumes"]
    assert small["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in services["llama-3-8b-0"]["environment"]


def test_a_server_starts_when_the_one_before_it_on_its_gpu_is_healthy(services: dict[str, Any]) -> None:
    healthy = {"condition": "service_healthy"}
    assert services["llama-3-2-1b-0"]["depends_on"] == {"mps-gpu2": healthy, "llama-3-2-3b-0": healthy}
    assert services["llama-3-2-3b-0"]["depends_on"] == {"mps-gpu2": healthy}
    assert "depends_on" not in services["llama-3-8b-0"]
    assert all("healthcheck" in services[name] for each in services.values() for name in each.get("depends_on", ()))


def test_a_dollar_in_an_argument_is_not_taken_for_a_variable(services: dict[str, Any]) -> None:
    assert services["llama-3-8b-0"]["entrypoint"][-1] == "$$x"


def test_ports_differ_and_do_not_depend_on_who_starts_first(servers: list[Engine], services: dict[str, Any]) -> None:
    numbers = ports(servers)
    assert len(set(numbers.values())) == len(servers)
    assert ports(list(reversed(servers))) == numbers
    for name, number in numbers.items():
        assert services[name]["ports"] == [f"127.0.0.1:{number}:8000"]


def test_a_plan_on_two_machines_has_no_compose_file() -> None:
    both = engines(plan(whole("llama-3-8b", 0, 0), whole("llama-3-8b", 1, 0, node="node-b")), NODES, EngineOptions())
    with pytest.raises(UsageError, match="node-a, node-b"):
        compose(both, name="plan", image="vllm:1")


def test_the_gateway_has_a_pool_for_each_model_with_all_its_engines(servers: list[Engine]) -> None:
    config = parse_config(gateway_file(servers, devices=DEVICES), where="test")
    replicas = {pool.models[0]: [replica.url for replica in pool.replicas] for pool in config.pools}
    numbers = ports(servers)
    assert replicas["llama-3.2-3b"] == [
        f"http://127.0.0.1:{numbers[name]}" for name in ("llama-3-2-3b-0", "llama-3-2-3b-1")
    ]
    assert set(replicas) == {it.instance.model for it in servers}
    assert {replica.device for pool in config.pools for replica in pool.replicas} == {"a100"}
    assert config.journal is not None
    assert config.journal.prefix_blocks


def test_in_a_cluster_the_gateway_follows_the_models_services(servers: list[Engine]) -> None:
    config = parse_config(gateway_file(servers, devices=DEVICES, namespace="serving", policy="lmetric"), where="test")
    for pool in config.pools:
        (source,) = pool.discovery
        assert source.kind == "kubernetes"
        assert (source.service, source.namespace) == (pool.name, "serving")
        assert pool.policy == "lmetric"


def test_engines_elsewhere_are_where_one_says(servers: list[Engine]) -> None:
    urls = {it.name: f"http://somewhere:{9000 + at}" for at, it in enumerate(servers)}
    config = parse_config(gateway_file(servers, devices={}, urls=urls), where="test")
    assert {replica.url for pool in config.pools for replica in pool.replicas} == set(urls.values())
    assert yaml.safe_load(gateway_file(servers, devices={}, urls=urls))["listen"]["host"] == "127.0.0.1"
