"""The gateway in the cluster: what the client knows of its objects, what it may do, what its pod reads and writes."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from headway.errors import UsageError
from headway.serving.allocation.types import Plan
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.gateway_objects import CONFIG_HASH, GatewayOptions, gateway_objects
from headway.serving.deploy.kubernetes import KubernetesOptions, manifests
from headway.serving.deploy.objects import KINDS, Manifest
from headway.serving.gateway.config import Config
from headway.serving.gateway.config_file import parse_config
from tests.serving.deploy.client_models import through_the_client
from tests.serving.deploy.plans import MIXED, NODES, part, plan, whole

FULL = GatewayOptions("registry.example/headway:1", keys_secret="keys", journal_claim="journal")


def made(gateway: GatewayOptions = FULL, of: Plan = MIXED, name: str = "mine") -> dict[str, Manifest]:
    servers = engines(of, NODES, EngineOptions())
    found = gateway_objects(servers, KubernetesOptions(name=name, namespace="serving"), gateway)
    return {each["kind"]: each for each in found}


def pod(found: dict[str, Manifest]) -> Manifest:
    spec: Manifest = found["Deployment"]["spec"]["template"]["spec"]
    return spec


def config(found: dict[str, Manifest]) -> Config:
    return parse_config(found["ConfigMap"]["data"]["gateway.yaml"], where="test")


@pytest.mark.parametrize("gateway", [FULL, GatewayOptions("headway")])
def test_no_field_is_unknown_to_the_clients_models(gateway: GatewayOptions) -> None:
    for manifest in made(gateway).values():
        assert through_the_client(manifest) == manifest
        assert manifest["apiVersion"] == KINDS[manifest["kind"]][0]
        assert manifest["metadata"]["name"] == "gateway-mine"
        assert manifest["metadata"]["namespace"] == "serving"


def test_its_account_may_read_the_slices_that_it_follows_and_nothing_else() -> None:
    found = made()
    (rule,) = found["Role"]["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    binding = found["RoleBinding"]
    assert binding["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", pod(found)["serviceAccountName"])
    assert {source.namespace for pool in config(found).pools for source in pool.discovery} == {"serving"}  # type: ignore[union-attr]


def test_it_follows_services_that_are_there() -> None:
    servers = engines(MIXED, NODES, EngineOptions())
    services = {
        each["metadata"]["name"]
        for each in manifests(servers, KubernetesOptions(namespace="serving"))
        if each["kind"] == "Service"
    }
    assert {source.service for pool in config(made()).pools for source in pool.discovery} <= services  # type: ignore[union-attr]


def test_what_it_reads_and_writes_is_mounted() -> None:
    found = made()
    (container,) = pod(found)["containers"]
    mounts = {PurePosixPath(each["mountPath"]): each for each in container["volumeMounts"]}
    assert {each["name"] for each in mounts.values()} == {each["name"] for each in pod(found)["volumes"]}
    read = config(found)
    assert read.journal is not None
    assert not mounts[PurePosixPath(read.journal.path).parent].get("readOnly")
    assert read.keys_file is not None
    assert mounts[PurePosixPath(read.keys_file).parent]["name"] == "keys"
    assert mounts[PurePosixPath(container["command"][-1]).parent]["name"] == "config"


def test_services_are_no_variables_of_its_pod() -> None:
    assert pod(made())["enableServiceLinks"] is False


def test_its_service_reaches_its_pod() -> None:
    found = made()
    template = found["Deployment"]["spec"]["template"]
    selector = found["Service"]["spec"]["selector"]
    assert selector.items() <= template["metadata"]["labels"].items()
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == selector
    (port,) = pod(found)["containers"][0]["ports"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == config(found).listen.port
    assert config(found).listen.host == "0.0.0.0"
    assert pod(found)["terminationGracePeriodSeconds"] > config(found).timeouts.drain_s


def test_its_selector_is_no_engines() -> None:
    labels = made()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    servers = engines(MIXED, NODES, EngineOptions())
    for each in manifests(servers, KubernetesOptions(name="mine", namespace="serving")):
        if each["kind"] == "Service":
            assert not each["spec"]["selector"].items() <= labels.items()


def test_without_a_claim_the_journal_is_on_the_pods_own_volume_which_has_a_limit() -> None:
    found = made(GatewayOptions("headway"))
    volumes: dict[str, Any] = {each["name"]: each for each in pod(found)["volumes"]}
    assert volumes["journal"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert "keys" not in volumes
    assert config(found).keys_file is None


def test_two_pods_never_write_one_journal() -> None:
    assert made()["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_a_new_configuration_is_a_new_pod_and_an_old_one_is_not() -> None:
    def hashed(found: dict[str, Manifest]) -> str:
        text: str = found["Deployment"]["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH]
        return text

    assert hashed(made()) == hashed(made())
    assert hashed(made()) != hashed(made(of=plan(whole("llama-3-8b", 0, 0))))


@pytest.mark.parametrize(
    ("gateway", "says"),
    [
        (GatewayOptions("a b"), "--gateway-image: 'a b' is no name of an image"),
        (GatewayOptions("a", policy="foo"), "--policy: unknown policy 'foo'"),
        (GatewayOptions("a", keys_secret="A_b"), "--gateway-keys: 'A_b' is no name of an object"),
        (GatewayOptions("a", journal_claim="A_b"), "--journal-claim: 'A_b' is no name of an object"),
    ],
)
def test_what_can_be_no_gateway_is_refused(gateway: GatewayOptions, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(gateway)


def test_its_name_must_be_its_own_and_fit() -> None:
    with pytest.raises(UsageError, match="the gateway and a model are both called gateway-mine"):
        made(of=plan(part("gateway.mine", 0, 5, 0)))
    with pytest.raises(UsageError, match="--name"):
        made(name="a" * 60)
