"""Retrieval, reranking of the passages, and an answer from the best of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.serving.workflows.programs.form import All, CallModel, Context, Program, Sleep, text_of


@dataclass(frozen=True, slots=True)
class Rag:
    """Rewrite the question, search, rerank all passages side by side, answer from the best ones.

    The shape of the common recipe (a retriever's 20 passages, a pointwise LLM reranker that answers with one token, as
    bge-reranker-v2-gemma does, the 5 best to the generator). Passages are chunks of 256 tokens; questions and answers
    are as in open-domain question answering (some 20 and 200 tokens); the figures are ours. All prompts of one role
    begin alike, and all reranker calls of a run share the question too. Passages come from `documents` by a Zipf law
    of exponent 0.9: in the generator's prompt the first passage is found in the cache now and then.

    Attributes:
        rewriter, reranker, generator: models.
        passages, kept: how many are reranked, and how many are read (counts).
        passage_tokens: of each.
        search_s: median time of the search (lognormal, sigma 0.5).
        answer_tokens: median of an answer (lognormal, sigma 0.6).
        documents: passages in the store (count).
    """

    rewriter: str = "llama-3.2-1b"
    reranker: str = "qwen2.5-1.5b"
    generator: str = "qwen2.5-7b"
    passages: int = 20
    kept: int = 5
    passage_tokens: int = 256
    search_s: float = 0.05
    answer_tokens: float = 200.0
    documents: int = 100_000

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it calls."""
        return (self.rewriter, self.reranker, self.generator)

    def __call__(self, context: Context) -> Program:
        """One run."""
        question, tokens = context.text(), context.length(20, 0.5)
        rewrite = context.prompt(("rag: rewrite", 120)).plus(question, tokens)
        yield CallModel(self.rewriter, rewrite, context.length(25, 0.4))
        yield Sleep(context.seconds(self.search_s, 0.5, most_s=2.0))
        found = [(f"passage {self._document(context)}", self.passage_tokens) for _ in range(self.passages)]
        judge = context.prompt(("rag: does the passage answer the question", 80)).plus(question, tokens)
        yield All([CallModel(self.reranker, judge.plus(text_of(name), size), 1) for name, size in found])
        best = context.random.sample(found, self.kept)
        answer = context.prompt(("rag: answer from the passages", 150), *best).plus(question, tokens)
        yield CallModel(self.generator, answer, context.length(self.answer_tokens, 0.6, most=1024))

    def _document(self, context: Context) -> int:
        """Zipf's law with exponent a below 1, by its inverse for a continuous rank: documents * u^(1 / (1 - a))."""
        return int(self.documents * context.random.random() ** 10)
