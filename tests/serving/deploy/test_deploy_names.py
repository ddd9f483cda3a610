"""Names that Kubernetes would refuse, or that two objects would share, are refused first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Plan
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.kubernetes import KubernetesOptions, Manifest, manifests
from tests.serving.deploy.plans import MIXED, NODES, part, plan


def made(of: Plan, options: KubernetesOptions, nodes: Sequence[Node] = NODES) -> list[Manifest]:
    return manifests(engines(of, nodes, EngineOptions()), options)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a.b", "a,b=c", "a" * 64])
def test_names_of_plans_and_namespaces(name: str) -> None:
    for options in (KubernetesOptions(name=name), KubernetesOptions(namespace=name)):
        with pytest.raises(UsageError, match="is no name"):
            made(MIXED, options)
    assert made(MIXED, KubernetesOptions(name="a" * 63, namespace="0-x"))


@pytest.mark.parametrize("name", ["Node", "a..b", "n_1", "n" * 64])
def test_names_of_nodes(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a node"):
        made(plan(part("m", 0, 5, 0, node=name)), KubernetesOptions(), [Node(name, "a100", ((0,),))])


def test_a_device_that_can_be_no_label() -> None:
    with pytest.raises(UsageError, match="the device 'a 100' can be no label"):
        made(MIXED, KubernetesOptions(devices={"node-a": "a 100"}))


def test_a_model_that_is_called_like_anothers_engine() -> None:
    with pytest.raises(UsageError, match="2 objects are Service m-0"):
        made(plan(part("m", 0, 5, 0), part("other", 0, 4, 0), part("m-0", 0, 5, 1)), KubernetesOptions())


def test_two_gpus_whose_claims_have_one_name() -> None:
    nodes = [Node("n-1", "a100", ((0,),)), Node("n.1", "a100", ((0,),))]
    with pytest.raises(UsageError, match=r"GPU 0 of n-1 and GPU 0 of n\.1 are both called gpu-n-1-0"):
        made(plan(part("m", 0, 5, 0, node="n-1"), part("m", 1, 5, 0, node="n.1")), KubernetesOptions(), nodes)
