/* The tracker alone, fed one event at a time. */
#include "tracker.bpf.h"

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, struct tracker);
} tracked SEC(".maps");

struct event {
	__u64 now_ns;
	__u64 total;
	__u64 idle;
	__s64 ratio;
};

SEC("syscall")
int feed(struct event *event)
{
	int first = 0;
	struct tracker *tracker = bpf_map_lookup_elem(&tracked, &first);

	if (!tracker)
		return 1;
	tracker_sent(tracker, event->now_ns, event->total, event->idle != 0);
	event->ratio = tracker_ratio(tracker);
	return 0;
}
