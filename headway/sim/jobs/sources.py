"""Who chooses the plans of a job, by its policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.cluster.model import Cluster, Host
from headway.collectives.plan_book import PlanBook
from headway.collectives.predict import DEFAULT_COSTS, CostModel
from headway.decide.journal import Journal
from headway.lab.draws import mix
from headway.lab.jobs import Job
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.network import Network
from headway.sim.execution.connections import job_key
from headway.sim.execution.samples import FlowSampler
from headway.sim.jobs.clairvoyant import ClairvoyantPlans, Ways
from headway.sim.jobs.job import PlanSource
from headway.sim.jobs.plans import HeldPlans
from headway.sim.jobs.tuned import TunedPlans


def plan_sources(
    job: Job,
    cluster: Cluster,
    network: Network,
    journal: Journal,
    *,
    cluster_now: Callable[[], Cluster],
    seed: int,
    costs: CostModel = DEFAULT_COSTS,
) -> Callable[[], PlanSource]:
    """Makes the job's plan source, to be called when the job begins.

    Args:
        job: whose policy and plan decide.
        cluster: its ranks on hosts with the rates of free links.
        network: what it sends over.
        journal: takes its records.
        cluster_now: what others leave of the cluster at the moment, for those who know everything.
        seed: of the run.
        costs: of messages, as planners reckon with them.
    """
    clairvoyant = job.policy == "clairvoyant"
    book = PlanBook(cluster, "packing" if clairvoyant else job.policy, bitwise=False, pinned=job.plan, costs=costs)
    clock = network.loop

    def make() -> PlanSource:
        if job.policy == "off":
            return HeldPlans(job, book, journal)
        hosts = [network.fabric.host_index[cluster.hosts[host].name] for host in cluster.host_of]
        if clairvoyant:
            ways = Ways(network, hosts, job_key(job.name, seed))
            return ClairvoyantPlans(
                book, cluster_now, group=job.name, clock=lambda: clock.now_s, journal=journal, ways=ways
            )
        return TunedPlans(
            book,
            group=job.name,
            clock=lambda: clock.now_s,
            sampler=FlowSampler(network, hosts),
            journal=journal,
            seed=mix(seed, job.seed),
        )

    return make


def cluster_on(fabric: Fabric, hosts: Sequence[int]) -> Cluster:
    """What a job plans for on a network that no scenario describes: its hosts' own links, and the longest latency.

    A host's link is the first that it sends over, and the last one to it; what lies between is left out.
    """
    used = {host: index for index, host in enumerate(dict.fromkeys(hosts))}
    several = list(used)
    made, longest_s = [], 0.0
    for host in several:
        other = several[0] if host != several[0] else several[-1]
        out, back = fabric.router.route(host, other, 0), fabric.router.route(other, host, 0)
        longest_s = max(longest_s, sum(fabric.links[link].latency_s for link in out))
        rates = (
            (fabric.links[out[0]].capacity_Bps, fabric.links[back[-1]].capacity_Bps) if out and back else (1e18, 1e18)
        )
        made.append(Host(fabric.hosts[host], *rates))
    return Cluster(hosts=tuple(made), host_of=tuple(used[host] for host in hosts), alpha_s=longest_s)
