"""`headway engine`: replicas of an engine model, or of llama.cpp's server, to try a gateway on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import typer

from headway.errors import UsageError
from headway.serving.engine import hardware
from headway.serving.llama import LlamaSettings, serve_llama

_SPEED = re.compile(r"(\d+(?:\.\d+)?)x")


_MODEL_ONLY = (
    *("device", "model", "tensor_parallel", "fraction", "speed", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "prefix_caching", "output_tokens", "output_tokens_sd", "seed", "faults"),
)
_LLAMA_ONLY = ("llama_model", "llama_threads")


def engine(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="First replica's port; the others count up. 0: any that are free.")] = 8001,
    replicas: Annotated[int, typer.Option(help="How many, each on a port of its own.")] = 1,
    device: Annotated[str, typer.Option(help=f"Accelerator: {', '.join(hardware.DEVICES)}.")] = "a30",
    model: Annotated[str, typer.Option(help=f"Model: {', '.join(hardware.MODELS)}.")] = "llama-3-8b",
    served_model_name: Annotated[str, typer.Option(help="Name in the API; default: the model's.")] = "",
    tensor_parallel: Annotated[int, typer.Option(help="Accelerators that share the model.")] = 1,
    fraction: Annotated[float, typer.Option(help="Share of each accelerator that this engine has, 0 to 1.")] = 1.0,
    speed: Annotated[str, typer.Option(help="Divide all times by this: 10x.")] = "1x",
    max_model_len: Annotated[int, typer.Option(help="Most tokens of prompt and answer; 0: 32768, or the cache.")] = 0,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests in the batch.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens in a step.")] = 2048,
    prefix_caching: Annotated[
        bool | None, typer.Option(help="Find prompts' beginnings again; default: yes, but on a v100.")
    ] = None,
    output_tokens: Annotated[float, typer.Option(help="Mean length of an answer without max_tokens.")] = 100.0,
    output_tokens_sd: Annotated[float, typer.Option(help="Standard deviation of that length.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of these lengths.")] = 0,
    faults: Annotated[bool, typer.Option("--faults", help="Take faults to have at POST /admin/faults.")] = False,
    llama: Annotated[
        bool, typer.Option("--llama", help="A real model on the CPU instead: Gemma 3 270M in llama.cpp's server.")
    ] = False,
    llama_model: Annotated[str, typer.Option(help="With --llama: another GGUF file.")] = "",
    llama_threads: Annotated[int, typer.Option(help="With --llama: threads per replica.")] = 1,
) -> None:
    """Serve the OpenAI API from a model of an engine: right in its timing and its cache, not in what it says."""
    _least(1, replicas=replicas)
    if not 0 <= port <= 65536 - replicas:
        raise UsageError(f"{replicas} ports from {port} on do not all exist", where="--port")
    _refuse(context, _MODEL_ONLY if llama else _LLAMA_ONLY, "does not go with --llama" if llama else "needs --llama")
    _least(1, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, llama_threads=llama_threads)
    _least(0, max_model_len=max_model_len, output_tokens=output_tokens, output_tokens_sd=output_tokens_sd)
    if llama:
        settings = LlamaSettings(model_path=llama_model, alias=served_model_name, threads=llama_threads)
        serve_llama(replicas, settings, host=host, port=port, announce=_announce)
        return
    try:
        import uvloop

        from headway.serving.enginehttp.answering import ServingSettings
        from headway.serving.enginehttp.pace import sped_up
        from headway.serving.enginehttp.serve import Replicas, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed", hint="pip install 'headway[serving]'") from error
    configured = hardware.EngineSettings(step_tokens=max_num_batched_tokens, most_running=max_num_seqs)
    if prefix_caching is not None:
        configured["prefix_caching"] = prefix_caching
    profile = hardware.profile(device, model, tensor_parallel=tensor_parallel, fraction=fraction, **configured)
    fleet = Replicas(
        count=replicas,
        profile=sped_up(profile, _speed(speed)),
        settings=ServingSettings(
            model=served_model_name or model,
            most_context_tokens=max_model_len,
            output_tokens_mean=output_tokens,
            output_tokens_sd=output_tokens_sd,
            seed=seed,
        ),
        host=host,
        port=port,
        faults_path=faults,
    )
    uvloop.run(serve(fleet, _announce))


def _refuse(context: typer.Context, names: Iterable[str], why: str) -> None:
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(why, where=_flag(name))


def _least(least: int, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:
            raise UsageError(f"{value:g} is less than {least}", where=_flag(name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _speed(text: str) -> float:
    match = _SPEED.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is no speed", where="--speed", hint="for example 10x")
    return float(match[1])


def _announce(line: str) -> None:
    print(line, flush=True)
