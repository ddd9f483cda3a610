/* TCP CUBIC, the kernel's own, with F times as many packets acknowledged as there were. */
#include "flow.bpf.h"

extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;

SEC("struct_ops/cubic_init")
void cubic_init(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];

	flow_init(sk);
	cubictcp_init(sk);
}

SEC("struct_ops/cubic_release")
void cubic_release(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	bpf_sk_storage_delete(&flows, sk);
}

SEC("struct_ops/cubic_event")
void cubic_event(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	enum tcp_ca_event event = (enum tcp_ca_event)arguments[1];

	if (event == CA_EVENT_TX_START)
		flow_begins(sk);
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops/cubic_acked")
void cubic_acked(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	const struct ack_sample *sample = (const struct ack_sample *)arguments[1];

	flow_acked(sk);
	cubictcp_acked(sk, sample);
}

SEC("struct_ops/cubic_avoid")
void cubic_avoid(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	__u32 ack = (__u32)arguments[1];
	__u32 acked = (__u32)arguments[2];

	acked = flow_scaled(sk, acked);
	if (acked)
		cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops/cubic_state")
void cubic_state(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	__u8 new_state = (__u8)arguments[1];
	flow_guard(sk);
	cubictcp_state(sk, new_state);
}

SEC("struct_ops/cubic_ssthresh")
__u32 cubic_ssthresh(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	return flow_keeps(sk, 3 * ONE / 10, cubictcp_recalc_ssthresh(sk));
}

SEC("struct_ops/cubic_undo")
__u32 cubic_undo(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops")
struct tcp_congestion_ops headway_algorithm = {
	.init = (void *)cubic_init,
	.release = (void *)cubic_release,
	.cwnd_event = (void *)cubic_event,
	.pkts_acked = (void *)cubic_acked,
	.cong_avoid = (void *)cubic_avoid,
	.set_state = (void *)cubic_state,
	.ssthresh = (void *)cubic_ssthresh,
	.undo_cwnd = (void *)cubic_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "@@headway_name@",
};
