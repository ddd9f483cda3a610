"""`headway plan manifests`, `compose`, `gateway`, `apply`: files that run a plan, a cluster that has what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from headway.serving.allocation.files import write_nodes, write_plan
from headway.serving.gateway.config_file import load_config, parse_config
from tests.fakes.kubernetes_api import api_server
from tests.serving.deploy.plans import EQUAL, MIXED, NODES, part, plan, whole

ENGINES = ("llama-3-2-1b-0", "llama-3-2-3b-0", "llama-3-2-3b-1", "llama-3-8b-0", "qwen2-5-1-5b-0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a plan in it."""
    monkeypatch.chdir(tmp_path)
    write_plan(Path("plan.yaml"), MIXED)
    write_plan(Path("equal.yaml"), EQUAL)
    write_plan(Path("clash.yaml"), plan(part("a", 0, 5, 0), part("a-0", 0, 5, 0)))
    write_nodes(Path("nodes.yaml"), NODES)
    return tmp_path


def documents(file: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = list(yaml.safe_load_all(Path(file).read_text()))
    return found


def files(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_manifests_and_the_gateways_file_are_written(says: Callable[..., str]) -> None:
    told = says("plan manifests -o k8s --namespace serving --weights llama-3-8b=meta-llama/Meta-Llama-3-8B")
    assert "note: vLLM would load llama-3.2-1b, which is neither" in told
    assert "would load llama-3-8b," not in told
    assert "--gateway-image IMAGE, or by headway gateway k8s/config/gateway.yaml in the cluster's network" in told
    assert {each["kind"] for each in documents("k8s/engines.yaml")} == {
        *("Deployment", "Service", "ResourceClaim", "ResourceClaimTemplate")
    }
    assert "meta-llama/Meta-Llama-3-8B" in Path("k8s/engines.yaml").read_text()
    assert {pool.models[0] for pool in load_config(Path("k8s/config/gateway.yaml")).pools} == {
        it.model for it in MIXED.instances
    }


@pytest.mark.parametrize("more", ["", " --gateway-image headway:1", " --plan equal.yaml --sharing mps"])
def test_all_that_kubectl_sees_in_the_folder_are_objects(says: Callable[..., str], more: str) -> None:
    says(f"plan manifests -o k8s{more}")
    seen = [
        path for path in Path("k8s").iterdir() if path.suffix in (".yaml", ".yml", ".json")
    ]  # it does not go deeper
    assert seen
    for path in seen:
        assert all(each["apiVersion"] and each["kind"] for each in documents(str(path)))


def test_a_gateway_in_the_cluster_and_what_it_leaves_open(says: Callable[..., str]) -> None:
    told = says("plan manifests -o k8s --gateway-image headway:1")
    assert "clients in the cluster: http://gateway-plan.default:8080/v1" in told
    assert "without a key" in told
    assert "journal is lost with its pod (emptyDir)" in told
    assert "--gateway-image IMAGE" not in told
    (config,) = (each["data"] for each in documents("k8s/gateway.yaml") if each["kind"] == "ConfigMap")
    assert isinstance(config, dict)
    assert parse_config(config["gateway.yaml"], where="test").pools
    told = says("plan manifests -o k8s --gateway-image headway:1 --gateway-keys keys --journal-claim journal")
    assert "without a key" not in told
    assert "journal is lost" not in told


@pytest.mark.parametrize("verb", ["manifests", "compose"])
def test_how_long_requests_may_be_is_said(says: Callable[..., str], verb: str) -> None:
    assert "tokens" not in says(f"plan {verb} -o d --node node-a" if verb == "compose" else f"plan {verb} -o d")
    write_plan(
        Path("small.yaml"), plan(part("llama-3.2-1b", 0, 1, 0), part("llama-3.2-1b", 1, 1, 0), part("m", 0, 4, 1))
    )
    line = f"plan {verb} -o d --plan small.yaml"
    told = says(line)
    assert "note: each of llama-3-2-1b-0, llama-3-2-1b-1 takes no request of more than 127232 tokens" in told
    assert "note: m-0 has a cache of unknown size" in told
    text = Path("d/engines.yaml" if verb == "manifests" else "d/compose.yaml").read_text()
    assert text.count("--max-model-len") == 2
    assert "note: m-0 has a cache of 835072 tokens" in says(f"{line} --known-as m=llama-3.2-1b")
    told = says(f"{line} --arg=--max-model-len=8192")
    assert "takes no request" not in told
    assert "has a cache" not in told
    assert "holds, 127232 tokens" in says(f"{line} --arg=--max-model-len=128K", 2)


def test_files_of_another_way_go_and_those_of_others_stay(says: Callable[..., str]) -> None:
    says("plan manifests -o k8s --plan equal.yaml --sharing mps --gateway-image headway:1")
    Path("k8s/mine.yaml").write_text("kind: Mine\n")
    assert files("k8s") == {"engines.yaml", "gateway.yaml", "device-plugin.yaml", "mine.yaml"}
    told = says("plan manifests -o k8s --plan equal.yaml")
    assert "removed k8s/device-plugin.yaml, which this plan does not have" in told
    assert "removed k8s/gateway.yaml" in told
    assert files("k8s") == {"engines.yaml", "config/gateway.yaml", "mine.yaml"}
    Path("k8s/device-plugin.yaml").write_text("kind: Mine\n")
    assert "removed" not in says("plan manifests -o k8s --plan equal.yaml")
    assert "device-plugin.yaml" in files("k8s")


def test_the_plan_is_not_written_over(says: Callable[..., str]) -> None:
    before = Path("plan.yaml").read_text()
    says("plan manifests -o .")
    assert Path("plan.yaml").read_text() == before
    Path("plan.yaml").rename("engines.yaml")
    error = says("plan manifests -o . --plan engines.yaml", 2)
    assert "engines.yaml: is read here and would be written over" in error
    assert Path("engines.yaml").read_text() == before


@pytest.mark.parametrize(
    ("line", "file", "verb"),
    [
        ("plan manifests -o d", "d/engines.yaml", "manifests"),
        ("plan manifests -o d --gateway-image x", "d/gateway.yaml", "manifests"),
        ("plan compose -o d", "d/gateway.yaml", "compose"),
        ("plan gateway -o d/g.yaml " + " ".join(f"--url {name}=http://h" for name in ENGINES), "d/g.yaml", "gateway"),
    ],
)
def test_a_file_of_somebody_else_is_not_written_over(says: Callable[..., str], line: str, file: str, verb: str) -> None:
    Path("d").mkdir()
    Path(file).write_text("pools: mine\n")
    assert f"{file}: is there, and was not written by headway plan {verb}" in says(line, 2)
    assert files("d") == {Path(file).name}, "the others were written before it was refused"
    assert Path(file).read_text() == "pools: mine\n"
    Path(file).unlink()
    says(line)
    says(line)


def test_a_compose_file_and_a_gateway_that_knows_its_ports(says: Callable[..., str]) -> None:
    says("plan compose -o dc --port 9100")
    services = yaml.safe_load(Path("dc/compose.yaml").read_text())["services"]
    published = {each["ports"][0].split(":")[1] for each in services.values() if "ports" in each}
    pools = load_config(Path("dc/gateway.yaml")).pools
    assert {replica.url.rsplit(":", 1)[1] for pool in pools for replica in pool.replicas} == published
    assert min(published) == "9100"


def test_a_compose_file_of_one_of_two_machines(says: Callable[..., str]) -> None:
    write_plan(Path("two.yaml"), plan(whole("llama-3-8b", 0, 0), whole("llama-3-8b", 1, 0, node="node-b")))
    assert "the plan is on 2 machines" in says("plan compose -o dc --plan two.yaml", 2)
    says("plan compose -o dc --plan two.yaml --node node-b")
    assert list(yaml.safe_load(Path("dc/compose.yaml").read_text())["services"]) == ["llama-3-8b-1"]
    assert "--node: the plan has nothing on node-c" in says("plan compose -o dc --plan two.yaml --node node-c", 2)


def test_models_on_other_machines_are_left_out_and_that_is_said(says: Callable[..., str]) -> None:
    here, there = whole("org/here", 0, 0), whole("there", 0, 0, node="node-b")
    write_plan(Path("two.yaml"), plan(here, whole("both", 0, 1), there, whole("both", 1, 1, node="node-b")))
    line = "plan compose -o dc --plan two.yaml --node node-a"
    told = says(line)
    assert "note: neither file has there, which the plan has on other machines only\n" in told
    assert "would load there" not in told
    assert "there-0" not in told, "nothing is said of its cache either"
    assert "note: vLLM would load both, which is neither" in told
    assert {pool.models[0] for pool in load_config(Path("dc/gateway.yaml")).pools} == {"org/here", "both"}
    told = says(f"{line} --weights there=org/there --weights nope=org/nope")
    assert "--weights names nope, which the plan does not have" in told, "and it has the other one"
    write_plan(Path("one.yaml"), plan(here))
    assert "neither file" not in says("plan compose -o dc --plan one.yaml --node node-a")


def test_engines_that_were_started_otherwise(says: Callable[..., str]) -> None:
    assert "--url: says nothing of llama-3-2-1b-0, llama-3-2-3b-0" in says(
        "plan gateway --url llama-3-8b-0=http://h:1", 2
    )
    line = "plan gateway " + " ".join(f"--url {name}=http://h:{at}" for at, name in enumerate(ENGINES, start=1))
    error = says(f"{line} --url nope=http://h", 2)
    assert f"--url: the plan has no engine nope (it has {', '.join(ENGINES)})" in error
    assert not Path("gateway.yaml").exists()
    says(line)
    assert {replica.url for pool in load_config(Path("gateway.yaml")).pools for replica in pool.replicas} == {
        f"http://h:{at}" for at in range(1, len(ENGINES) + 1)
    }


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("nonsense", "'nonsense' is not an address like http://host:8000"),
        ("ftp://h", "'ftp://h' is not an address like http://host:8000"),
        ("http://me:secret@h:1", "the address of h has a name or password: use engine_key_env"),
        ("http://h:1?a=b", "'http://h:1?a=b': an address has no query or fragment"),
        ("http://h:port", "Port could not be cast to integer value as 'port'"),
    ],
)
def test_an_address_that_is_none_is_told_by_its_engine(says: Callable[..., str], url: str, what: str) -> None:
    others = " ".join(f"--url {name}=http://h" for name in ENGINES[1:])
    assert says(f"plan gateway {others} --url {ENGINES[0]}={url}", 2) == f"headway: --url {ENGINES[0]}: {what}\n"
    assert not Path("gateway.yaml").exists()


