"""From a gateway's journal to the calls of workflows, and from calls to runs. Pure.

A call takes from its arrival at the gateway to its end, as its workflow feels it: with its wait for a replica.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from headway.decide.journal import Record, RequestRecord
from headway.serving.workflows.calls import Call, Run

_ERROR = 400
"""HTTP statuses from here on are no answers of a model."""


def from_journal(records: Iterable[Record]) -> list[Call]:
    """The calls of workflows in a journal, in the order in which they ended.

    The run is what follows the first "/" of the record's workflow, else its session. Blocks get the size that was
    recorded, or, where the engine counted the prompt's tokens and came to others than the gateway, one that fits these.
    """
    calls = [_call(record) for record in records if isinstance(record, RequestRecord) and not _why_not(record)]
    return distinct(calls)


def left_out(records: Iterable[Record]) -> Mapping[str, int]:
    """Why `from_journal` takes no calls of the other requests: how many for each reason, in words for people."""
    reasons = (_why_not(record) for record in records if isinstance(record, RequestRecord))
    return Counter(reason for reason in reasons if reason)


def runs_of(calls: Iterable[Call]) -> list[Run]:
    """The calls' runs, in order of their starts; ids must be unique within a run."""
    groups: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.workflow, call.run].append(call)
    runs = [
        Run(workflow, run, tuple(sorted(group, key=lambda call: (call.start_s, call.end_s, call.id))))
        for (workflow, run), group in groups.items()
    ]
    return sorted(runs, key=lambda run: (run.start_s, run.workflow, run.id))


def by_workflow(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Each kind's runs; kinds in the order of their names."""
    kinds: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        kinds[run.workflow].append(run)
    return dict(sorted(kinds.items()))


def named(workflow: str) -> tuple[str, str]:
    """(kind, run) of a name as the gateway has it, `kind/run`; the run is empty where only the kind is named."""
    kind, _, run = workflow.partition("/")
    return kind, run


def distinct(calls: Iterable[Call]) -> list[Call]:
    """The same calls; an id that its run has already gets a number: a client may use one `x-request-id` for all."""
    taken: set[tuple[str, str, str]] = set()
    result = []
    for call in calls:
        unique, number = call.id, 1
        while (call.workflow, call.run, unique) in taken:
            number += 1
            unique = f"{call.id}#{number}"
        taken.add((call.workflow, call.run, unique))
        result.append(call if unique == call.id else replace(call, id=unique))
    return result


def _why_not(record: RequestRecord) -> str:
    kind, run = named(record.workflow)
    if not kind:
        return "of no workflow"
    if not run and not record.session:
        return "of a workflow but of no run"
    if record.end != "done" or record.status >= _ERROR:
        return "failed or broken off"
    if record.e2e_s <= 0:
        return "took no time"
    return ""


def _block_tokens(record: RequestRecord) -> int:
    """The recorded size of a block where so many blocks fit the prompt, whose length the engine may have corrected."""
    count, tokens, size = len(record.prefix_blocks), record.input_tokens, record.block_tokens
    if size and (count - 1) * size < tokens <= count * size:
        return size
    return max(1, -(-tokens // count))


def _call(record: RequestRecord) -> Call:
    kind, run = named(record.workflow)
    blocks = tuple(record.prefix_blocks)
    block_tokens = _block_tokens(record) if blocks else 0
    return Call(
        workflow=kind,
        run=run or record.session,
        id=record.request,
        model=record.group,
        start_s=record.arrived_s,
        end_s=record.arrived_s + record.e2e_s,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        blocks=blocks,
        block_tokens=block_tokens,
    )
