"""ASTRA-sim's results beside ours: `python -m bench.astra --astra-sim DIR --out FILE`. Prints the tables of the docs.

DIR is a checkout of astra-sim/astra-sim with its analytical backend that knows congestion built. Its own example inputs
are run, and variants of them (other algorithms, topologies and sizes). Columns: cycles (ns) of ASTRA-sim; then our
time over its, with its algorithms stored and forwarded, with them cut through, and with our plan of the same name in
rounds, as a fluid and in pieces. If its backend that knows no congestion is built too, networks of several dimensions
follow, which only that one runs. No part of ASTRA-sim is needed otherwise.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.grid_script import as_script
from headway.errors import HeadwayError, UsageError
from headway.sim.execution.collective import Execution
from headway.sim.formats.astra_network import read_network
from headway.sim.formats.astra_system import read_system
from headway.sim.formats.chakra import CommKind, NodeKind, TraceNode, read_traces
from headway.sim.formats.chakra_write import encode_trace
from headway.sim.traces.astra import run_astra
from headway.sim.traces.messages import Forwarding

BINARY = "build/astra_analytical/build/bin/AstraSim_Analytical_Congestion_Aware"
UNAWARE = "build/astra_analytical/build/bin/AstraSim_Analytical_Congestion_Unaware"
NPUS = (4, 8, 16)
TOPOLOGIES = ("Ring", "Switch", "FullyConnected")
ALGORITHMS = ("ring", "direct", "halvingDoubling", "doubleBinaryTree")
LARGE_MIB = 64
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """One run: the files that both read."""

    label: str
    prefix: Path
    network: Path
    system: Path


@dataclass(frozen=True, slots=True)
class Row:
    """Nanoseconds; None where that cannot run it."""

    label: str
    theirs: float
    store: float
    cut_through: float
    rounds: float | None = None
    streams: float | None = None
    pieces: float | None = None


def theirs(checkout: Path, inputs: Inputs, binary: str = BINARY) -> float:
    """Cycles of the last NPU to finish, as ASTRA-sim prints them."""
    memory = checkout / "examples/remote_memory/analytical/no_memory_expansion.json"
    with tempfile.TemporaryDirectory() as folder:  # it writes logs where it runs
        done = subprocess.run(
            [
                str(checkout / binary),
                f"--workload-configuration={inputs.prefix}",
                f"--system-configuration={inputs.system}",
                f"--network-configuration={inputs.network}",
                f"--remote-memory-configuration={memory}",
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    cycles = [int(number) for number in re.findall(r"finished, (\d+) cycles", done.stdout)]
    if not cycles:
        raise HeadwayError(f"{inputs.label}: ASTRA-sim ended with {done.returncode} and no result")
    return float(max(cycles))


def ours_ns(
    inputs: Inputs,
    *,
    forwarding: Forwarding = Forwarding.CUT_THROUGH,
    plan: str | None = None,
    execution: Execution = Execution.PIECES,
) -> float:
    """The end of the last NPU."""
    network = read_network(inputs.network)
    result = run_astra(
        read_traces(inputs.prefix, network.npus),
        network,
        read_system(inputs.system),
        forwarding=forwarding,
        plan=plan,
        execution=execution,
    )
    return result.end_s * 1e9


def compared(checkout: Path, inputs: Inputs, plan: str | None) -> Row:
    """All columns; those of plans only where we have one of the algorithm's name."""
    planned = {
        each.value: ours_ns(inputs, plan=plan, execution=each) if plan is not None else None for each in Execution
    }
    return Row(
        inputs.label,
        theirs(checkout, inputs),
        ours_ns(inputs, forwarding=Forwarding.STORE),
        ours_ns(inputs),
        planned["rounds"],
        planned["streams"],
        planned["pieces"],
    )


