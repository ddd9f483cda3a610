/* The few kernel types and functions that the programs use. Field offsets come from the running kernel's own type
 * information when a program is loaded, so only the names here must be right. */
#pragma once

typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef long long __s64;

/* How a program and a map are written down for the loader; helpers are called by their numbers (linux/bpf.h). */
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __ksym SEC(".ksyms")
#define INLINE static inline __attribute__((always_inline))
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_SK_STORAGE 24
#define BPF_F_NO_PREALLOC 1
#define BPF_SK_STORAGE_GET_F_CREATE 1

static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*const bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;

#define KERNEL_TYPE __attribute__((preserve_access_index))

struct sock {
} KERNEL_TYPE;

struct minmax_sample {
	__u32 v;
} KERNEL_TYPE;

struct minmax {
	struct minmax_sample s[3];
} KERNEL_TYPE;

struct tcp_sock {
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 prior_cwnd; /* when the last loss was found */
	__u32 packets_out;
	__u32 srtt_us; /* smoothed, times 8 */
	struct minmax rtt_min;
	__u64 bytes_acked;
} KERNEL_TYPE;

struct ack_sample {
	__u32 pkts_acked;
} KERNEL_TYPE;

enum tcp_ca_event {
	CA_EVENT_TX_START, /* the first packet when none was in flight */
};

#define TCP_CONG_NON_RESTRICTED 1 /* any user may choose it */

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	char name[16];
	__u32 flags;
};

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

INLINE struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

char _license[] SEC("license") = "GPL";
