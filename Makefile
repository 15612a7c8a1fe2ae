# Every target sets up what it needs: Python 3.11 with venv, and make, are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo needs the package alone, none of the tools of development.
DEMO := .venv-demo
RELEASE := .venv-release
IMAGE_EXTRAS := metrics otel redis tokens
LOCK := uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock"
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

CORE := src/toolcrib/errors.py,src/toolcrib/types.py,src/toolcrib/names.py,src/toolcrib/schema/*,src/toolcrib/catalog.py,src/toolcrib/search/*

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-all conformance clients gates check bench bench-retrieval bench-million bench-replies bench-results bench-hostile bench-hostile-messages bench-neighbours bench-faults bench-soak bench-capacity bench-mixed dist release lock docs clean

help:  ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make the virtual environment

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --editable . --group dev
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(PIP) install --group docs
	@touch $@

$(DEMO)/.ready: pyproject.toml
	@echo "Installing toolcrib and uv in $(DEMO): about 50 packages, 250 MB."
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip --disable-pip-version-check install --no-compile --editable ".[tokens]" uv
	@touch $@

demo: $(DEMO)/.ready  ## A gateway in front of real MCP servers from PyPI, shown from an agent's side
	$(DEMO)/bin/toolcrib demo

serve: $(VENV)/.ready  ## Serve the configured servers over HTTP on 127.0.0.1:8000
	$(BIN)/toolcrib serve --http 127.0.0.1:8000

# Two test processes per core, because many tests wait for processes and connections.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
# Bytecode is cached whatever the environment says: the tests start a hundred processes that import toolcrib.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses=$(WORKERS) --maxprocesses=8 --dist=loadfile
MEASURED := --cov --cov-report=

test: $(VENV)/.ready  ## Run the tests, but for the slow ones; COVERAGE=1 notes what they cover, for test-all
	@rm -f .coverage.test
	COVERAGE_FILE=.coverage.test $(PYTEST) -m "not slow and not network" $(if $(COVERAGE),$(MEASURED))

# In the order of the files, because the longest tests, such as the conformance suite, are in files with few of them.
test-all: $(VENV)/.ready  ## Run the tests that `make test` leaves out, and report what both cover
	@rm -f .coverage .coverage.test-all
	COVERAGE_FILE=.coverage.test-all $(PYTEST) --no-loadscope-reorder -m "slow or network" $(MEASURED)
	$(BIN)/coverage combine --quiet --keep .coverage.test-all $(wildcard .coverage.test)
	$(BIN)/coverage report
	$(if $(wildcard .coverage.test),$(BIN)/coverage report --fail-under=95 --include='$(CORE)' --format=total,\
	@echo "This is the coverage of the slow tests alone: run 'make test COVERAGE=1' first for that of all.")

conformance: $(VENV)/.ready  ## The official MCP conformance suite; ARGS="--compare" adds the FastMCP proxy and the SDK's server
	$(BIN)/python -m tests.conformance.run $(ARGS)

clients: $(VENV)/.ready  ## Clients of others in front of real servers; ARGS="'mcp 1'" for one of them
	$(BIN)/python bench/clients/run.py $(ARGS)

gates: $(VENV)/.ready  ## What a change of the protocol engine must keep, in one run; ARGS="--only walks eras"
	$(BIN)/python bench/gates.py $(ARGS)

check: $(VENV)/.ready  ## Lint, types and layers
	$(BIN)/ruff format --check src tests bench examples training scripts
	$(BIN)/ruff check src tests bench examples training scripts
	$(BIN)/mypy
	$(BIN)/lint-imports

bench:  ## Compare with peers from PyPI, in a virtual environment of its own
	$(PYTHON) bench/run.py

bench-retrieval:  ## Search quality and speed beside peers; ARGS="--quick" for a look
	$(PYTHON) bench/run.py retrieval $(ARGS)

bench-million: $(VENV)/.ready  ## A million tools on disk; ARGS="--tools 20000" for a look
	$(BIN)/python bench/million.py $(ARGS)

bench-replies: $(VENV)/.ready  ## What a search reply costs, and whether the call can follow; ARGS="--set everyday"
	$(BIN)/python bench/replies $(ARGS)

bench-hostile: $(VENV)/.ready  ## Hostile scripts in the sandbox, twice, on a busy machine; ARGS="FOLDER" for more of them
	$(BIN)/python bench/hostile.py $(ARGS)

bench-results: $(VENV)/.ready  ## What replies to large results cost, and whether the rest can be read
	$(BIN)/python bench/large_results

bench-faults: $(VENV)/.ready  ## Faulty servers behind a gateway, and what they cost the others; ARGS="--seconds 60 --seed 2"
	$(BIN)/python bench/faults.py $(ARGS)

bench-soak: $(VENV)/.ready  ## Ten minutes of mixed load: whether memory grows with the number of calls; ARGS="--seconds 300"
	$(BIN)/python bench/soak.py $(ARGS)

bench-capacity:  ## CPU a call, a search and a session of workers and replicas, and what rates of calls need
	$(PYTHON) bench/run.py capacity

bench-mixed:  ## Clients with sessions that call, list and ping, beside ContextForge from PyPI
	$(PYTHON) bench/run.py mixed_load

bench-hostile-messages: $(VENV)/.ready  ## Hostile answers, heads, bodies and sessions, and what other callers feel; ARGS="--only TEXT"
	$(BIN)/python bench/hostile_messages.py $(ARGS)

bench-neighbours: $(VENV)/.ready  ## What a caller feels while another one asks too much; ARGS="--python OTHER/bin/python"
	$(BIN)/python bench/neighbours.py $(ARGS)

docs: $(VENV)/.docs  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

release:  ## Build the wheels of both distributions, check them, and try them in a new environment
	$(PYTHON) distributions/release.py $(RELEASE) $(TRY)

lock:  ## Write the hashes of what builds a release, and of what is in the image; needs uv
	$(LOCK) --python-version 3.11 deploy/requirements/build.in --output-file deploy/requirements/build.txt
	$(LOCK) --python-version 3.13 pyproject.toml deploy/requirements/image.in $(IMAGE_EXTRAS:%=--extra %) --output-file deploy/requirements/image.txt

dist: $(VENV)/.ready  ## Build the wheels of toolcrib-slim and toolcrib into dist/
	$(PIP) wheel --no-deps --wheel-dir dist distributions/toolcrib-slim distributions/toolcrib

clean:  ## Remove everything that was made
	rm -rf $(VENV) $(DEMO) $(RELEASE) .venv-conformance .venv-clients bench/.venv site dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