def examples(checkout: Path, folder: Path) -> Iterator[Inputs]:
    """What comes with ASTRA-sim, as it is: three examples, and its regression test."""
    root = checkout / "examples"
    micro, networks = root / "workload/microbenchmarks", root / "network/analytical"
    systems = root / "system/native_collectives"
    rings = systems / "Ring_4chunks.json"
    yield Inputs(
        "Ring_allgather_16npus", micro / "all_gather/16npus_1MB/all_gather", networks / "Ring_16npus.yml", rings
    )
    yield Inputs(
        "HGX-H100-validated",
        micro / "all_reduce/8npus_1MB/all_reduce",
        networks / "HGX-H100-validated.yml",
        systems / "HGX-H100-validated.json",
    )
    custom = next(iter(root.glob("**/custom_ring_allreduce_8npus_1MB*")), None) or next(
        iter(path.parent for path in root.glob("**/custom_allreduce.0.et")), None
    )
    if custom is not None:
        prefix = next(custom.glob("*.0.et"))
        yield Inputs(
            "custom ring all-reduce, its sends as a trace",
            prefix.with_name(prefix.name.removesuffix(".0.et")),
            networks / "Ring_8npus.yml",
            rings,
        )
    test = checkout / "tests/rt_template/inputs"
    yield Inputs(
        "rt_template (it expects 117780)",
        write_traces(folder / "rt", CommKind.ALL_REDUCE, 8, 1),
        test / "network_cfg.yml",
        test / "system_cfg.json",
    )


def grid(checkout: Path, folder: Path) -> Iterator[tuple[Inputs, str | None]]:
    """NPUs x topology x algorithm x collective at 1 MiB from their traces, and an all-reduce of 64 MiB from ours."""
    micro = checkout / "examples/workload/microbenchmarks"
    systems = {algorithm: _system(checkout, folder, algorithm) for algorithm in ALGORITHMS}
    for npus in NPUS:
        large = write_traces(folder / f"large{npus}", CommKind.ALL_REDUCE, npus, LARGE_MIB)
        for topology in TOPOLOGIES:
            network = network_file(folder, topology, npus)
            for algorithm in ALGORITHMS:
                plan = algorithm if algorithm in ("ring", "direct") else None
                for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
                    if not _possible(algorithm, collective):
                        continue
                    prefix = micro / f"{collective}/{npus}npus_1MB/{collective}"
                    label = f"{npus} | {topology} | {algorithm} | {collective}"
                    inputs = Inputs(f"{label} | 1 MiB", prefix, network, systems[algorithm])
                    yield inputs, plan if collective != "all_to_all" else None
                label = f"{npus} | {topology} | {algorithm} | all_reduce | {LARGE_MIB} MiB"
                yield Inputs(label, large, network, systems[algorithm]), plan


SEVERAL = (
    (("Ring", "FullyConnected"), (4, 4)),
    (("FullyConnected", "Switch"), (4, 4)),
    (("Ring", "Switch", "FullyConnected"), (2, 2, 4)),
)


def dimensions(checkout: Path, folder: Path) -> Iterator[Inputs]:
    """Networks of several dimensions, with the numbers of the backend's Ring_FullyConnected_Switch.yml."""
    micro = checkout / "examples/workload/microbenchmarks"
    for blocks, counts in SEVERAL:
        shape = " x ".join(f"{block} {count}" for block, count in zip(blocks, counts, strict=True))
        network = folder / f"{'_'.join(blocks)}.yml"
        network.write_text(
            f"topology: [{', '.join(blocks)}]\nnpus_count: {list(counts)}\n"
            f"bandwidth: {[200.0, 100.0, 50.0][: len(counts)]}\nlatency: {[50.0, 500.0, 2000.0][: len(counts)]}\n"
        )
        for algorithm in ("ring", "direct"):
            data = json.loads(_system(checkout, folder, algorithm).read_text())
            for name in data:
                if name.endswith("-implementation"):
                    data[name] = [algorithm] * len(counts)
            system = folder / f"{algorithm}{len(counts)}.json"
            system.write_text(json.dumps(data))
            for collective in ("all_reduce", "all_gather"):
                prefix = micro / f"{collective}/16npus_1MB/{collective}"
                yield Inputs(f"{shape} | {algorithm} | {collective}", prefix, network, system)


def _possible(algorithm: str, collective: str) -> bool:
    if algorithm == "doubleBinaryTree":
        return collective == "all_reduce"
    return algorithm != "halvingDoubling" or collective != "all_to_all"


def _system(checkout: Path, folder: Path, algorithm: str) -> Path:
    """Their Ring_4chunks.json with another algorithm wherever it can do the collective."""
    data = json.loads((checkout / "examples/system/native_collectives/Ring_4chunks.json").read_text())
    for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        if _possible(algorithm, collective.replace("-", "_")):
            data[f"{collective}-implementation"] = [algorithm]
    path = folder / f"{algorithm}.json"
    path.write_text(json.dumps(data))
    return path


