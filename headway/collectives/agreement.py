"""How all ranks come to run the same plan in the same operation. Pure: no sockets, no clock.

All ranks call the collectives of a group in the same order, so the operation number is the clock they share. The
operations are cut into epochs. When the last operation of an epoch is complete, each rank reports to rank 0; rank
0 decides and answers with a `Ruling` that names the operation from which it holds. No rank starts that operation
before it has the ruling: so a plan never changes inside an operation, and no two ranks run one operation differently.

    epoch e               lead        epoch e+1
    |op op op op op op op|op         |op op ...
                         ^ report    ^ ruling e holds from here; whoever lacks it waits here

The lead hides the round trip to rank 0. Where an operation takes much longer than a round trip, a lead would only
delay the reaction, and rank 0 sets it to zero. Both lengths are part of the previous ruling, so every rank cuts its
epochs alike. An epoch's length is counted in weight: an operation of `LARGE_BYTES` or more weighs 1, a smaller one
`SMALL_WEIGHT`, so that a stream of tiny operations isn't interrupted every few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from headway.collectives.plan import Collective, Plan, PlanError
from headway.collectives.plan_codec import decode, encode

LARGE_BYTES = 256 * 1024
"""Operations from here on are limited by bandwidth on the networks that Headway is for: 10 ms at 200 Mbit/s."""

SMALL_WEIGHT = 1 / 64
"""One report per 64 small operations costs them below 1 % (a report and its ruling take about 0.5 ms)."""

FIRST_EPOCH_WEIGHT = 2.0
"""Until something is known of the operations' length: two large ones."""

FIRST_LEAD_OPERATIONS = 1


class EpochReport(BaseModel):
    """What one rank tells rank 0 at the end of an epoch.

    Attributes:
        epoch: which one.
        rank: whose report.
        ruled_from: the operation that the ruling will hold from; the same on every rank.
        durations_s: number of each large operation -> how long it took on this rank.
        summary: what its flows did, in the observer's own JSON.
    """

    model_config = ConfigDict(frozen=True)

    epoch: int
    rank: int
    ruled_from: int
    durations_s: dict[int, float]
    summary: str


class Ruling(BaseModel):
    """What rank 0 answers: from operation `from_operation` on, these plans.

    Attributes:
        epoch: the epoch whose reports led to it.
        from_operation: the first operation that it holds for; also the first of epoch + 1.
        plans: collective name -> encoded plan for its large operations; absent collectives keep what they have, an
            empty text means back to the idle plan.
        epoch_weight: length of epoch + 1.
        lead_operations: operations between the last one of epoch + 1 and the first that its ruling holds for.
        reroutes: (source, destination) ranks whose flow gets a new connection before that operation.
        link_Bps: what a link has been seen to carry, from which every rank sizes its pieces; None while unknown.
    """

    model_config = ConfigDict(frozen=True)

    epoch: int
    from_operation: int
    plans: dict[str, str]
    epoch_weight: float
    lead_operations: int
    link_Bps: float | None = None
    reroutes: tuple[tuple[int, int], ...] = ()


def encode_plans(plans: Mapping[Collective, Plan | None]) -> dict[str, str]:
    """Plans as a ruling carries them."""
    return {collective.value: "" if plan is None else encode(plan) for collective, plan in plans.items()}


@dataclass(frozen=True)
class Admission:
    """Whether an operation may start, and what its end means.

    Attributes:
        admitted: False when the ruling of `awaited_epoch` must arrive first.
        awaited_epoch: that epoch, or None.
        ends_epoch: the epoch whose last operation this is, or None.
        in_epoch: whether its measurements count (False in the lead between two epochs).
        reroutes: flows that get a new connection before it starts.
    """

    admitted: bool
    awaited_epoch: int | None = None
    ends_epoch: int | None = None
    in_epoch: bool = True
    reroutes: tuple[tuple[int, int], ...] = ()


class EpochClock:
    """One rank's view of the epochs: which operation may start, which ends an epoch, which plan is in force.

    Every rank that is given the same operations and the same rulings gives the same answers, whenever the rulings
    arrive: `tests/collectives/test_agreement.py` explores that.
    """

    def __init__(self, *, epoch_weight: float, lead_operations: int) -> None:
        self.epoch = 0
        self.link_Bps: float | None = None
        self._weight_left = epoch_weight
        self._lead_operations = lead_operations
        self._ruled_from: int | None = None
        self._rulings: dict[int, Ruling] = {}
        self._tuned: dict[Collective, Plan] = {}

    def receive(self, ruling: Ruling) -> None:
        """Keep a ruling until the operation that it holds from."""
        self._rulings[ruling.epoch] = ruling

    def admit(self, number: int, size_bytes: int) -> Admission:
        """Ask before starting operation `number`; ask again with the same number when it was not admitted."""
        reroutes: tuple[tuple[int, int], ...] = ()
        if number == self._ruled_from:
            ruling = self._rulings.pop(self.epoch, None)
            if ruling is None:
                return Admission(admitted=False, awaited_epoch=self.epoch)
            self._apply(ruling, number)
            reroutes = ruling.reroutes
        if self._ruled_from is not None:
            return Admission(admitted=True, in_epoch=False)
        self._weight_left -= 1.0 if size_bytes >= LARGE_BYTES else SMALL_WEIGHT
        if self._weight_left > 0:
            return Admission(admitted=True, reroutes=reroutes)
        self._ruled_from = number + 1 + self._lead_operations
        return Admission(admitted=True, ends_epoch=self.epoch, reroutes=reroutes)

    @property
    def ruled_from(self) -> int | None:
        """The operation that the ruling of the epoch just ended holds from; None while an epoch runs."""
        return self._ruled_from

    def tuned_plan(self, collective: Collective) -> Plan | None:
        """The plan that rulings put in force for the large operations of `collective`; None: the idle plan."""
        return self._tuned.get(collective)

    def _apply(self, ruling: Ruling, number: int) -> None:
        if ruling.from_operation != number:
            raise PlanError(
                f"the ruling of epoch {ruling.epoch} holds from operation {ruling.from_operation}, but this rank is "
                f"at {number}: the ranks did not call the same collectives in the same order"
            )
        for name, text in ruling.plans.items():
            if text:
                self._tuned[Collective(name)] = decode(text)
            else:
                self._tuned.pop(Collective(name), None)
        self.link_Bps = ruling.link_Bps or self.link_Bps
        self.epoch = ruling.epoch + 1
        self._weight_left = ruling.epoch_weight
        self._lead_operations = ruling.lead_operations
        self._ruled_from = None
