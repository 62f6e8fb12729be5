# holdfast. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENDOR := gateway/holdfast_gateway/web/vendor
HOLD := client/holdfast/bin/hold

# What must be there from the system: to run, and beside it to test and to measure.
RUN_TOOLS := $(PYTHON) gcc make node npm
TEST_TOOLS := chromium vim less htop openssl ssh
BENCH_TOOLS := tmux dtach

# What is compiled is kept, also where Python is told not to: else each program that is started begins by compiling all of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## show this
	@awk 'BEGIN {FS = ":.*## "; print "usage: make TARGET\n"} \
	  /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# -- setting up: each step leaves a file that says it is done -------------------------------------

$(BIN)/.ready: pyproject.toml
	@scripts/need $(RUN_TOOLS)
	@echo "setting up $(VENV) (a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.7' # a minute faster than pip
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --editable '.[dev]' || \
	  $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m holdfast_sidecar.abi
	@touch $@

$(HOLD): $(wildcard init/*.c init/*.h) init/Makefile
	@scripts/need gcc make
	@mkdir -p $(@D)
	@$(MAKE) --silent --no-print-directory -C init OUT=$(CURDIR)/$(@D) all
	@touch $@

$(VENDOR)/.ready: gateway/package-lock.json gateway/vendor.mjs
	@scripts/need node npm
	@echo "fetching the page's terminal (xterm.js)"
	@cd gateway && npm ci --silent --no-audit --no-fund
	@cd gateway && node vendor.mjs
	@touch $@

.PHONY: setup
setup: $(BIN)/.ready $(HOLD) $(VENDOR)/.ready ## make everything ready to run

.PHONY: build
build: setup ## the same

# -- running --------------------------------------------------------------------------------------

NAME ?= main

.PHONY: run
run: setup ## start a session on this machine and print its address
	@$(BIN)/holdfast run --detach --name $(NAME) --if-absent

.PHONY: stop
stop: setup ## end every session on this machine
	@$(BIN)/holdfast end --all

# -- checking -------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## style, types, layers, sizes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_sizes.py
	@$(BIN)/python scripts/check_paths.py
	@$(BIN)/python scripts/chart_crds.py --check
	@$(BIN)/helm lint --strict --quiet charts/holdfast

# Many tests wait for something, so more than there are cores. Those that measure time are run after them, three at once: they
# wait for most of it.
WORKERS ?= 4
TIMED = $(shell grep -rl --include='test_*.py' 'mark\.timed' tests)
PYTEST = $(BIN)/pytest -q $(if $(T),-k '$(T)')
NONE_SELECTED = { [ $$? = 5 ] && [ -n "$(T)" ]; }

.PHONY: test
test: setup ## all tests that need no root and no cluster, and lint; T= selects
	@scripts/need $(TEST_TOOLS)
	@$(MAKE) --silent --no-print-directory -C init OUT=$(CURDIR)/build all asan
	@node --test --test-reporter=dot tests/gateway/js/
	@nice $(MAKE) --silent --no-print-directory lint > build/lint.log 2>&1 & lint=$$!; failed=0; \
	  export HOLD_BIN=$(CURDIR)/build/hold HOLD_ASAN_BIN=$(CURDIR)/build/hold-asan; \
	  $(PYTEST) -m 'not timed' -n $(WORKERS) --dist worksteal || $(NONE_SELECTED) || failed=1; \
	  if wait $$lint; then echo "lint: clean"; else failed=1; cat build/lint.log; fi; \
	  $(PYTEST) -m timed -n 3 --dist worksteal $(TIMED) || $(NONE_SELECTED) || failed=1; \
	  exit $$failed

.PHONY: check-lease
check-lease: setup ## try to refute the lease's rules, and see the broken ones refuted
	@$(BIN)/python -m tests.lease $(if $(RUNS),--runs $(RUNS))

# -- a real cluster -------------------------------------------------------------------------------

.PHONY: cluster
cluster: setup ## a real Kubernetes with two nodes on this machine (root; the first time takes 15 minutes)
	@scripts/need $$($(BIN)/python -m e2e.cluster tools)
	@$(BIN)/python -m e2e.cluster up

.PHONY: cluster-down
cluster-down: $(BIN)/.ready ## remove it, and everything of it
	@$(BIN)/python -m e2e.cluster down

# Each worker has a cluster of its own. One that a person keeps up is used by one worker.
CLUSTERS ?= $(if $(HOLDFAST_KEEP),0,2)
E2E = $(BIN)/pytest --timeout 600 -o cache_dir=build/e2e/cache e2e -v --durations=40 --durations-min=3 $(if $(T),-k '$(T)')

.PHONY: e2e
e2e: setup ## all tests on a real cluster (root); T= selects; build/e2e/report.json
	@scripts/need $$($(BIN)/python -m e2e.cluster tools)
	@$(BIN)/python -m e2e.cluster build
	$(if $(T),,@rm -f build/e2e/report.json)
	@failed=0; \
	  $(E2E) -m 'not timed' -n $(CLUSTERS) --dist loadgroup || $(NONE_SELECTED) || failed=1; \
	  $(E2E) -m timed || $(NONE_SELECTED) || failed=1; \
	  exit $$failed

.PHONY: bench
bench: setup ## measure against tmux, dtach and CRIU (as root, on a cluster); build/bench/report.json
	@scripts/need $(BENCH_TOOLS)
	@[ $$(id -u) != 0 ] || scripts/need $$($(BIN)/python -m e2e.cluster tools)
	@$(BIN)/python -m bench

.PHONY: curve
curve: setup ## measure how long a move stands still by size (root), and draw docs/images/freeze.svg
	@scripts/need $$($(BIN)/python -m e2e.cluster tools)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'matplotlib>=3.9,<4'
	@$(BIN)/python -m bench --only curve --output build/bench/curve.json
	@$(BIN)/python scripts/curve.py

.PHONY: picture
picture: setup ## the README's picture of the page, taken anew
	@scripts/need chromium
	@$(BIN)/python scripts/picture.py

.PHONY: clean
clean: ## remove what was built and fetched
	@rm -rf $(VENV) $(VENDOR) $(dir $(HOLD)) build gateway/node_modules
