"""Agents of several models that answer, read each other's answers, and answer again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.serving.workflows.programs.form import All, CallModel, Context, Program


@dataclass(frozen=True, slots=True)
class Debate:
    """Rounds with a barrier, in which each agent answers; then a judge decides.

    After multi-agent debate (Du et al., 2023: 3 agents, 2 rounds of reading the others after the first answers), with
    a judge as in MAD (Liang et al., 2023). An agent's prompt grows by its own answer and by the others': what it had
    before is found in the cache. Lengths are ours, as of chain-of-thought answers to word problems.

    Attributes:
        agents: a model for each.
        judge: a model.
        rounds: answers of each agent (count).
        answer_tokens: median of an answer (lognormal, sigma 0.4).
    """

    agents: tuple[str, ...] = ("llama-3-8b", "qwen2.5-7b", "deepseek-7b")
    judge: str = "qwen2.5-14b"
    rounds: int = 3
    answer_tokens: float = 220.0

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it calls."""
        return tuple(dict.fromkeys((*self.agents, self.judge)))

    def __call__(self, context: Context) -> Program:
        """One run."""
        question, tokens = context.text(), context.length(130, 0.4)
        prompts = [
            context.prompt((f"debate: you are agent {agent}", 90)).plus(question, tokens)
            for agent in range(len(self.agents))
        ]
        said: list[tuple[int, int]] = []
        for _ in range(self.rounds):
            lengths = [context.length(self.answer_tokens, 0.4, most=1024) for _ in self.agents]
            yield All([CallModel(*it) for it in zip(self.agents, prompts, lengths, strict=True)])
            said = [(context.text(), length) for length in lengths]
            for agent, own in enumerate(said):
                others = [answer for other, answer in enumerate(said) if other != agent]
                for text, length in (own, *others):
                    prompts[agent] = prompts[agent].plus(text, length)
        verdict = context.prompt(("debate: decide", 150)).plus(question, tokens)
        for text, length in said:
            verdict = verdict.plus(text, length)
        yield CallModel(self.judge, verdict, context.length(80, 0.4, most=512))
