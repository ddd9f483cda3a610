"""Serving LLMs on machines that others use too: which replica answers a request, and how GPUs are shared out.

The planning half is pure, and the gateway and the simulation run the same objects: `request`, `replica`, `policy`,
`prefix`, `breaker`, `fleet`, `flight`, `router`, `policies`, `learned`, `engine`, `workload`, `simulate`; so are
`workflows` and `allocation`, which plan. Sockets, clocks and processes are in `bodies`, `gateway`, `enginehttp`,
`llama`, `loadgen`, `profiling` and `deploy`.
"""
