"""Names that Kubernetes would refuse, or that two objects would share, are refused first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Plan
from headway.serving.deploy.compose import compose
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.kubernetes import KubernetesOptions, manifests
from headway.serving.deploy.names import check_image
from headway.serving.deploy.objects import Manifest
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
    both = plan(part("m", 0, 5, 0), part("other", 0, 4, 0), part("m-0", 0, 5, 1))
    with pytest.raises(UsageError, match=r"m-0 and number 0 of m are both called m-0"):
        engines(both, NODES, EngineOptions())


@pytest.mark.parametrize(
    "image", ["vllm", "vllm/vllm-openai:v0.26.0", "host.example:5000/a/b_c:1", "a/b@sha256:" + "0f" * 32]
)
def test_names_of_images(image: str) -> None:
    assert check_image(image, where="--image") == image


@pytest.mark.parametrize("image", ["", " ", "a b", "A/B:", "vllm:", "vllm:-x", "-vllm", "a//b", "a/b@sha256:1", "a\n"])
def test_what_is_no_image_is_refused(image: str) -> None:
    servers = engines(MIXED, NODES, EngineOptions())
    with pytest.raises(UsageError, match=r"--image: .* is no name of an image"):
        manifests(servers, KubernetesOptions(image=image))
    with pytest.raises(UsageError, match=r"--image: .* is no name of an image"):
        compose(servers, name="plan", image=image)


def test_two_gpus_whose_claims_have_one_name() -> None:
    nodes = [Node("n-1", "a100", ((0,),)), Node("n.1", "a100", ((0,),))]
    with pytest.raises(UsageError, match=r"GPU 0 of n-1 and GPU 0 of n\.1 are both called gpu-n-1-0"):
        made(plan(part("m", 0, 5, 0, node="n-1"), part("m", 1, 5, 0, node="n.1")), KubernetesOptions(), nodes)
