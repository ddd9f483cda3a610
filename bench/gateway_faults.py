"""What clients get when something goes wrong: `python -m bench.gateway_faults --out FILE.json`.

Each row starts a gateway in a process of its own, in front of engines that do wrong as they are asked to
(`bench.rude_engine`) or of `headway engine` processes, plays one fault, and tells what the client got and when, what
the gateway recorded in its metrics, and what was left behind some seconds later: open requests and counts in the
gateway's metrics, connections, file descriptors, streams at the engines, tracebacks in its log. Timeouts are short
(first byte, stall, body, client: 2 s). A row that is not as expected, or leaves something behind, makes the exit code
1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fault_cases import Case, client_cases, differs, engine_cases
from bench.fault_lab import Lab
from bench.fault_processes import Play, Told, plays, rude_ones, told_of
from bench.grid_script import as_script
from bench.own_process import write
from headway.bench.markdown import table
from headway.errors import HeadwayError, UsageError

ROW_LIMIT_S = 180.0


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        fault: what was wrong.
        expected, got: what the client was to get, and got.
        after_s: when.
        recorded: by the gateway.
        left: behind.
        note: more.
        wrong: how it differs from what was expected; empty: in nothing.
    """

    fault: str
    expected: str
    got: str
    after_s: float
    recorded: str
    left: str
    note: str
    wrong: str


async def played(row: Case | Play) -> Told:
    """A row's outcome. HeadwayError or TimeoutError when it can't be played to its end."""
    async with asyncio.timeout(ROW_LIMIT_S):
        if isinstance(row, Play):
            return await row.run()
        async with rude_ones(row.engines) as rude, Lab([engine.port for engine in rude], row.settings) as lab:
            return await told_of(lab, await row.run(lab, rude), rude)


async def judged(row: Case | Play) -> Row:
    """A row of the table."""
    try:
        told = await played(row)
    except (HeadwayError, TimeoutError, OSError) as error:
        why = f"could not be played: {error!r}"
        return Row(row.name, row.expected.words, "", 0.0, "", "", "", why)
    wrong = differs(row.expected, told.got, told.recorded)
    if told.left:
        wrong = "; ".join(filter(None, (wrong, f"left behind: {told.left}")))
    got = told.got
    return Row(row.name, row.expected.words, got.words, got.after_s, told.recorded, told.left, told.note, wrong)


def shown(rows: Sequence[Row]) -> str:
    """As a table."""
    heads = ("fault", "client gets", "after, s", "gateway records", "left behind", "as expected")
    return table(
        heads,
        [
            (
                row.fault,
                row.got,
                f"{row.after_s:.2f}",
                row.recorded + (f" ({row.note})" if row.note else ""),
                row.left or "nothing",
                f"NO: {row.wrong}" if row.wrong else "yes",
            )
            for row in rows
        ],
    )


def chosen(rows: Sequence[Case | Play], only: str) -> list[Case | Play]:
    """Those whose name holds one of the words. UsageError for none."""
    words = [word for word in only.split(",") if word]
    found = [row for row in rows if not words or any(word in row.name for word in words)]
    if not found:
        raise UsageError(f"no row's name holds {only!r}", where="--only", hint="see --list")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    parser.add_argument("--only", default="", help="rows whose name holds one of these words, comma-separated")
    parser.add_argument("--streams", type=int, default=10_000, help="open at once; fewer where file descriptors are")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    options = parser.parse_args()
    rows = chosen([*engine_cases(), *plays(options.streams), *client_cases()], options.only)
    if options.list:
        print("\n".join(row.name for row in rows))
        return
    found = []
    for row in rows:
        found.append(asyncio.run(judged(row)))
        last = found[-1]
        print(
            f"{last.fault}: {last.got}, {last.after_s:.2f} s {last.wrong or 'as expected'}", file=sys.stderr, flush=True
        )
    print(shown(found))
    if options.out is not None:
        write(options.out, {"rows": found})
    wrong = sum(bool(row.wrong) for row in found)
    if wrong:
        raise HeadwayError(f"{wrong} of {len(found)} rows are not as expected")


if __name__ == "__main__":
    as_script("gateway_faults", main)
