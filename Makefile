# Every target sets up what it needs: Python 3.11 with venv, and make, are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

CORE := src/toolcrib/errors.py,src/toolcrib/types.py,src/toolcrib/names.py,src/toolcrib/schema/*,src/toolcrib/catalog/*,src/toolcrib/search/*

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test check bench bench-retrieval bench-hostile docs clean

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

demo: $(VENV)/.ready  ## A gateway in front of real MCP servers from PyPI, shown from an agent's side
	$(BIN)/toolcrib demo

serve: $(VENV)/.ready  ## Serve the configured servers over HTTP on 127.0.0.1:8000
	$(BIN)/toolcrib serve --http 127.0.0.1:8000

test: $(VENV)/.ready  ## Run all tests, with coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/coverage report --fail-under=95 --include='$(CORE)' --format=total

check: $(VENV)/.ready  ## Lint, types and floors
	$(BIN)/ruff format --check src tests bench examples training
	$(BIN)/ruff check src tests bench examples training
	$(BIN)/mypy
	$(BIN)/lint-imports

bench:  ## Compare with peers from PyPI, in a virtual environment of its own
	$(PYTHON) bench/run.py

bench-retrieval:  ## Search quality and speed beside peers; ARGS="--quick" for a look
	$(PYTHON) bench/run.py retrieval $(ARGS)

bench-hostile: $(VENV)/.ready  ## Hostile scripts in the sandbox, twice, on a busy machine; ARGS="FOLDER" for more of them
	$(BIN)/python bench/hostile.py $(ARGS)

docs: $(VENV)/.docs  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

clean:  ## Remove everything that was made
	rm -rf $(VENV) bench/.venv site dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
