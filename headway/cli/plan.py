"""`headway plan`: GPUs shared out among the models of workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.plan_deploy import apply, compose, gateway, manifests
from headway.cli.plan_make import make
from headway.cli.plan_nodes import nodes_
from headway.cli.plan_simulate import simulate
from headway.cli.plan_watch import watch
from headway.cli.plan_words import check_most, print_plan
from headway.serving.allocation.files import read_nodes, read_plan
from headway.serving.allocation.place import check_places

app = typer.Typer(no_args_is_help=True, help="Share GPUs out among the models of workflows.")
app.command("make")(make)


@app.command("show")
def show(
    plan: Annotated[Path, typer.Argument(help="From `headway plan make`.")] = Path("plan.yaml"),
    nodes: Annotated[Path | None, typer.Option(help="The machines, to show what is free on them, too.")] = None,
    most: Annotated[int, typer.Option(help="Rejected neighbours to print.")] = 8,
) -> None:
    """Print a plan as people read it."""
    check_most(most)
    read = read_plan(plan)
    there = read_nodes(nodes) if nodes is not None else []
    check_places(read, there, where=str(plan))
    print_plan(read, there, most_rejected=most)


app.command("nodes")(nodes_)
app.command("simulate")(simulate)
app.command("manifests")(manifests)
app.command("compose")(compose)
app.command("gateway")(gateway)
app.command("apply")(apply)
app.command("watch")(watch)
