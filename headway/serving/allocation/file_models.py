"""What files of aggregates, profiles, plans and nodes look like: their fields and what must hold of them. Pure."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headway.serving.allocation.types import Shape

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Endless = Annotated[float, Field(ge=0)]


class Part(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Use(Part):
    model: str
    calls: NotNegative
    concurrency: Positive
    busy_s: NotNegative
    share: NotNegative
    share_cv: NotNegative
    input_tokens: NotNegative
    output_tokens: NotNegative


class _Aggregate(Part):
    workflow: str
    runs: Count
    latency_s: NotNegative
    latency_cv: NotNegative
    other_s: NotNegative
    uses: list[_Use]


class Aggregates(Part):
    """A file of workflows on average."""

    kind: Literal["headway-aggregates"]
    version: Literal[1]
    aggregates: list[_Aggregate]


class _Curve(Part):
    tensor_parallel: Count
    slices: Count
    spread: Count = 1
    saturation: Positive
    rates: list[NotNegative] = Field(min_length=1)
    latencies_s: list[Positive] = Field(min_length=1)
    p99_s: list[Positive] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> _Curve:
        if not len(self.rates) == len(self.latencies_s) == len(self.p99_s):
            raise ValueError("rates, latencies_s and p99_s have different lengths")
        if any(a >= b for a, b in itertools.pairwise(self.rates)):
            raise ValueError("rates do not rise")
        if self.saturation <= self.rates[-1]:
            raise ValueError("saturation is not above the last of the rates")
        return self


class _Profile(Part):
    model: str
    source: str
    device: str = ""
    memory_bytes: dict[Count, Annotated[int, Field(ge=0)]]
    curves: list[_Curve]


class Profiles(Part):
    """A file of models' profiles."""

    kind: Literal["headway-profiles"]
    version: Literal[1]
    slices_per_gpu: Count
    profiles: list[_Profile]


class _Share(Part):
    model: str
    tensor_parallel: Count
    slices: Count
    replicas: Count


class _Instance(Part):
    model: str
    number: Annotated[int, Field(ge=0)]
    tensor_parallel: Count
    slices: Count
    node: str
    gpus: list[Annotated[int, Field(ge=0)]]


class _Forecast(Part):
    workflow: str
    rate: Positive
    latency_s: Endless
    throughput: Endless
    latency_by_model_s: dict[str, Endless]
    bottleneck: str
    error: NotNegative | None = None


class _Rejected(Part):
    what: str
    why: str


class PlanFile(Part):
    """A file with a plan."""

    kind: Literal["headway-plan"]
    version: Literal[1]
    slices_per_gpu: Count
    shares: list[_Share]
    instances: list[_Instance] = []
    forecasts: list[_Forecast] = []
    rejected: list[_Rejected] = []

    @model_validator(mode="after")
    def _consistent(self) -> PlanFile:
        shaped: list[_Share | _Instance] = [*self.shares, *self.instances]
        for each in shaped:
            if not Shape(each.tensor_parallel, each.slices).fits(self.slices_per_gpu):
                raise ValueError(
                    f"{each.model} has {each.tensor_parallel} x {each.slices} slices, which is no shape where a GPU "
                    f"has {self.slices_per_gpu}: several GPUs are whole ones"
                )
        shares = {share.model: share for share in self.shares}
        if len(shares) < len(self.shares):
            raise ValueError("a model has more than one share")
        if self.instances:
            self._check_instances(shares)
        return self

    def _check_instances(self, shares: dict[str, _Share]) -> None:
        numbers: dict[str, set[int]] = {model: set() for model in shares}
        for it in self.instances:
            share = shares.get(it.model)
            if share is None:
                raise ValueError(f"{it.model} has an instance and no share")
            if (it.tensor_parallel, it.slices) != (share.tensor_parallel, share.slices):
                raise ValueError(f"{it.model} #{it.number} has another shape than the model's share")
            if len(it.gpus) != it.tensor_parallel or len(set(it.gpus)) < len(it.gpus):
                raise ValueError(f"{it.model} #{it.number} is on GPUs {it.gpus}, and needs {it.tensor_parallel}")
            if it.number in numbers[it.model]:
                raise ValueError(f"{it.model} #{it.number} is there twice")
            numbers[it.model].add(it.number)
        for model, share in shares.items():
            if len(numbers[model]) != share.replicas:
                raise ValueError(f"{model} has {share.replicas} replicas and {len(numbers[model])} instances")


class _Node(Part):
    name: str
    device: str
    domains: list[list[Annotated[int, Field(ge=0)]]] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> _Node:
        gpus = [gpu for domain in self.domains for gpu in domain]
        if len(set(gpus)) < len(gpus):
            raise ValueError("a GPU is in two domains")
        if not all(self.domains):
            raise ValueError("a domain has no GPUs")
        return self


class Nodes(Part):
    """A file of machines."""

    kind: Literal["headway-nodes"]
    version: Literal[1]
    nodes: list[_Node]

    @model_validator(mode="after")
    def _each_once(self) -> Nodes:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice")
        return self
