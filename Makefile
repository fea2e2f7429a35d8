# `make` alone lists what can be done. Nothing here needs Java or root.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Without bytecode each of the many processes that tests start would compile us anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# From cheap to dear, so that a mistake shows early.
TESTS := $(wildcard tests/unit tests/spark tests/conformance tests/integration tests/crash)
$(foreach each,$(TESTS),$(if $(wildcard $(firstword $(subst ::, ,$(each)))),,$(error TESTS: there is no $(each))))
UNIT = $(filter tests/unit%,$(TESTS))
SERVERS = $(filter-out tests/unit%,$(TESTS))

# uv from PATH, else one that is put into .uv/ from its own lock file.
UV ?= $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS)

.PHONY: help
help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: .venv/.installed  ## Create .venv with the locked dependencies and the icestream command
	@:

.venv/.installed: pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "icestream needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo not there)"; \
		echo "hint: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; } >&2
	@echo "installing into .venv/ (the first time takes a minute or two)" >&2
	@test -x "$(UV)" || $(MAKE) .uv/bin/uv
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear --without-pip .venv
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements-dev.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "installed: $(BIN)/icestream" >&2

.uv/bin/uv: requirements-uv.lock
	@$(PYTHON) -m venv --clear .uv || { \
		echo "hint: install the venv module (Debian: apt install python3-venv), or uv" >&2; exit 1; }
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.PHONY: demo
demo: install  ## Stream generated events and changes into local Iceberg tables
	@$(BIN)/icestream demo

# A stage that tells its time: $(call stage,NAME,COMMAND).
stage = trap 'echo "── $(1): $$(( SECONDS / 60 )) min $$(( SECONDS % 60 )) s"' EXIT; $(2)
SLOWEST = --durations 20 --durations-min 1
PYTEST = $(BIN)/pytest --numprocesses 2 $(SLOWEST)
# To whichever process is free, the longest first (tests/balance.py). One process more than there
# are cores: tests of servers wait for a fifth of the time.
BALANCED = $(BIN)/pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder $(SLOWEST)

.PHONY: test
test: install  ## Lint, then all tests but those marked `long`: what CI runs (TESTS=tests/spark)
	@$(call stage,lint,$(MAKE) lint)
	$(if $(UNIT),@$(call stage,unit tests,$(PYTEST) --dist worksteal --exitfirst $(UNIT)))
	$(if $(SERVERS),@$(call stage,jars of servers,$(BIN)/python tests/fetch.py))
	$(if $(SERVERS),@$(call stage,tests with Spark and real servers,$(BALANCED) $(SERVERS)))

.PHONY: test-long
test-long: install  ## All tests, also those marked `long` (TESTS=tests/spark)
	$(if $(UNIT),@$(call stage,unit tests,$(PYTEST) --dist worksteal --long $(UNIT)))
	$(if $(SERVERS),@$(call stage,tests with Spark and real servers,$(BALANCED) --long $(SERVERS)))

.PHONY: test-fast
test-fast: install  ## Unit tests only, in seconds
	@$(BIN)/pytest --numprocesses 2 --exitfirst --quiet -m "not slow" tests/unit

.PHONY: durations
durations: install  ## Measure tests on a quiet machine, for tests/durations.json (TESTS=tests/spark)
	@$(BALANCED) --long --record $(TESTS)

.PHONY: coverage
coverage: install  ## Lines that tests run, in every process but those they kill -9 (TESTS=tests/unit LONG=1)
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder $(if $(LONG),--long) $(TESTS); \
		status=$$?; $(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

.PHONY: lint
lint: install  ## Check style, types, and which room may import which
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .mypy_cache/imports

.PHONY: format
format: install  ## Format the code with ruff
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

RECORDS ?= 10000000
PEERS ?= spark,flink,connect
.PHONY: bench
bench: install  ## Compare with peers (RECORDS=10000000 PEERS=spark,flink,connect)
	@UV="$(UV)" $(BIN)/python bench/append.py --records "$(RECORDS)" --peers "$(PEERS)"

EVENTS ?= 2000000
ROWS ?= 1000000,10000000
.PHONY: bench-upsert
bench-upsert: install  ## Compare upserts with Flink and MERGE (EVENTS=2000000 ROWS=1000000,10000000)
	@UV="$(UV)" $(BIN)/python bench/upsert.py --events "$(EVENTS)" --rows "$(ROWS)"

SEED ?= 1
KILLS ?= 200
.PHONY: chaos
chaos: install  ## Inject faults: kill processes, fail requests, then verify the tables (SEED=1 KILLS=200)
	@$(BIN)/python tests/crash/chaos.py --seed "$(SEED)" --kills "$(KILLS)"

MINUTES ?= 15
.PHONY: soak
soak: install  ## Commit every second, with maintenance: files, snapshots and scans must not grow (MINUTES=15)
	@$(BIN)/python tests/crash/soak.py --minutes "$(MINUTES)"

.PHONY: docs
docs: install  ## Generate docs/icestream.schema.json
	@$(BIN)/icestream schema > docs/icestream.schema.json

.PHONY: lock
lock: install  ## Lock Python packages and jars (LOCK_ARGS=--upgrade for newer packages)
	@$(COMPILE) --output-file requirements.lock pyproject.toml
	@$(COMPILE) --output-file requirements-dev.lock --extra dev pyproject.toml
	@$(COMPILE) --no-deps --output-file bench/flink.lock bench/flink.in
	@$(COMPILE) --no-deps --output-file bench/duckdb.lock bench/duckdb.in
	@$(BIN)/python tools/lock_jars.py

.PHONY: clean
clean:  ## Remove what the targets above made in this folder
	@rm -rf .venv .uv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis icestream-demo
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