def network_file(folder: Path, topology: str, npus: int) -> Path:
    """The numbers of their Ring_8npus.yml with another topology and number of NPUs."""
    path = folder / f"{topology}_{npus}.yml"
    path.write_text(f"topology: [ {topology} ]\nnpus_count: [ {npus} ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n")
    return path


def write_traces(folder: Path, comm: CommKind, npus: int, size_mib: int, compute_s: float = 0.0) -> Path:
    """One collective per NPU, after `compute_s` of computing."""
    folder.mkdir()
    nodes = [TraceNode(0, "compute", NodeKind.COMP, duration_s=compute_s)] if compute_s else []
    after = tuple(node.id for node in nodes)
    nodes.append(TraceNode(1, comm.name.lower(), NodeKind.COMM_COLL, after, comm=comm, size_bytes=size_mib * 2**20))
    for npu in range(npus):
        (folder / f"trace.{npu}.et").write_bytes(encode_trace(nodes))
    return folder / "trace"


def complaint(checkout: Path, folder: Path) -> Iterator[tuple[str, float, float, str]]:
    """ "The same number of cycles whatever the topology": topology, theirs with rings, our best plan, its name."""
    system = _system(checkout, folder, "ring")
    traces = write_traces(folder / "complaint", CommKind.ALL_REDUCE, 8, 1, compute_s=1e-3)
    for topology in TOPOLOGIES:
        inputs = Inputs(f"8 NPUs, {topology}", traces, network_file(folder, topology, 8), system)
        network = read_network(inputs.network)
        best = run_astra(read_traces(traces, 8), network, read_system(system), plan="")
        yield inputs.label, theirs(checkout, inputs), best.end_s * 1e9, ", ".join(best.plans)


def _line(row: Row) -> str:
    ratios = (row.store, row.cut_through, row.rounds, row.streams, row.pieces)
    cells = " | ".join("-" if ns is None else f"{ns / row.theirs:.4f}" for ns in ratios)
    return f"| {row.label} | {row.theirs:.0f} | {cells} |"


def main(
    astra_sim: Annotated[Path, typer.Option(metavar="DIR", help="A checkout of ASTRA-sim, built.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="All rows as JSON.")] = Path("out/bench/astra.json"),
) -> None:
    """Compare."""
    checkout = astra_sim.resolve()
    if not (checkout / BINARY).is_file():
        raise UsageError(f"there is no {BINARY}", where=str(astra_sim), hint="build its analytical backend there")
    columns = "ASTRA-sim ns | store | cut through | rounds | streams | pieces |"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"| as they come | {columns}\n|---|" + "---:|" * 6)
        shipped = [compared(checkout, inputs, None) for inputs in examples(checkout, folder)]
        print("\n".join(map(_line, shipped)))
        print(f"\n| NPUs | topology | algorithm | collective | size | {columns}\n" + "|---" * 5 + "|" + "---:|" * 6)
        rows = []
        for inputs, plan in grid(checkout, folder):
            rows.append(compared(checkout, inputs, plan))
            print(_line(rows[-1]), flush=True)
        exact = sum(abs(row.store - row.theirs) < 0.5 for row in rows)
        print(f"\nstored and forwarded: equal to the nanosecond in {exact} of {len(rows)}\n")
        several = []
        if (checkout / UNAWARE).is_file():
            print("| dimensions | algorithm | collective | ASTRA-sim without congestion, ns | cut through |")
            print("|---|---|---|---:|---:|")
            for inputs in dimensions(checkout, folder):
                several.append((inputs.label, theirs(checkout, inputs, UNAWARE), ours_ns(inputs)))
                print(f"| {inputs.label} | {several[-1][1]:.0f} | {several[-1][2] / several[-1][1]:.4f} |")
            print()
        told = list(complaint(checkout, folder))
        print("| 1 ms of computing, then an all-reduce of 1 MiB | ASTRA-sim, ring, ns | ours, best plan, ns | plan |")
        print("|---|---:|---:|---|")
        for label, ns, best_ns, plan_name in told:
            print(f"| {label} | {ns:.0f} | {best_ns:.0f} | {plan_name} |")
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "examples": [asdict(row) for row in shipped],
        "grid": [asdict(row) for row in rows],
        "dimensions": several,
        "complaint": told,
    }
    out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    as_script("bench.astra", lambda: typer.run(main))
