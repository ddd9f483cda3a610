/* Iterations in what a flow sends: headway/interleave/iterations.py in integers, which has the explanations.
 * Times are nanoseconds, ratios and weights 16.16 fixed point. */
#pragma once

#include "kernel.bpf.h"

#define ONE (1u << 16)
#define KEEP 8
#define PAUSES 32 /* 4 * KEEP */
#define LEAST 2
#define RECENT 3 /* max(3, LEAST) */
#define SPREAD_PERCENT 15
#define LEAST_PAUSE_NS 10000000ull

struct iteration {
	__u64 start_ns;
	__u64 last_ns;
	__u64 sent;
	__u64 next_ns;
};

struct tracker {
	__u64 start_ns; /* of this iteration; 0 before the first byte */
	__u64 last_ns;
	__u64 total;
	__u64 before; /* total when this iteration began */
	__u64 threshold_ns;
	__u64 expected_twice; /* twice the bytes of an iteration, since a median may be between two; 0: not periodic */
	__u64 pauses_ns[PAUSES];
	struct iteration ended[KEEP];
	__u32 pauses; /* how many there have been; the last ones are kept */
	__u32 iterations;
};

INLINE __u64 apart(__u64 a, __u64 b)
{
	return a > b ? a - b : b - a;
}

/* Bytes per iteration anew: the median of the last three (or two), if they agree. */
INLINE void tracker_agree(struct tracker *t)
{
	__u64 a, b, c, twice;
	__u32 n = t->iterations;

	t->expected_twice = 0;
	if (n < LEAST)
		return;
	a = t->ended[(n - 1) % KEEP].sent;
	b = t->ended[(n - 2) % KEEP].sent;
	if (n == 2) {
		c = a;
		twice = a + b;
	} else {
		c = t->ended[(n - 3) % KEEP].sent;
		__u64 low = a < b ? a : b, high = a < b ? b : a;
		twice = 2 * (c < low ? low : c > high ? high : c);
	}
	if (100 * apart(2 * a, twice) <= SPREAD_PERCENT * twice && 100 * apart(2 * b, twice) <= SPREAD_PERCENT * twice &&
	    100 * apart(2 * c, twice) <= SPREAD_PERCENT * twice)
		t->expected_twice = twice;
}

INLINE void tracker_pause(struct tracker *t, __u64 pause_ns)
{
	__u64 longest = 0;

	t->pauses_ns[t->pauses % PAUSES] = pause_ns;
	t->pauses++;
	for (int i = 0; i < PAUSES; i++)
		if (t->pauses_ns[i] > longest)
			longest = t->pauses_ns[i];
	t->threshold_ns = longest / 2 > LEAST_PAUSE_NS ? longest / 2 : LEAST_PAUSE_NS;
}

/* The flow has sent `total` bytes by `now_ns`; `idle`: and had nothing to send before. */
INLINE void tracker_sent(struct tracker *t, __u64 now_ns, __u64 total, int idle)
{
	__u64 pause_ns;

	if (!t->start_ns) {
		t->start_ns = t->last_ns = now_ns;
		t->threshold_ns = LEAST_PAUSE_NS;
	}
	if (total <= t->total)
		return;
	pause_ns = now_ns - t->last_ns;
	if (idle && pause_ns > LEAST_PAUSE_NS) {
		if (pause_ns > t->threshold_ns) {
			struct iteration *i = &t->ended[t->iterations % KEEP];

			i->start_ns = t->start_ns;
			i->last_ns = t->last_ns;
			i->sent = t->total - t->before;
			i->next_ns = now_ns;
			t->iterations++;
			t->start_ns = now_ns;
			t->before = t->total;
			tracker_agree(t);
		}
		tracker_pause(t, pause_ns);
	}
	t->last_ns = now_ns;
	t->total = total;
}

/* Part of this iteration's bytes that has been sent, in 16.16; -1 while traffic is not periodic. */
INLINE __s64 tracker_ratio(const struct tracker *t)
{
	__u64 sent_twice = 2 * (t->total - t->before);

	if (!t->expected_twice || 100 * sent_twice > (100 + SPREAD_PERCENT) * t->expected_twice)
		return -1;
	return sent_twice < t->expected_twice ? (sent_twice << 16) / t->expected_twice : ONE;
}
