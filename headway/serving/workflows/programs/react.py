"""An agent that thinks, acts and observes until it knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.serving.workflows.programs.form import CallModel, Context, Program, Sleep


@dataclass(frozen=True, slots=True)
class React:
    """A loop of unknown length: a thought and an action, a tool's time, an observation.

    After ReAct (Yao et al., 2023): few-shot examples ahead of each prompt, at most 7 turns on HotpotQA. Here up to 10,
    geometric with 5 in the mean before the cut, and a smaller model shortens the pages that a search brings. A turn's
    prompt is the one before and what came since, so that nearly all of it is found in the cache. Lengths are ours.

    Attributes:
        agent, reader: models.
        goes_on: probability of another turn (1).
        most_turns: limit (count).
        tool_s: median time of a tool (lognormal, sigma 0.7).
        reads: probability that a tool brings a page for the reader (1).
        page_tokens: median of a page (lognormal, sigma 0.6).
    """

    agent: str = "qwen2.5-14b"
    reader: str = "llama-3.2-3b"
    goes_on: float = 0.8
    most_turns: int = 10
    tool_s: float = 0.6
    reads: float = 0.6
    page_tokens: float = 2000.0

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it calls."""
        return (self.agent, self.reader)

    def __call__(self, context: Context) -> Program:
        """One run."""
        prompt = context.prompt(("react: tools and examples", 1600)).plus(context.text(), context.length(40, 0.5))
        for _ in range(self.most_turns):
            thought = context.length(70, 0.5, most=512)
            yield CallModel(self.agent, prompt, thought)
            yield Sleep(context.seconds(self.tool_s, 0.7))
            seen = context.length(120, 0.6, most=1024)
            if context.random.random() < self.reads:
                page = context.prompt(("react: shorten the page", 100))
                page = page.plus(context.text(), context.length(self.page_tokens, 0.6, most=8000))
                yield CallModel(self.reader, page, seen)
            prompt = prompt.plus(context.text(), thought + seen)
            if context.random.random() >= self.goes_on:
                break
        yield CallModel(self.agent, prompt, context.length(60, 0.5, most=512))
