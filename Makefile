# Everything happens in .venv, which the first target that needs it makes; needs Python 3.11 with its venv module.
PYTHON ?= python3.11
OUT ?= out
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test check format bench bench-sim bench-serving bench-peers bpf clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    the main thing, in about 3 minutes: congestion under DDP training, gloo and Headway (root)"
	@echo "make test    all tests; those that need root say so when they are skipped"
	@echo "make check   format, lint, types, import rules"
	@echo "make bench   the tables of docs/results.md but the detector's, into $(OUT)/bench; about 2 hours (root)"
	@echo "make bench-sim  the simulator's tables, into $(OUT)/bench; about half an hour"
	@echo "make bench-serving  the gateway's tables and those of workflows, into $(OUT)/bench; about 4 hours"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make clean   remove what was made, except .venv"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -qy --no-install-recommends python3.11 python3.11-venv; \
	  else \
	    echo "$(PYTHON) with venv is missing: apt install python3.11-venv" >&2; exit 2; \
	  fi
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/headway demo --out $(OUT)/demo

# What compiles and loads the congestion controls; without it `headway doctor` and the skipped tests say what is missing.
bpf: $(STAMP)
	@$(BIN)/python -c 'import sys; from headway.interleave import bpf_build, libbpf; \
	  sys.exit(not (bpf_build.compiler() and libbpf.version()))' || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -qy --no-install-recommends clang-16 libbpf1 || \
	      echo "no clang and libbpf: the tests of the BPF actuators will be skipped" >&2; \
	  else \
	    echo "for the BPF actuators: apt install clang-16 libbpf1; their tests will be skipped" >&2; \
	  fi

test: $(STAMP) bpf
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-peers:
	@command -v mpirun.openmpi >/dev/null && command -v mpiexec.mpich >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -qy --no-install-recommends openmpi-bin mpich; \
	  else \
	    echo "the MPI peers are missing: apt install openmpi-bin mpich" >&2; exit 2; \
	  fi

bench: $(STAMP) bpf bench-peers
	mkdir -p $(OUT)/bench
	$(BIN)/python -m bench.all_reduce_star8 --out $(OUT)/bench/star8.json
	$(BIN)/python -m bench.rack2x4 --out $(OUT)/bench/rack2x4.json
	$(BIN)/python -m bench.reaction --out $(OUT)/bench/reaction
	$(BIN)/python -m bench.ddp --out $(OUT)/bench/ddp
	$(BIN)/python -m bench.agreement --out $(OUT)/bench/agreement.json
	$(BIN)/python -m bench.interleave --out $(OUT)/bench/interleave

bench-sim: $(STAMP)
	mkdir -p $(OUT)/bench
	$(BIN)/python -m bench.sim_scale --out $(OUT)/bench/sim-scale.json
	$(BIN)/python -m bench.sim_runs --out $(OUT)/bench/sim-runs.json
	$(BIN)/python -m bench.interleave_sim --out $(OUT)/bench/interleave-sim.json
	$(BIN)/python -m bench.react_study --out $(OUT)/bench/react-study --most-hosts 128

bench-serving: $(STAMP)
	mkdir -p $(OUT)/bench
	$(BIN)/python -m bench.routing_study --out $(OUT)/bench/routing
	$(BIN)/python -m bench.routing_http --out $(OUT)/bench/routing-http.json
	$(BIN)/python -m bench.routing_llama --out $(OUT)/bench/routing-llama.json
	$(BIN)/python -m bench.gateway_overhead --out $(OUT)/bench/gateway-overhead.json
	$(BIN)/python -m bench.gateway_faults --out $(OUT)/bench/gateway-faults.json
	$(BIN)/python -m bench.workflow_shares
	$(BIN)/python -m bench.allocation_search --out $(OUT)/bench/allocation.json
	$(BIN)/python -m bench.workflow_study --out $(OUT)/bench/workflows
	$(BIN)/python -m bench.workflow_oracle --out $(OUT)/bench/oracle

clean:
	rm -rf $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find headway tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
