"""Where a bench runs: on loopback, in a lab, or in the job that it was started in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headway.bench.families import Loopback
from headway.bench.session import Ranks, started
from headway.cluster.model import Cluster


@dataclass(frozen=True)
class Place:
    """A place with all ranks of all backends up.

    Attributes:
        ranks: the ranks.
        world_size: how many.
        where: for a table's header.
        condition: what loads the network, in words; empty where that is unknown.
        cluster: the capacities as they are now; None where they are unknown.
        speaks: whether this process prints (in a job only rank 0 does).
    """

    ranks: Ranks
    world_size: int
    where: str
    condition: str = ""
    cluster: Callable[[], Cluster | None] = lambda: None
    speaks: bool = True


def count_words(number: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def loopback(world_size: int, backends: Sequence[str], *, timeout_s: float, journals: str = "") -> Iterator[Place]:
    """Local processes on loopback."""
    with started(Loopback(world_size), backends, timeout_s=timeout_s, journals=journals) as ranks:
        yield Place(ranks, world_size, f"{count_words(world_size, 'rank')} on loopback")


@contextmanager
def in_scenario(name: str, backends: Sequence[str], *, timeout_s: float, journals: str = "") -> Iterator[Place]:
    """A lab of its own, one rank per host, with all events of the scenario in force from the start to the end."""
    from headway.bench.lab_site import LabSite, in_force, in_words
    from headway.lab.files import load_scenario
    from headway.lab.lab import Lab

    scenario = load_scenario(name)
    with Lab.up(scenario) as lab:
        site = LabSite(lab)
        with (
            started(site, backends, timeout_s=timeout_s, journals=journals) as ranks,
            in_force(lab, scenario.events),
        ):
            condition = in_words(lab, scenario.events)
            yield Place(
                ranks,
                site.ranks,
                f"lab {scenario.name}, {count_words(site.ranks, 'host')}, {condition}",
                condition,
                lambda: lab.cluster(with_events=True),
            )


@contextmanager
def in_job(backends: Sequence[str], *, timeout_s: float, journals: str = "") -> Iterator[Place]:
    """The job whose environment this process has (torchrun's)."""
    from headway.bench.in_place import joined

    with joined(backends, timeout_s=timeout_s, journals=journals) as ranks:
        yield Place(ranks, ranks.ranks, f"{count_words(ranks.ranks, 'rank')} of this job", speaks=ranks.rank == 0)
