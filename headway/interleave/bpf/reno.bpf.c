/* TCP Reno whose additive increase is scaled by F. */
#include "flow.bpf.h"

SEC("struct_ops/reno_init")
void reno_init(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	flow_init(sk);
}

SEC("struct_ops/reno_release")
void reno_release(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	bpf_sk_storage_delete(&flows, sk);
}

SEC("struct_ops/reno_event")
void reno_event(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	enum tcp_ca_event event = (enum tcp_ca_event)arguments[1];

	if (event == CA_EVENT_TX_START)
		flow_begins(sk);
}

SEC("struct_ops/reno_acked")
void reno_acked(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	flow_acked(sk);
}

SEC("struct_ops/reno_avoid")
void reno_avoid(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	__u32 ack = (__u32)arguments[1];
	__u32 acked = (__u32)arguments[2];

	acked = flow_scaled(sk, acked);
	if (acked)
		tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops/reno_state")
void reno_state(__u64 *arguments)
{
	flow_guard((struct sock *)arguments[0]);
}

SEC("struct_ops/reno_ssthresh")
__u32 reno_ssthresh(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	return flow_keeps(sk, ONE / 2, tcp_reno_ssthresh(sk));
}

SEC("struct_ops/reno_undo")
__u32 reno_undo(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops")
struct tcp_congestion_ops headway_algorithm = {
	.init = (void *)reno_init,
	.release = (void *)reno_release,
	.cwnd_event = (void *)reno_event,
	.pkts_acked = (void *)reno_acked,
	.cong_avoid = (void *)reno_avoid,
	.set_state = (void *)reno_state,
	.ssthresh = (void *)reno_ssthresh,
	.undo_cwnd = (void *)reno_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "@@headway_name@",
};