def test_ports_that_there_are_not(says: Callable[..., str]) -> None:
    for port in (0, 65536):
        assert f"--port: {port} is not from 1 to 65535\n" in says(f"plan compose -o dc --port {port}", 2)
    error = says("plan compose -o dc --port 65532", 2)
    assert error == "headway: --port: 5 engines from 65532 on would need ports above 65535\n"
    says("plan compose -o dc --port 65531")
    assert "127.0.0.1:65535:" in Path("dc/compose.yaml").read_text()


def test_applying_is_a_dry_run_until_it_is_meant(says: Callable[..., str], folder: Path) -> None:
    with api_server(folder) as api:
        line = f"plan apply --kubeconfig {api.kubeconfig} --namespace serving"
        assert "nothing was done: add --yes" in says(line)
        assert not api.objects
        assert "changed in serving" in says(f"{line} --yes")
        assert api.names("deployments") == sorted(ENGINES)
        assert "0 objects would change" in says(line)


def test_what_was_written_is_applied_as_it_is(says: Callable[..., str], folder: Path) -> None:
    says("plan manifests -o k8s --namespace serving --name mine --weights llama-3-8b=meta-llama/Meta-Llama-3-8B")
    with api_server(folder) as api:
        says(f"plan apply --kubeconfig {api.kubeconfig} --from k8s --yes")
        (large,) = (body for path, body in api.objects.items() if path.endswith("serving/deployments/llama-3-8b-0"))
        assert "meta-llama/Meta-Llama-3-8B" in str(large)
        assert "0 objects would change in serving" in says(f"plan apply --kubeconfig {api.kubeconfig} --from k8s")
        error = says(f"plan apply --kubeconfig {api.kubeconfig} --namespace serving --name other --yes", 2)
        assert "is of the plan 'mine', not of 'other'" in error


