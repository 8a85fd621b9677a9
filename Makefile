# Everything a user or developer runs. `make help` lists it.

PYTHON ?= $(shell for p in python3.12 python3.11 python3 python; do \
	"$$p" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1 && echo "$$p" && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
SEED ?= 0
MESSAGES ?= 100000
LIMIT ?= 120
# One process more than there are cores, since some wait; at most four.
PROCESSES ?= $(shell "$(PYTHON)" -c 'import os; print(min(len(os.sched_getaffinity(0)) + 1, 4))')

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long test-docs golden golden-write stub fuzz test-network test-simgrid chaos docs lint format clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## set up .venv with pinned, tested versions (the other targets do it when needed)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 with venv was found; name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP) ## a comparison on real data: FedAvg, FedProx, FedMLB and FedBR on digits, three seeds, with a report
	$(BIN)/fedbr compare digits method=fedavg,fedprox,fedmlb,fedbr rounds.max=20 --seeds 3 --parallel 2

test: $(STAMP) ## the test suite, but for its long tests
	$(BIN)/python -m pytest -m "not long" --numprocesses $(PROCESSES) --no-loadscope-reorder

test-long: $(STAMP) ## the long tests: clusters, and processes that are killed over and over
	$(BIN)/python -m pytest -m long --numprocesses $(PROCESSES) --no-loadscope-reorder

test-docs: $(STAMP) ## every command of README and docs, run as it is written, LIMIT seconds at most (an hour and a half)
	$(BIN)/python -m tests.documented --limit $(LIMIT)

golden: $(STAMP) ## what commands print and write, compared with the golden outputs (four minutes)
	FEDBR_GOLDEN=1 $(BIN)/python -m pytest tests/scenarios/test_golden_outputs.py

stub: $(STAMP) ## the types of import fedbr, for editors
	$(BIN)/python -m tests.python_stub

golden-write: $(STAMP) ## take over what commands print and write now; look at the difference
	$(BIN)/python -m tests.scenarios.golden_commands

fuzz: $(STAMP) ## malformed messages against both sides of the protocol: make fuzz SEED=1 MESSAGES=100000
	$(BIN)/python -m tests.fuzz --seed $(SEED) --messages $(MESSAGES)

test-network: $(STAMP) ## the clock against real links, and joining from another machine (root; about forty minutes)
	FEDBR_NETWORK=1 $(BIN)/python -m pytest -rs tests/network

# It is built from source, which takes CMake, a C++ compiler and Boost's headers (Debian's libboost-dev), and a quarter of an
# hour.
test-simgrid: $(STAMP) ## shares of links against SimGrid, built in .venv-simgrid
	@test -x .venv-simgrid/bin/python || $(BIN)/python -m venv .venv-simgrid
	PIP_CONSTRAINT=tests/simgrid/build.txt .venv-simgrid/bin/python -m pip install --quiet simgrid==4.1
	FEDBR_SIMGRID=$(CURDIR)/.venv-simgrid/bin/python $(BIN)/python -m pytest -rs tests/simgrid

chaos: $(STAMP) ## kill and stop workers, node agents, nodes of a cluster and coordinators at random moments, and compare the results (a quarter of an hour)
	$(BIN)/python benchmarks/chaos.py

docs: $(STAMP) ## the documentation as pages that need no network, in site/
	@$(BIN)/python -c 'import mkdocs' 2>/dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
# The variable leaves out the theme's notice that it has a successor.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build leftovers; run folders stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
