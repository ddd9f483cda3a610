"""A continuous-batching engine as a model: what vLLM v1 would do next, and how long that takes. Pure.

A step has a budget of tokens. Running requests past their first token get one each; then prompts under way get a chunk;
then waiting requests are admitted, by priority and then arrival, while there is budget, room in the batch and memory
for their first chunk. Where a running request needs a block and none is free, the newest running one of the lowest
priority is preempted: its blocks are freed and it waits for its turn again, to be computed anew with what it has
answered so far. In a step that preempts nothing is admitted. How long a step takes: see `EngineProfile`.

Left out: the answer's blocks are not found again by later prompts; sampling, detokenisation and the API server cost
nothing beyond `step_s`; a preempted request keeps no part of its answer's cache.

Cost: steps that only decode cost O(1), however large the batch, and `begin_steps` takes many of them at once; else
O(blocks touched) in all, and O(log n) for each request that comes.
"""

from __future__ import annotations

import heapq

from headway.errors import HeadwayError, UsageError
from headway.serving.engine.cache import BlockCache
from headway.serving.engine.decoding import Decoding
from headway.serving.engine.sequence import Phase, Sequence
from headway.serving.engine.series import Series, even_steps
from headway.serving.engine.types import EngineProfile, Job, Token
from headway.serving.replica import EngineReport