def test_a_gateway_that_was_written_is_applied_too(says: Callable[..., str], folder: Path) -> None:
    says("plan manifests -o k8s --namespace serving --gateway-image headway:1")
    with api_server(folder) as api:
        says(f"plan apply --kubeconfig {api.kubeconfig} --from k8s --yes")
        assert api.names("roles") == ["gateway-plan"]
        line = f"plan apply --kubeconfig {api.kubeconfig} --namespace serving"
        assert "0 objects would change" in says(f"{line} --gateway-image headway:1")
        assert "delete Role gateway-plan" in says(line)
        Path("k8s/gateway.yaml").write_text("pools: []\n")
        assert "delete Role gateway-plan" in says(f"plan apply --kubeconfig {api.kubeconfig} --from k8s")


def test_files_of_two_plans_are_refused(says: Callable[..., str]) -> None:
    says("plan manifests -o k8s --gateway-image headway:1 --name a")
    gateway = Path("k8s/gateway.yaml").read_text()
    says("plan manifests -o k8s --gateway-image headway:1 --name b")
    Path("k8s/gateway.yaml").write_text(gateway)
    assert "k8s: its files are of several plans: a in default, b in default" in says("plan apply --from k8s", 2)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("plan apply --from k8s --weights a=b", "--weights: --from k8s has it already"),
        ("plan apply --from k8s --arg=--x", "--arg: --from k8s has it already"),
        ("plan apply --from k8s --gateway-image x", "--gateway-image: --from k8s has it already"),
        ("plan apply --from k8s --memory 1Gi", "--memory: --from k8s has it already"),
        ("plan apply --from k8s --namespace other", "--namespace: k8s is for default, not for other"),
        ("plan apply --from k9s", "k9s/engines.yaml: cannot read it"),
        ("plan apply --from k8s --kubeconfig nope", "--kubeconfig: there is no file nope"),
        ("plan nodes --cluster --kubeconfig nope", "--kubeconfig: there is no file nope"),
        ("plan apply --namespace a,b", "--namespace: 'a,b' is no name"),
        ("plan manifests -o k9s --name A_b", "'A_b' is no name"),
        ("plan manifests -o k9s --namespace a.b", "--namespace: 'a.b' is no name"),
        ("plan compose -o k9s --name A_b", "--name: 'A_b' is no name"),
        ("plan manifests -o k9s --policy foo", "--policy: unknown policy 'foo'"),
        ("plan compose -o k9s --policy foo", "--policy: unknown policy 'foo'"),
        (
            f"plan gateway -o k9s {' '.join(f'--url {name}=http://h' for name in ENGINES)} --policy foo",
            "--policy: unkn",
        ),
        ("plan manifests -o k9s --image=", "--image: '' is no name of an image"),
        ("plan compose -o k9s --image=", "--image: '' is no name of an image"),
        ("plan manifests -o k9s --arg foo", "--arg: 'foo' is no option"),
        ("plan manifests -o k9s --arg=--gpu-memory-utilization=0.9", "--arg: --gpu-memory-utilization=0.9 is not for"),
        ("plan compose -o k9s --arg=-tp --arg=2", "--arg: -tp is not for you to say"),
        ("plan manifests -o k9s --cpu none", "--cpu: 'none' is no number of cores"),
        ("plan manifests -o k9s --memory 24", "--memory: '24' is no size"),
        ("plan manifests -o k9s --gateway-keys x", "--gateway-keys: goes with --gateway-image"),
        ("plan manifests -o k9s --journal-claim x", "--journal-claim: goes with --gateway-image"),
        ("plan manifests -o k9s --plan clash.yaml", "a-0 and number 0 of a are both called a-0"),
        ("plan compose -o k9s --plan clash.yaml", "a-0 and number 0 of a are both called a-0"),
        ("plan manifests -o k9s --weights a", "--weights: 'a' is not NAME=VALUE"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(says: Callable[..., str], line: str, what: str) -> None:
    says("plan manifests -o k8s")
    error = says(line, 2)
    assert what in error
    assert error.count("\n") == 1
    assert not Path("k9s").exists()


def test_a_cluster_that_does_not_answer_is_no_mistake_of_the_user(says: Callable[..., str], folder: Path) -> None:
    with api_server(folder) as api:
        kubeconfig = api.kubeconfig
    assert "cannot read ResourceClaim" in says(f"plan apply --kubeconfig {kubeconfig}", 1)
    assert "cannot list nodes" in says(f"plan nodes --cluster --kubeconfig {kubeconfig} -o n.yaml", 1)


def test_what_is_applied_from_a_plan_is_what_is_written(says: Callable[..., str], folder: Path) -> None:
    options = "--gateway-image headway:1 --cpu 3 --weights-claim w --name other --weights llama-3-8b=org/eight"
    options += " --namespace serving"
    says(f"plan manifests -o k8s {options}")
    with api_server(folder) as api:
        says(f"plan apply --kubeconfig {api.kubeconfig} --yes {options}")
        told = says(f"plan apply --from k8s --kubeconfig {api.kubeconfig}")
    assert "\n0 objects would change in serving" in told


@pytest.mark.parametrize("name", ["Big_Box", "-", "a..b", "n" * 64])
def test_a_machine_whose_name_kubernetes_does_not_take_goes_as_far_as_a_compose_file(
    says: Callable[..., str], name: str
) -> None:
    write_nodes(Path("own.yaml"), [replace(NODES[0], name=name)])
    placed = (part("llama-3.2-3b", 0, 5, 0), part("llama-3.2-1b", 0, 5, 0))
    write_plan(Path("own-plan.yaml"), plan(*(replace(it, node=name) for it in placed)))
    own = "--plan own-plan.yaml --nodes own.yaml"
    for line in ("plan manifests -o k9s", "plan apply --kubeconfig nope"):
        error = says(f"{line} {own}", 2)
        assert error.startswith(f"headway: own.yaml: {name!r} is no name of a node in Kubernetes (63 small letters")
        assert error.count("\n") == 1
    assert not Path("k9s").exists()
    assert name in says("plan show own-plan.yaml --nodes own.yaml")
    assert "wrote c/compose.yaml" in says(f"plan compose -o c --node={name} {own}")


def test_a_name_that_only_the_plan_has_is_the_plans_mistake(says: Callable[..., str]) -> None:
    placed = (part("llama-3.2-3b", 0, 5, 0), part("llama-3.2-1b", 0, 5, 0))
    write_plan(Path("own-plan.yaml"), plan(*(replace(it, node="Big_Box") for it in placed)))
    error = says("plan manifests -o k9s --plan own-plan.yaml", 2)
    assert error.startswith("headway: own-plan.yaml: 'Big_Box' is no name of a node in Kubernetes")


def test_only_the_machines_of_the_plan_need_such_names(says: Callable[..., str]) -> None:
    write_nodes(Path("nodes.yaml"), [*NODES, replace(NODES[0], name="Big_Box")])
    assert "wrote k8s/engines.yaml" in says("plan manifests -o k8s")


def test_a_machine_has_a_name(says: Callable[..., str]) -> None:
    text = Path("nodes.yaml").read_text()
    Path("nameless.yaml").write_text(text.replace("node-b", "' '"))
    for line in ("plan compose -o c --nodes nameless.yaml", "plan show plan.yaml --nodes nameless.yaml"):
        assert says(line, 2) == "headway: nameless.yaml: nodes.1.name: is no name of a machine\n"
