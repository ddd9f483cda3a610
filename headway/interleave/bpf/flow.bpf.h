/* One flow: what user space sets, what the programs know, and F. */
#pragma once

#include "tracker.bpf.h"

#define MOST_WINDOW (1u << 24) /* packets; no window is so large */
#define ENDLESS 0x7fffffffu /* slow start's end before the first loss, as in the kernel */
#define QUEUE_US 250 /* less may be a late wake-up */
#define LEAST_WINDOW 2 /* packets, as in the kernel */

struct settings { /* 16.16 */
	__u32 slope;
	__u32 intercept;
	__u32 most;
	__u32 held; /* F held at this; 0: it follows iterations */
};

struct flow {
	struct tracker tracker;
	__u32 weight; /* F now, 16.16 */
	__u32 remainder; /* of acknowledged packets, 16.16 */
	__u32 plain_end; /* where slow start would end at F = 1; 0: F has not moved its end */
	__u32 repairs; /* see flow_guard */
};

const volatile struct settings defaults = { 7 * ONE / 4, ONE / 4, 16 * ONE, 0 };

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

INLINE void flow_init(struct sock *sk)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!f)
		return;
	__builtin_memset(f, 0, sizeof(*f));
	f->tracker.total = f->tracker.before = tcp_sk(sk)->bytes_acked;
	f->weight = ONE;
}

/* About once in several hundred losses on a busy machine (Linux 6.18), the kernel did not run the program of ssthresh()
 * or undo_cwnd() and took what lay on its stack for the answer: the flow then sent more packets again than new ones,
 * for seconds. So a window that cannot be is put right as soon as the state changes, or with the next
 * acknowledgement, and is counted. */
INLINE void flow_guard(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 prior = tp->prior_cwnd, end = tp->snd_ssthresh;
	int wrong_end = end > MOST_WINDOW && end != ENDLESS, wrong_window = tp->snd_cwnd > MOST_WINDOW;
	struct flow *f;

	if (!wrong_end && !wrong_window)
		return;
	if (prior > MOST_WINDOW || prior < 2 * LEAST_WINDOW)
		prior = 2 * LEAST_WINDOW;
	if (wrong_end)
		tp->snd_ssthresh = prior / 2;
	if (wrong_window)
		tp->snd_cwnd = prior;
	f = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (f)
		f->repairs++;
}

/* Sending begins when nothing was in flight. One byte is counted ahead, so that the pause ends now and not with the
 * first acknowledgement. A retransmission after a timeout also finds nothing in flight, but packets out. */
INLINE void flow_begins(struct sock *sk)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);

	if (f && !tcp_sk(sk)->packets_out)
		tracker_sent(&f->tracker, bpf_ktime_get_ns(), tcp_sk(sk)->bytes_acked + 1, 1);
}

INLINE void flow_acked(struct sock *sk)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);

	flow_guard(sk);
	if (f)
		tracker_sent(&f->tracker, bpf_ktime_get_ns(), tcp_sk(sk)->bytes_acked, 0);
}

/* F now, 16.16. */
INLINE __u32 flow_weight(struct sock *sk, struct flow *f)
{
	const struct settings *set = bpf_sk_storage_get(&settings, sk, 0, 0);
	__u64 slope = set ? set->slope : defaults.slope, weight;
	__s64 ratio = tracker_ratio(&f->tracker);

	if (set && set->held)
		weight = set->held;
	else if (ratio < 0)
		weight = ONE;
	else {
		__u32 most = set ? set->most : defaults.most;

		weight = (slope * ratio >> 16) + (set ? set->intercept : defaults.intercept);
		if (weight > most)
			weight = most;
	}
	f->weight = weight;
	return weight;
}

/* Whether packets wait in a queue on the way: the round trip is clearly longer than the shortest one seen. */
INLINE int flow_queued(struct sock *sk)
{
	__u32 least = tcp_sk(sk)->rtt_min.s[0].v;

	return tcp_sk(sk)->srtt_us >> 3 > least + least / 2 + QUEUE_US;
}

/* With F below 1 in front of a queue slow start ends at F times the window where it would end, and moves on as F grows:
 * the window that a flow learned late in its last iteration is not what it may take early in this one. In congestion
 * avoidance alone it would reach its share only after many round trips, which may be most of an iteration. Without a
 * queue nobody is in the way, and slow start ends where it always does: a flow that is alone loses nothing. */
INLINE void flow_moves_end(struct sock *sk, struct flow *f, __u32 weight)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (weight < ONE && flow_queued(sk)) {
		if (!f->plain_end && tp->snd_cwnd < tp->snd_ssthresh)
			f->plain_end = tp->snd_ssthresh;
		if (f->plain_end) {
			__u32 end = (__u64)f->plain_end * weight >> 16;

			tp->snd_ssthresh = end > LEAST_WINDOW ? end : LEAST_WINDOW;
		}
	} else if (f->plain_end) {
		tp->snd_ssthresh = f->plain_end;
		f->plain_end = 0;
	}
}

/* Acknowledged packets as the algorithm shall see them: times F, once slow start is over; what is less than one packet
 * is kept for the next time. Without a queue F is at least 1. */
INLINE __u32 flow_scaled(struct sock *sk, __u32 acked)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	__u32 weight;
	__u64 scaled;

	if (!f)
		return acked;
	weight = flow_weight(sk, f);
	flow_moves_end(sk, f, weight);
	if (tcp_sk(sk)->snd_cwnd < tcp_sk(sk)->snd_ssthresh)
		return acked;
	if (weight < ONE && !flow_queued(sk))
		weight = ONE;
	scaled = (__u64)acked * weight + f->remainder;
	f->remainder = scaled & (ONE - 1);
	return scaled >> 16;
}

/* The window after a loss. Plain TCP gives up `part` (16.16) of it; with F above 1 it is 2 * part / (1 + F), since with
 * the growth alone scaled, shares follow the root of F at best. Below 1 it stays `part`: a flow that gave up more would
 * be starved beside plain TCP. */
INLINE __u32 flow_keeps(struct sock *sk, __u32 part, __u32 plain)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	__u32 cwnd = tcp_sk(sk)->snd_cwnd, left;
	__u64 weight;

	if (!f)
		return plain;
	weight = flow_weight(sk, f);
	left = weight > ONE ? cwnd - (__u32)(cwnd * 2ull * part / (ONE + weight)) : plain;
	if (left < LEAST_WINDOW)
		left = LEAST_WINDOW;
	f->plain_end = weight < ONE ? (__u32)(((__u64)left << 16) / weight) : 0;
	return left;
}
