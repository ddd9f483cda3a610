"""Jobs as a scenario writes them: hosts that run a loop of computing and communicating. Pure.

The same lines are run by the lab, as real processes that really send, and by the simulator.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.lab.quantities import Model, Names, Probability, Size, Time

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
ELEMENT_BYTES = 4
"""Of a collective's vector, which is float32."""
PLANS = ("ring", "direct", "double-tree", "star")
"""Families that a job can hold, as HEADWAY_PLAN."""
Placement = Literal["packed", "spread", "random"]


class Phase(Model):
    """One step of a job's loop: exactly one of `compute`, a collective, or `send`.

    Attributes:
        compute: mean time in which every rank computes and nothing is sent.
        noise: standard deviation of that time as a part of it (normal, cut off at 0), drawn anew for each rank.
        all_reduce, reduce_scatter, all_gather, broadcast, reduce: size of the whole vector.
        root: of broadcast and reduce.
        send: bytes from the job's rank `src` to its rank `dst`, over one connection.
        src, dst: of `send`.
    """

    compute: Time | None = None
    noise: Probability = 0.0
    all_reduce: Size | None = None
    reduce_scatter: Size | None = None
    all_gather: Size | None = None
    broadcast: Size | None = None
    reduce: Size | None = None
    root: Annotated[int, Field(ge=0)] = 0
    send: Size | None = None
    src: Annotated[int, Field(ge=0)] = 0
    dst: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _one(self) -> Self:
        kinds = ("compute", *COLLECTIVES, "send")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(kinds)}, not {len(given)}")
        allowed = {"compute": {"noise"}, "broadcast": {"root"}, "reduce": {"root"}, "send": {"src", "dst"}}
        extra = self.model_fields_set - {given[0]} - allowed.get(given[0], set())
        if extra:
            raise ValueError(f"{min(extra)} does not belong to {given[0]}")
        if self.send is not None and self.src == self.dst:
            raise ValueError("src and dst are the same rank")
        return self

    @property
    def kind(self) -> str:
        """`compute`, `send`, or the collective's name."""
        return next(kind for kind in ("compute", "send", *COLLECTIVES) if getattr(self, kind) is not None)

    @property
    def size_bytes(self) -> int:
        """What is sent or reduced; 0 for computing."""
        size: int | None = None if self.compute is not None else getattr(self, self.kind)
        return size or 0

    def vector_bytes(self, ranks: int) -> int:
        """Bytes of a collective's vector: whole float32 elements, and whole blocks where it has one for each rank."""
        blocks = ranks if self.kind in ("reduce_scatter", "all_gather") else 1
        whole = ELEMENT_BYTES * blocks
        return -(-self.size_bytes // whole) * whole


class Interleave(Model):
    """How a job's flows make way for each other; see `headway.interleave`.

    Attributes:
        actuator: what makes a flow push harder; the simulator has weights whatever is asked for.
        slope, intercept: of F. most: the dial, F is never above it.
    """

    actuator: Literal["auto", "bpf-reno", "bpf-cubic", "streams", "pacing"] = "auto"
    slope: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.75
    intercept: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.25
    most: Annotated[float, Field(gt=0, le=16)] = 16.0

    @model_validator(mode="after")
    def _dial_fits(self) -> Self:
        if not self.intercept < self.most:
            raise ValueError(f"most {self.most:g} must be above the intercept {self.intercept:g}")
        return self


class Job(Model):
    """Ranks that repeat a loop together.

    Attributes:
        name: of the job; its group's name.
        hosts: names, or how many; a number takes the scenario's hosts as `placement` says, those free of other
            jobs first. Names may be shared with other jobs.
        placement: `packed` in order, `spread` round-robin over the racks, `random` by `seed`.
        ranks_per_host: ranks on each of the hosts.
        start: when its first iteration begins.
        iterations: how many; without it, until every job that has a number is done.
        loop: the phases of one iteration, one after the other; each begins on a rank when the rank's last has ended.
        policy: who chooses plans, as HEADWAY_POLICY: `packing`, `react`, `off`; in the simulator also `clairvoyant`.
        plan: hold this family, as HEADWAY_PLAN, whatever the policy; empty: chosen by prediction.
        weight: of each of its flows against others on a full link; in the lab a whole number of parallel streams.
        interleave: let its flows and those of other jobs take turns; without it they do not.
        congestion_control: of its connections in the lab; empty: the scenario's. The simulator knows no difference.
        period: iteration k begins no earlier than start + k * period, as a central planner of shifts has it.
        priority: class of its flows; 0 is served first.
        seed: of its noise and placement.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,20}$")]
    hosts: Annotated[int, Field(ge=1)] | Names
    placement: Placement = "packed"
    ranks_per_host: Annotated[int, Field(ge=1, le=64)] = 1
    start: Time = 0.0
    iterations: Annotated[int, Field(ge=1)] | None = None
    loop: Annotated[tuple[Phase, ...], Field(min_length=1)]
    policy: Literal["packing", "react", "off", "clairvoyant"] = "off"
    plan: str = ""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    priority: Annotated[int, Field(ge=0, le=7)] = 0
    interleave: Interleave | None = None
    congestion_control: str = ""
    period: Time | None = None
    seed: int = 0

    @field_validator("plan")
    @classmethod
    def _known_plan(cls, value: str) -> str:
        if value and value not in PLANS:
            raise ValueError(f"{value!r} is no plan (one of {', '.join(PLANS)})")
        return value

    @model_validator(mode="after")
    def _ranks_fit(self) -> Self:
        if self.plan and self.policy == "clairvoyant":
            raise ValueError("plan holds a plan, and clairvoyant would choose them: leave out one of both")
        if self.placement != "packed" and not isinstance(self.hosts, int):
            raise ValueError("placement goes with a number of hosts")
        size = (self.hosts if isinstance(self.hosts, int) else len(self.hosts)) * self.ranks_per_host
        for phase in self.loop:
            used = (phase.src, phase.dst) if phase.kind == "send" else (phase.root,)
            if max(used) >= size:
                raise ValueError(f"{phase.kind}: rank {max(used)} does not exist, the job has {size}")
        if all(phase.compute == 0 for phase in self.loop):
            raise ValueError("the loop takes no time")
        return self