class EngineCore:
    """One engine. Drive it with `begin_step` and `end_step` by turns, or with `begin_steps` and `end_steps`.

    Attributes:
        profile: how fast it is and how much it holds.
        due_s: when the step that runs, or the series of steps, ends; None where none runs. `submit`, `cancel` and
            `slow_down` may bring it forward.
        preemptions: how often a request was preempted so far (count).
    """

    def __init__(self, profile: EngineProfile) -> None:
        if profile.step_tokens < profile.most_running:
            raise UsageError(
                f"a step of {profile.step_tokens} tokens cannot hold {profile.most_running} running requests",
                where="step_tokens",
                hint="raise step_tokens or lower most_running",
            )
        blocks = profile.cache_tokens // profile.block_tokens
        if blocks < 1:
            raise UsageError(
                f"a cache of {profile.cache_tokens} tokens has no room for a block of {profile.block_tokens}",
                where="cache_tokens",
            )
        self.profile = profile
        self.due_s: float | None = None
        self.preemptions = 0
        self._cache = BlockCache(blocks, keeps=profile.prefix_caching)
        self._sequences: dict[str, Sequence] = {}
        self._submitted = 0
        self._queue: list[tuple[tuple[int, int], int, Sequence]] = []
        self._waiting = 0
        self._running: dict[str, Sequence] = {}
        self._prefilling: dict[str, Sequence] = {}
        self._decoding = Decoding(profile.block_tokens)
        self._slowness = 1.0
        self._series: Series | None = None

    @property
    def running(self) -> int:
        """Requests in the batch (count)."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue, the preempted ones included (count)."""
        return self._waiting

    @property
    def cached_tokens(self) -> int:
        """Tokens that a prompt could find in the prefix cache, used or not."""
        return self._cache.findable * self.profile.block_tokens

    @property
    def free_tokens(self) -> int:
        """Tokens in blocks that no running request uses, those that still hold a prefix included."""
        return self._cache.free * self.profile.block_tokens

    def report(self) -> EngineReport:
        """What the engine says in its metrics."""
        cache = self._cache
        return EngineReport(
            running=len(self._running),
            waiting=self._waiting,
            kv_usage=1 - cache.free / cache.blocks,
            cache_tokens=cache.blocks * self.profile.block_tokens,
        )

    def produced(self, now_s: float) -> dict[str, int]:
        """Tokens produced so far by each request past its first one. Costs O(batch)."""
        series = self._series
        ended = series.begun(now_s) - 1 if series is not None and series.steps > 1 else 0
        return {it.job.id: tokens for it, tokens in self._decoding.produced(ended)}

    def submit(self, job: Job, now_s: float) -> None:
        """Queue a request. UsageError where the engine could never run it, or where one of that id is in it."""
        self._check(job)
        self.cut(now_s)
        self._submitted += 1
        whole = min(len(job.blocks), job.input_tokens // self.profile.block_tokens)
        sequence = Sequence(job, (job.priority, self._submitted), whole)
        self._sequences[job.id] = sequence
        self._enqueue(sequence)

    def cancel(self, id_: str, now_s: float) -> bool:
        """Drop a request and free its blocks at once; a step that runs goes on. False where there is none."""
        sequence = self._sequences.get(id_)
        if sequence is None:
            return False
        self.cut(now_s)
        self._leave(sequence)
        sequence.phase = Phase.GONE
        del self._sequences[id_]
        return True

    def slow_down(self, factor: float, now_s: float) -> None:
        """From the next step on, steps take `factor` times as long as the profile says."""
        if not factor > 0:
            raise UsageError(f"a slowdown of {factor:g} is not above 0", where="factor")
        self.cut(now_s)
        self._slowness = factor

    def begin_step(self, now_s: float) -> float | None:
        """Begin a step: how long it takes, seconds; None when there is nothing to do."""
        return self._begin(now_s, series=False)

    def end_step(self, now_s: float) -> list[Token]:
        """The step ends: all tokens that it produced."""
        return self._end(self._taken(), sparse=False)

    def begin_steps(self, now_s: float) -> float | None:
        """Begin as many steps as will pass without a request's first or last token; else as `begin_step`.

        When something happens before that, `due_s` moves to the end of the step that runs then.
        """
        return self._begin(now_s, series=True)

    def end_steps(self, now_s: float) -> list[Token]:
        """The series ends: of the tokens that it produced, requests' first and last ones."""
        return self._end(self._taken(), sparse=True)

    def _check(self, job: Job) -> None:
        where = f"request {job.id}"
        if job.id in self._sequences:
            raise UsageError("a request of this id is still in the engine", where=where)
        if job.input_tokens < 1 or job.output_tokens < 1:
            raise UsageError("a request needs a token of input and one of output at least", where=where)
        tokens = job.input_tokens + job.output_tokens - 1  # the last one is never read
        if self._blocks_for(tokens) > self._cache.blocks:
            raise UsageError(
                f"{job.input_tokens} tokens of input and {job.output_tokens} of output do not fit "
                f"into a cache of {self._cache.blocks * self.profile.block_tokens} tokens",
                where=where,
                hint="shorten the prompt or lower max_tokens",
            )

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    def cut(self, now_s: float) -> None:
        """A series of steps ends with the step that runs at `now_s`: `due_s` is its end."""
        series = self._series
        if series is not None and series.steps > 1:
            series.steps = series.begun(now_s)
            self.due_s = series.begin_s + series.elapsed_s(series.steps)

    def _taken(self) -> Series:
        series = self._series
        if series is None:
            raise HeadwayError("an engine's step ended that had not begun")
        self._series, self.due_s = None, None
        return series

    # Where a sequence stands.

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        sequence.moves += 1
        sequence.target = sequence.job.input_tokens + sequence.produced
        sequence.computed = 0
        self._waiting += 1
        heapq.heappush(self._queue, (sequence.key, sequence.moves, sequence))

    def _leave(self, sequence: Sequence) -> None:
        """Take it out of the queue or the batch, blocks and all."""
        id_ = sequence.job.id
        if sequence.phase is Phase.WAITING:
            self._waiting -= 1  # its entry in the heap is void, since `moves` grows
        else:
            if sequence.phase is Phase.DECODE:
                self._decoding.leave(sequence)
            else:
                del self._prefilling[id_]
            del self._running[id_]
            self._cache.release(sequence.named, sequence.unnamed)
            sequence.named, sequence.unnamed, sequence.seen_blocks = [], 0, 0
        sequence.moves += 1

    def _make_room(self, sequence: Sequence, blocks: int) -> tuple[bool, bool]:
        """Give a running sequence that many more blocks: whether it got them, and whether anyone was preempted."""
        preempted = False
        while blocks > self._cache.free:
            victim = max(self._running.values(), key=lambda it: it.key)
            self._leave(victim)
            self._enqueue(victim)
            self.preemptions += 1
            preempted = True
            if victim is sequence:
                return False, True
        self._cache.take(blocks)
        sequence.unnamed += blocks
        return True, preempted

    # What a step does.

    def _begin(self, now_s: float, *, series: bool) -> float | None:
        if self._series is not None:
            raise HeadwayError("an engine's step began before the one before it had ended")
        if not self._sequences:
            return None
        preempted = self._serve_needs()
        chunks: list[tuple[Sequence, int, int]] = []
        if self._prefilling or self._waiting:
            preempted = self._continue_prompts(chunks) or preempted
            if not preempted:
                self._admit(chunks)
        profile = self.profile
        batch, context = len(self._decoding), self._decoding.context
        tokens, pairs = batch, float(context)
        for sequence, _, chunk in chunks:
            tokens += chunk
            pairs += chunk * (sequence.computed + chunk / 2)
        compute_s = tokens * profile.token_s + pairs * profile.attention_s
        memory_s = profile.weights_s + context * profile.context_s
        seconds = profile.step_s + max(compute_s, memory_s)
        steps, more_s = 1, 0.0
        if series and not chunks and not preempted:
            steps, more_s = even_steps(
                self._decoding.quiet_steps(),
                compute_s=compute_s,
                compute_more_s=batch * profile.attention_s,
                memory_s=memory_s,
                memory_more_s=batch * profile.context_s,
            )
        slowness = self._slowness
        self._series = Series(now_s, steps, seconds * slowness, more_s * slowness, chunks)
        lasts_s = self._series.elapsed_s(steps)
        self.due_s = now_s + lasts_s
        return lasts_s

    def _serve_needs(self) -> bool:
        """Blocks for those whose next token begins one: whether anyone was preempted."""
        preempted = False
        for sequence in self._decoding.needy():
            got, others = self._make_room(sequence, 1)
            preempted = preempted or others
            if got:
                self._decoding.got_block(sequence)
        return preempted

    def _continue_prompts(self, chunks: list[tuple[Sequence, int, int]]) -> bool:
        """A chunk for each prompt under way: whether anyone was preempted."""
        budget = self.profile.step_tokens - len(self._decoding)
        preempted = False
        for sequence in sorted(self._prefilling.values(), key=lambda it: it.key):
            chunk = min(sequence.target - sequence.computed, budget)
            if chunk <= 0 or sequence.phase is not Phase.PREFILL:
                continue
            got, others = self._make_room(sequence, self._blocks_for(sequence.computed + chunk) - sequence.blocks)
            preempted = preempted or others
            if got:
                chunks.append((sequence, sequence.moves, chunk))
                budget -= chunk
        return preempted

    def _admit(self, chunks: list[tuple[Sequence, int, int]]) -> None:
        profile, cache = self.profile, self._cache
        budget = profile.step_tokens - len(self._decoding) - sum(chunk for _, _, chunk in chunks)
        while self._waiting and budget > 0 and len(self._running) < profile.most_running:
            _, moves, sequence = self._queue[0]
            if sequence.moves != moves:
                heapq.heappop(self._queue)
                continue
            hits = self._hits(sequence)
            computed = hits * profile.block_tokens
            chunk = sequence.target - computed
            if chunk > budget:
                if profile.chunked_prefill:
                    chunk = budget
                elif chunks:
                    return
            found = sequence.job.blocks[:hits]
            blocks = self._blocks_for(computed + chunk) - hits
            if blocks + cache.unused(found) > cache.free:
                return
            heapq.heappop(self._queue)
            cache.use(found)
            cache.take(blocks)
            sequence.named, sequence.unnamed, sequence.seen_blocks = list(found), blocks, hits
            sequence.computed = computed
            if sequence.cached_tokens < 0:
                sequence.cached_tokens = computed
            sequence.phase = Phase.PREFILL
            sequence.moves += 1
            self._waiting -= 1
            self._running[sequence.job.id] = self._prefilling[sequence.job.id] = sequence
            chunks.append((sequence, sequence.moves, chunk))
            budget -= chunk

    def _hits(self, sequence: Sequence) -> int:
        """Blocks of its prompt that are in the cache; one token at least remains to be computed."""
        most = min(sequence.whole_blocks, (sequence.target - 1) // self.profile.block_tokens)
        return self._cache.hits(sequence.job.blocks, most)

    def _end(self, series: Series, *, sparse: bool) -> list[Token]:
        self._decoding.pass_steps(series.steps)
        tokens: list[Token] = []
        if not sparse:
            for it, number in self._decoding.produced():
                tokens.append(Token(it.job.id, number, number == it.job.output_tokens, it.cached_tokens))
        for sequence in self._decoding.ended():
            self._finish(sequence)
            if sparse:
                tokens.append(Token(sequence.job.id, sequence.produced, True, sequence.cached_tokens))
        for sequence, moves, chunk in series.chunks:
            if sequence.moves == moves:
                self._computed(sequence, chunk, tokens, sparse=sparse)
        return tokens

    def _finish(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.phase = Phase.GONE
        del self._sequences[sequence.job.id]

    def _computed(self, sequence: Sequence, chunk: int, tokens: list[Token], *, sparse: bool) -> None:
        sequence.computed += chunk
        whole = min(sequence.computed // self.profile.block_tokens, sequence.whole_blocks)
        for block in sequence.job.blocks[sequence.seen_blocks : whole]:
            if self._cache.name(block):
                sequence.named.append(block)
                sequence.unnamed -= 1
        sequence.seen_blocks = max(whole, sequence.seen_blocks)
        if sequence.computed < sequence.target:
            return
        sequence.produced += 1
        last = sequence.produced == sequence.job.output_tokens
        if not sparse or last or sequence.produced == 1:
            tokens.append(Token(sequence.job.id, sequence.produced, last, sequence.cached_tokens))
        if last:
            self._finish(sequence)
        else:
            del self._prefilling[sequence.job.id]
            self._decoding.join(sequence)
