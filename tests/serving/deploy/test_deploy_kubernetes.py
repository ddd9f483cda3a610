"""Manifests: what Kubernetes' own models know of them, and who gets which GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from headway.errors import UsageError
from headway.serving.allocation.types import Plan
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.kubernetes import (
    ENGINE_LABEL,
    MODEL_LABEL,
    KubernetesOptions,
    equal_parts,
    manifests,
    plugin_config,
)
from headway.serving.deploy.objects import Manifest
from headway.serving.deploy.text import documents
from tests.serving.deploy.client_models import through_the_client
from tests.serving.deploy.plans import EQUAL, MIXED, NODES, part, plan, whole


def made(of: Plan, sharing: str = "dra", **more: Any) -> list[Manifest]:
    together = "gpu" if sharing == "dra" else "node"
    servers = engines(of, NODES, EngineOptions(), together=together)
    options = KubernetesOptions(namespace="serving", sharing=sharing, image="vllm:1", **more)
    return manifests(servers, options)


def of_kind(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def pod(deployment: Manifest) -> Manifest:
    found: Manifest = deployment["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("sharing", ["dra", "mps", "time-slicing"])
@pytest.mark.parametrize("weights_claim", ["", "weights"])
def test_no_field_is_unknown_to_the_clients_models(sharing: str, weights_claim: str) -> None:
    found = made(MIXED if sharing == "dra" else EQUAL, sharing, weights_claim=weights_claim)
    config = plugin_config(engines(EQUAL, NODES, EngineOptions()), sharing, namespace="gpu-operator")
    for manifest in [*found, *([config] if config is not None and sharing != "dra" else [])]:
        assert through_the_client(manifest) == manifest


def test_the_check_above_would_notice_a_wrong_field() -> None:
    manifest = made(MIXED)[-1]
    pod(manifest)["nodeSelectors"] = {"a": "b"}
    assert through_the_client(manifest) != manifest


def test_those_on_one_gpu_claim_the_same_gpu_and_others_another() -> None:
    found = made(MIXED)
    claims = {name: pod(each)["resourceClaims"] for name, each in of_kind(found, "Deployment").items()}
    assert (
        claims["llama-3-2-3b-0"] == claims["llama-3-2-1b-0"] == [{"name": "gpu", "resourceClaimName": "gpu-node-a-2"}]
    )
    assert (
        claims["llama-3-2-3b-1"] == claims["qwen2-5-1-5b-0"] == [{"name": "gpu", "resourceClaimName": "gpu-node-a-3"}]
    )
    assert claims["llama-3-8b-0"] == [{"name": "gpu", "resourceClaimTemplateName": "gpus-2"}]
    assert set(of_kind(found, "ResourceClaim")) == {"gpu-node-a-2", "gpu-node-a-3"}
    (template,) = of_kind(found, "ResourceClaimTemplate").values()
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2


def test_shared_claims_turn_mps_on_and_each_pod_limits_itself() -> None:
    found = made(MIXED)
    claim = of_kind(found, "ResourceClaim")["gpu-node-a-2"]
    opaque = claim["spec"]["devices"]["config"][0]["opaque"]
    assert opaque["parameters"]["sharing"]["strategy"] == "MPS"
    deployments = of_kind(found, "Deployment")
    environment = {
        each["name"]: each.get("value") for each in pod(deployments["llama-3-2-1b-0"])["containers"][0]["env"]
    }
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in json.dumps(deployments["llama-3-8b-0"])
    assert "nvidia.com/gpu" not in pod(deployments["llama-3-2-1b-0"])["containers"][0]["resources"].get("limits", {})


def test_the_later_one_waits_for_the_earlier_ones_own_service() -> None:
    found = made(MIXED)
    deployments, services = of_kind(found, "Deployment"), of_kind(found, "Service")
    (wait,) = pod(deployments["llama-3-2-1b-0"])["initContainers"]
    assert "http://llama-3-2-3b-0:8000/health" in wait["command"][2]
    compile(wait["command"][2], "wait", "exec")
    assert services["llama-3-2-3b-0"]["spec"]["selector"] == {ENGINE_LABEL: "llama-3-2-3b-0"}
    assert "initContainers" not in pod(deployments["llama-3-2-3b-0"])
    assert "llama-3-2-1b-0" not in services


def test_a_models_service_has_the_pods_of_all_its_engines() -> None:
    found = made(MIXED)
    selector = of_kind(found, "Service")["llama-3-2-3b"]["spec"]["selector"]
    chosen = [
        name
        for name, each in of_kind(found, "Deployment").items()
        if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert chosen == ["llama-3-2-3b-0", "llama-3-2-3b-1"]
    assert selector == {MODEL_LABEL: "llama-3-2-3b"}


def test_every_pod_is_bound_to_its_node_and_replaced_rather_than_rolled() -> None:
    here = plan(whole("llama-3-8b", 0, 0), whole("llama-3-8b", 1, 2, 3, node="node-b"))
    deployments = of_kind(made(here), "Deployment")
    assert {pod(each)["nodeSelector"]["kubernetes.io/hostname"] for each in deployments.values()} == {
        "node-a",
        "node-b",
    }
    assert all(each["spec"]["strategy"] == {"type": "Recreate"} for each in deployments.values())
    assert "volumes" not in pod(deployments["llama-3-8b-0"])
    assert pod(deployments["llama-3-8b-1"])["containers"][0]["volumeMounts"] == [
        {"name": "shm", "mountPath": "/dev/shm"}
    ]
    assert pod(deployments["llama-3-8b-1"])["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}}
    ]


@pytest.mark.parametrize("sharing", ["dra", "mps"])
def test_a_model_called_vllm_gives_no_pod_a_variable_that_vllm_reads(sharing: str) -> None:
    found = made(plan(part("vllm", 0, 5, 0), part("vllm", 1, 5, 0)), sharing)
    assert "vllm" in of_kind(found, "Service")  # of which Kubernetes would make VLLM_PORT
    pods = [pod(each) for each in of_kind(found, "Deployment").values()]
    assert [each["enableServiceLinks"] for each in pods] == [False, False]


def test_every_container_asks_for_cpu_and_memory_and_has_no_limit_on_them() -> None:
    for sharing, of in (("dra", MIXED), ("mps", EQUAL)):
        for each in of_kind(made(of, sharing), "Deployment").values():
            for container in [*pod(each)["containers"], *pod(each).get("initContainers", [])]:
                assert set(container["resources"]["requests"]) == {"cpu", "memory"}
                assert not {"cpu", "memory"} & set(container["resources"].get("limits", {}))


def test_what_an_engine_asks_for_can_be_said() -> None:
    for each in of_kind(made(MIXED, cpu="500m", memory="24Gi"), "Deployment").values():
        assert pod(each)["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "24Gi"}


def test_one_late_answer_does_not_take_the_only_replica_out() -> None:
    for each in of_kind(made(MIXED), "Deployment").values():
        assert pod(each)["containers"][0]["readinessProbe"]["failureThreshold"] == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"cpu": "0"}, "--cpu: '0' is no number of cores"),
        ({"cpu": "two"}, "--cpu: 'two' is no number of cores"),
        ({"memory": "24"}, "--memory: '24' is no size"),
        ({"memory": "24GB"}, "--memory: '24GB' is no size"),
        ({"weights_claim": "My Claim"}, "--weights-claim: 'My Claim' is no name of an object"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(more: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(MIXED, **more)


def test_with_the_device_plugin_a_pod_asks_for_one_replica() -> None:
    for each in of_kind(made(EQUAL, "mps"), "Deployment").values():
        assert pod(each)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert "resourceClaims" not in pod(each)


def test_the_plugin_cuts_gpus_into_as_many_replicas_as_there_are_parts() -> None:
    servers = engines(EQUAL, NODES, EngineOptions())
    assert equal_parts(servers) == {"node-a": 2}
    mps = plugin_config(servers, "mps", namespace="gpu-operator")
    slicing = plugin_config(servers, "time-slicing", namespace="gpu-operator")
    assert mps is not None
    assert slicing is not None
    assert yaml.safe_load(mps["data"]["mps-2"])["sharing"]["mps"]["resources"] == [
        {"name": "nvidia.com/gpu", "replicas": 2}
    ]
    assert (
        yaml.safe_load(slicing["data"]["time-slicing-2"])["sharing"]["timeSlicing"]["failRequestsGreaterThanOne"]
        is True
    )
    assert plugin_config(engines(plan(whole("llama-3-8b", 0, 0)), NODES, EngineOptions()), "mps", namespace="x") is None


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (MIXED, "node-a has whole instances and parts"),
        (plan(part("llama-3.2-1b", 0, 5, 0), part("llama-3.2-3b", 0, 3, 1)), "node-a has parts of 0.3, 0.5 GPU"),
        (plan(part("llama-3.2-3b", 0, 3, 1)), "node-a has parts of 0.3 GPU"),
    ],
)
def test_parts_that_the_device_plugin_cannot_give_are_refused(of: Plan, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(of, "mps")


def test_an_unknown_way_of_sharing_is_refused() -> None:
    with pytest.raises(UsageError, match="dra, mps, time-slicing"):
        made(EQUAL, "hope")


def test_the_file_has_no_anchors_and_reads_back() -> None:
    found = made(MIXED)
    text = documents(found)
    assert "&id" not in text
    assert list(yaml.safe_load_all(text)) == found
