"""One request's story in sentences: what each replica looked like, why one was chosen, what came of it. Pure."""

from __future__ import annotations

from headway.cluster.units import format_time
from headway.decide.journal import RequestRecord, RouteOption
from headway.report.serving_run import ServingRun, actual_s
from headway.report.words import counted


def tell_request(run: ServingRun, record: RequestRecord) -> list[str]:
    """The story, a paragraph each."""
    return [_asked(run, record), *_chosen(record), *_came(record)]


def _asked(run: ServingRun, record: RequestRecord) -> str:
    text = (
        f"Request {record.request} for {record.group} came {record.arrived_s - run.zero_s:.3f} s after the journal's "
        f"start, with {counted(record.input_tokens, 'token')} in its prompt"
    )
    text += f", in session {record.session}" if record.session else ""
    text += f", as a step of workflow {record.workflow}" if record.workflow else ""
    goals = [f"the first token within {format_time(record.slo_ttft_s)}"] if record.slo_ttft_s is not None else []
    goals += [f"{format_time(record.slo_tpot_s)} per token after it"] if record.slo_tpot_s is not None else []
    return f"{text}. Its goals: {' and '.join(goals)}." if goals else f"{text}."


def _chosen(record: RequestRecord) -> list[str]:
    if not record.replica:
        return [f"It was sent to no replica: {_end(record.reason or 'the journal does not say why')}"]
    who = record.by or record.policy
    instead = f", to which {record.policy} had fallen back," if record.by and record.by != record.policy else ""
    why = f": {_end(record.reason)}" if record.reason else "."
    lines = [f"{who}{instead} chose {record.replica}{why}"]
    lines += [f"  {option.replica}: {_option(option, record)}" for option in record.options]
    if not record.options:
        lines.append("  The journal does not say what the replicas looked like.")
    return lines


def _option(option: RouteOption, record: RequestRecord) -> str:
    prompt = max(1, record.input_tokens)
    parts = [
        f"{option.hit_tokens} of {record.input_tokens} prompt tokens expected in its cache "
        f"({100 * option.hit_tokens / prompt:.0f} %)"
        if option.hit_tokens
        else "nothing of the prompt expected in its cache",
        f"{counted(option.requests, 'request')} of ours in flight",
    ]
    said = [f"{option.running} running"] if option.running is not None else []
    said += [f"{option.waiting} waiting"] if option.waiting is not None else []
    said += [f"{100 * option.kv_usage:.0f} % of its KV cache in use"] if option.kv_usage is not None else []
    parts.append(f"its engine said {', '.join(said)}" if said else "its engine had said nothing lately")
    text = "; ".join(parts)
    if option.score is not None:
        text += f"; score {option.score:.4g}"
    return f"{text}. Chosen." if option.replica == record.replica else f"{text}."


def _came(record: RequestRecord) -> list[str]:
    lines = []
    actual = actual_s(record)
    if record.replica and record.sent_s is not None:
        before = record.attempts - 1
        failed = f", after {counted(before, 'attempt')} that failed before the first byte" if before > 0 else ""
        lines.append(f"It was sent {format_time(record.sent_s)} after it had come{failed}.")
    if actual is not None and record.ttft_s is not None:
        text = f"The first token came {format_time(actual)} later, {format_time(record.ttft_s)} after the request"
        lines.append(f"{text}{_against(record, actual)}.{_goal(record)}")
    elif record.replica:
        predicted = record.predicted_ttft_s
        wanted = f"; {format_time(predicted)} had been predicted" if predicted is not None else ""
        lines.append(f"No token came{wanted}.")
    if record.cached_tokens is not None:
        expected = f"; {record.hit_tokens} had been expected" if record.hit_tokens is not None else ""
        lines.append(f"The engine found {record.cached_tokens} of the prompt's tokens in its cache{expected}.")
    elif record.ttft_s is not None:
        lines.append("The engine did not say how much of the prompt was in its cache.")
    ends = {
        "done": "It was done",
        "cancelled": "The client went away",
        "failed": "It failed",
        "refused": "It was refused",
    }
    text = f"{ends[record.end]} after {format_time(record.e2e_s)}, with status {record.status}"
    if record.output_tokens:
        text += f" and {counted(record.output_tokens, 'token')} of answer"
    if record.ttft_s is not None and record.output_tokens > 1:
        text += (
            f", {format_time((record.e2e_s - record.ttft_s) / (record.output_tokens - 1))} per token after the first"
        )
    lines.append(f"{text}.")
    return lines


def _against(record: RequestRecord, actual: float) -> str:
    predicted = record.predicted_ttft_s
    if predicted is None:
        return "; nothing had been predicted"
    text = f"; {format_time(max(0.0, predicted))} had been predicted"
    if predicted <= 0:
        return text
    change = actual / predicted - 1
    return f"{text}: {abs(change) * 100:.0f} % {'more' if change >= 0 else 'less'} than that"


def _goal(record: RequestRecord) -> str:
    if record.slo_ttft_s is None or record.ttft_s is None:
        return ""
    return " Its goal was met." if record.ttft_s <= record.slo_ttft_s else " Its goal was missed."


def _end(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
