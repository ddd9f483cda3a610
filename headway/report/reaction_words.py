"""How a run answered one event or finding, in sentences. Pure."""

from __future__ import annotations

from headway.report.figures import Reaction
from headway.report.runs import Run, Span
from headway.report.words import counted, percent


def reaction_words(run: Run, reaction: Reaction) -> str:
    """How long it took until something was seen, and a better plan in force; what was blamed, rightly or not."""
    span = reaction.span
    text = f"{span.what} ({span.begin_s:.1f} s to {span.end_s:.1f} s):" if span.known else f"{_about(span)}:"
    if reaction.detection_s is None or reaction.detected_s is None:
        return f"{text} not detected." if run.decisions else f"{text} nobody looked."
    if span.known:
        text += f" {_blame(reaction)}"
    if reaction.reaction_s is None:
        text += " No other plan was kept while it lasted."
    else:
        between = reaction.better_after_operations or 0
        text += f" The better plan was in force after {reaction.reaction_s:.1f} s ({counted(between, 'operation')})"
        text += f"; its trial was based on {_grounds(reaction)}." if reaction.better_grounds else "."
    if reaction.recovery_s is not None:
        text += f" Back on the idle plan {reaction.recovery_s:.1f} s after its end."
    elif reaction.away and span.end_s < run.end_s:
        text += " Not back on the idle plan when the run ended."
    return text


def _blame(reaction: Reaction) -> str:
    """How long detection took, and which of the named links were right."""
    right, wrong = reaction.named_right, reaction.named_wrong
    if reaction.blame_right is None:
        return f"detected after {reaction.detection_s:.1f} s (named: {', '.join(reaction.blamed)})."
    if reaction.named_right_s is None:
        return (
            f"something was seen after {reaction.detection_s:.1f} s, but the right link was not named; "
            f"wrong: {', '.join(wrong)}."
        )
    text = f"detected after {reaction.detection_s:.1f} s. "
    text += f"{counted(len(right) + len(wrong), 'link')} named while it lasted: {len(right)} right "
    text += f"({', '.join(right)}; first after {reaction.named_right_s - reaction.span.begin_s:.1f} s), "
    return text + f"{len(wrong)} wrong" + (f" ({', '.join(wrong)})." if wrong else ".")


def _grounds(reaction: Reaction) -> str:
    """What the better plan's trial was based on."""
    told = []
    for ground in reaction.better_grounds:
        share = f" at {percent(ground.share)}" if ground.share is not None else ""
        judged = "right" if ground.link in reaction.named_right else "wrong"
        told.append(f"{ground.link}{share}" + (f" ({judged})" if reaction.blame_right is not None else ""))
    return " and ".join(told)


def _about(span: Span) -> str:
    return f"The finding about the {span.name} ({span.begin_s:.1f} s to {span.end_s:.1f} s)"
