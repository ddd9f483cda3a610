"""Applying a plan: the real client against a server that knows server-side apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import HeadwayError, UsageError
from headway.serving.allocation.types import Plan
from headway.serving.deploy.apply import Cluster, Reach
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.gateway_objects import GatewayOptions, gateway_objects
from headway.serving.deploy.kubernetes import KubernetesOptions, manifests
from headway.serving.deploy.objects import GATEWAY_KINDS, Manifest
from tests.fakes.kubernetes_api import ApiServer, api_server
from tests.serving.deploy.plans import MIXED, NODES, part, plan


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    """A cluster without anything in it."""
    with api_server(tmp_path) as server:
        yield server


@pytest.fixture
def cluster(api: ApiServer) -> Iterator[Cluster]:
    """Its namespace, as the kubeconfig says."""
    found = Cluster(Reach(api.kubeconfig))
    yield found
    found.close()


def made(of: Plan, image: str = "vllm:1") -> list[Manifest]:
    options = KubernetesOptions(namespace="serving", image=image)
    return manifests(engines(of, NODES, EngineOptions(image=image)), options)


def test_the_namespace_is_that_of_the_context_or_the_one_that_is_asked_for(api: ApiServer) -> None:
    assert Cluster(Reach(api.kubeconfig)).namespace == "serving"
    assert Cluster(Reach(api.kubeconfig), "other").namespace == "other"


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(api: ApiServer, cluster: Cluster) -> None:
    changes = cluster.difference(made(MIXED), "plan")
    assert {change.action for change in changes} == {"create"}
    assert len(changes) == len(made(MIXED))
    assert not api.objects
    assert not api.written()


def test_what_is_applied_is_there_and_then_nothing_changes(api: ApiServer, cluster: Cluster) -> None:
    assert {change.action for change in cluster.apply(made(MIXED), "plan")} == {"create"}
    assert api.names("deployments") == sorted(it.name for it in engines(MIXED, NODES, EngineOptions()))
    assert api.names("resourceclaims") == ["gpu-node-a-2", "gpu-node-a-3"]
    assert {change.action for change in cluster.difference(made(MIXED), "plan")} == {"keep"}
    assert {change.action for change in cluster.apply(made(MIXED), "plan")} == {"keep"}


def test_a_changed_object_is_shown_by_its_lines(cluster: Cluster) -> None:
    list(cluster.apply(made(MIXED), "plan"))
    changed = [change for change in cluster.difference(made(MIXED, "vllm:2"), "plan") if change.action == "change"]
    assert {change.kind for change in changed} == {"Deployment"}
    lines = next(change.diff for change in changed if change.name == "llama-3-8b-0")
    assert [line.replace(" ", "") for line in lines if line[0] in "+-"] == ["-image:vllm:1", "+image:vllm:2"]


def test_what_a_plan_no_longer_has_is_deleted_before_anything_is_made(api: ApiServer, cluster: Cluster) -> None:
    list(cluster.apply(made(MIXED), "plan"))
    api.calls.clear()
    smaller = made(plan(part("llama-3.2-3b", 0, 6, 2), part("new", 0, 4, 2)))
    told = [(change.action, change.kind, change.name) for change in cluster.difference(smaller, "plan")]
    assert ("delete", "Deployment", "llama-3-8b-0") in told
    assert ("delete", "ResourceClaim", "gpu-node-a-3") in told
    assert not api.written()
    done = [(change.action, change.kind, change.name) for change in cluster.apply(smaller, "plan")]
    assert [each for each in done if each[0] != "keep"] == [each for each in told if each[0] != "keep"]
    assert api.names("deployments") == ["llama-3-2-3b-0", "new-0"]
    methods = [method for method, _, _ in api.written()]
    assert methods == sorted(methods), "a deletion came after something was made"


def test_what_others_made_stays(api: ApiServer, cluster: Cluster) -> None:
    path = "/apis/apps/v1/namespaces/serving/deployments/theirs"
    api.objects[path] = {"metadata": {"name": "theirs", "labels": {}}}
    list(cluster.apply(made(MIXED), "other-plan"))
    assert not [change for change in cluster.difference(made(MIXED), "plan") if change.action == "delete"]
    assert path in api.objects


@pytest.mark.parametrize("doing", ["difference", "apply"])
def test_another_plans_objects_are_refused_before_anything_is_done(
    api: ApiServer, cluster: Cluster, doing: str
) -> None:
    list(cluster.apply(made(MIXED), "plan"))
    api.calls.clear()
    with pytest.raises(UsageError, match=r"in serving is of the plan 'plan', not of 'b'"):
        list(getattr(cluster, doing)(made(MIXED), "b"))
    assert not api.written()


def test_a_conflict_names_the_object_and_what_the_server_says(api: ApiServer, cluster: Cluster) -> None:
    api.refuse.add("llama-3-8b-0")
    with pytest.raises(HeadwayError, match=r"cannot apply Deployment llama-3-8b-0 in serving: 409: conflict with helm"):
        cluster.difference(made(MIXED), "plan")


def test_a_cluster_without_dra_is_told_what_to_do(api: ApiServer, cluster: Cluster) -> None:
    api.unknown.append("/apis/resource.k8s.io")
    with pytest.raises(HeadwayError, match=r"ResourceClaim.*1\.34; or share with --sharing mps"):
        cluster.difference(made(MIXED), "plan")


def test_a_cluster_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with api_server(tmp_path) as api:
        reach = Reach(api.kubeconfig)
    with pytest.raises(HeadwayError, match="cannot read"):
        Cluster(reach).difference(made(MIXED), "plan")


def test_no_kubeconfig_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--kubeconfig: there is no file .*/none$"):
        Cluster(Reach(tmp_path / "none"))
    (tmp_path / "empty").write_text("")
    with pytest.raises(
        UsageError, match=r"^--kubeconfig: no usable kubeconfig: .* \(--kubeconfig FILE, or run in a pod\)$"
    ):
        Cluster(Reach(tmp_path / "empty"))


def with_gateway(of: Plan, image: str = "gw:1") -> list[Manifest]:
    servers = engines(of, NODES, EngineOptions())
    options = KubernetesOptions(namespace="serving", image="vllm:1")
    return [*manifests(servers, options), *gateway_objects(servers, options, GatewayOptions(image))]


def test_a_gateway_comes_with_its_plan_and_goes_with_it(api: ApiServer, cluster: Cluster) -> None:
    list(cluster.apply(with_gateway(MIXED), "plan"))
    for plural in ("serviceaccounts", "roles", "rolebindings", "configmaps"):
        assert api.names(plural) == ["gateway-plan"]
    assert {change.action for change in cluster.difference(with_gateway(MIXED), "plan")} == {"keep"}
    gone = [change for change in cluster.apply(made(MIXED), "plan") if change.action != "keep"]
    assert {change.action for change in gone} == {"delete"}
    assert {change.name for change in gone} == {"gateway-plan"}
    kinds = [change.kind for change in gone]
    assert sorted(kinds) == ["ConfigMap", "Deployment", "Role", "RoleBinding", "Service", "ServiceAccount"]
    assert kinds.index("Deployment") > max(map(kinds.index, GATEWAY_KINDS)), "what is left could not be found again"
    assert not [path for path in api.objects if path.endswith("/gateway-plan")]


def test_a_changed_configuration_is_shown_by_its_lines(cluster: Cluster) -> None:
    list(cluster.apply(with_gateway(MIXED), "plan"))
    servers = engines(MIXED, NODES, EngineOptions())
    options = KubernetesOptions(namespace="serving", image="vllm:1")
    other = [*manifests(servers, options), *gateway_objects(servers, options, GatewayOptions("gw:1", policy="prefix"))]
    (config,) = [change for change in cluster.difference(other, "plan") if change.kind == "ConfigMap"]
    changed = [line.replace(" ", "") for line in config.diff if line[0] in "+-"]
    assert changed == ["-policy:learned", "+policy:prefix"] * 4


def test_without_a_gateway_nobody_needs_to_know_of_roles(api: ApiServer, cluster: Cluster) -> None:
    api.forbidden |= {"roles", "rolebindings", "serviceaccounts"}
    list(cluster.apply(made(MIXED), "plan"))
    assert api.names("deployments")
    with pytest.raises(HeadwayError, match=r"cannot read ServiceAccount .*: 403: .* is forbidden"):
        cluster.difference(with_gateway(MIXED), "plan")


def test_labels_of_nodes(api: ApiServer, cluster: Cluster) -> None:
    api.labels = {"n1": {"nvidia.com/gpu.count": "8"}, "n2": {}}
    assert cluster.node_labels() == api.labels
