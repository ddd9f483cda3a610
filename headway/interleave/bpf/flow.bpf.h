/* One flow: what user space sets, what the programs know, and F. */
#pragma once

#include "tracker.bpf.h"

struct settings { /* 16.16 */
	__u32 slope;
	__u32 intercept;
	__u32 most;
	__u32 held; /* F held at this; 0: it follows iterations */
	__u32 options;
};

struct flow {
	struct tracker tracker;
	__u32 weight; /* F now, 16.16 */
	__u32 remainder; /* of acknowledged packets, 16.16 */
	__u32 held_back; /* slow start's end before this iteration moved it; 0: it did not */
	__u32 unused;
};

const volatile struct settings defaults = { 7 * ONE / 4, ONE / 4, 16 * ONE, 0, 0 };

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

	return tcp_sk(sk)->srtt_us >> 3 > least + least / 2 + 250;
}

/* Acknowledged packets as the algorithm shall see them: times F, once slow start is over; what is less than one packet
 * is kept for the next time.
 *
 * Slow start's end was learned with the F of the last iteration's end. With a smaller F it comes earlier, but only once
 * there is a queue: a flow that is alone loses nothing. When the queue is gone slow start goes on. */
INLINE __u32 flow_scaled(struct sock *sk, __u32 acked)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	const struct settings *set = bpf_sk_storage_get(&settings, sk, 0, 0);
	__u32 options = set ? set->options : defaults.options;
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 scaled;
	__u32 weight;

	if (!f)
		return acked;
	weight = flow_weight(sk, f);
	if (options & 2) {
		if (tp->snd_cwnd < tp->snd_ssthresh && weight < ONE && flow_queued(sk)) {
			f->held_back = tp->snd_ssthresh;
			tp->snd_ssthresh = tp->snd_cwnd;
		} else if (f->held_back && !flow_queued(sk)) {
			tp->snd_ssthresh = f->held_back;
			f->held_back = 0;
		}
	}
	if (tp->snd_cwnd < tp->snd_ssthresh)
		return acked;
	if ((options & 4) && weight < ONE && !flow_queued(sk))
		weight = ONE;
	scaled = (__u64)acked * weight + f->remainder;
	f->remainder = scaled & (ONE - 1);
	return scaled >> 16;
}

/* Window after a loss; `part` of it (16.16) is given up at F = 1, 2 * part / (1 + F) at others. */
INLINE __u32 flow_keeps(struct sock *sk, __u32 part, __u32 plain)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	const struct settings *set = bpf_sk_storage_get(&settings, sk, 0, 0);
	__u32 cwnd = tcp_sk(sk)->snd_cwnd, left;
	__u64 weight;

	if (f)
		f->held_back = 0;
	if (!f || !((set ? set->options : defaults.options) & 1))
		return plain;
	weight = flow_weight(sk, f);
	left = cwnd - (__u32)((cwnd * 2ull * part) / (ONE + weight));
	return left > 2 ? left : 2;
}
