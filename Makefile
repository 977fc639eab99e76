# `make` alone shows what there is. Everything runs in $(VENV), which is made on first use and again when
# requirements.lock or pyproject.toml change.

VENV ?= .venv
# The Python to make $(VENV) with; empty: the first of these that is new enough and can make one.
PYTHON ?=
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14
UV ?= uv
PYTEST_ARGS ?= -n auto --dist loadfile
BENCH_ARGS ?=
LOCK_ARGS ?=

BIN := $(VENV)/bin/python
PIP := $(BIN) -m pip --disable-pip-version-check
STAMP := $(VENV)/.rollouts-setup

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak lint format types bench lock clean-venv

# The stamp holds the checkout's place: a copied or moved checkout sets up again instead of using the old one's code. So
# does one whose Python is gone.
ifneq ($(shell test -x "$(BIN)" && cat "$(STAMP)" 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

help: ## show this list
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make the virtual environment from requirements.lock

demo: $(STAMP) ## run and score configs/hello.toml in local sandboxes and show the result
	$(BIN) scripts/eval_rollouts.py run configs/hello.toml --backend local
	$(BIN) scripts/eval_rollouts.py eval hello --latest
	$(BIN) scripts/eval_rollouts.py summarize hello --latest

test: $(STAMP) ## run the tests; PYTEST_ARGS="-k name" for some of them
	$(BIN) -m pytest $(PYTEST_ARGS)

soak: $(STAMP) ## the long tests: 200 runs killed again and again, gigabytes of output (ten minutes, root, dockerd)
	ROLLOUTS_SOAK=full $(BIN) -m pytest tests/e2e/test_soak.py tests/integration/test_output_flood.py

lint: $(STAMP) ## check style and formatting
	$(BIN) -m ruff check
	$(BIN) -m ruff format --check

format: $(STAMP) ## repair style and formatting where a tool can
	$(BIN) -m ruff check --fix
	$(BIN) -m ruff format

types: $(STAMP) ## check types
	$(BIN) -m mypy

bench: $(STAMP) ## measure overheads; BENCH_ARGS=... goes to bench/run.py
	$(BIN) bench/run.py $(BENCH_ARGS)

# For all supported Pythons and systems at once. An existing pin is kept unless LOCK_ARGS=--upgrade; no configuration
# file of this machine is read, so that no index address gets in.
lock: ## make requirements.lock again (needs uv); LOCK_ARGS=--upgrade for newer versions
	@command -v "$(UV)" >/dev/null || { echo "make lock: needs uv on PATH, or UV=/path/to/uv" >&2; exit 2; }
	@"$(UV)" pip compile --quiet --no-config --universal --generate-hashes --python-version 3.11 --all-extras \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS) \
	    --output-file requirements.lock pyproject.toml
	@! grep -nE '://|file:|--(extra-)?index|--find-links|@ ' requirements.lock || \
	    { echo "make lock: requirements.lock names an address or a path" >&2; exit 1; }
	@echo "lock: $$(grep -c == requirements.lock) packages in requirements.lock"

clean-venv: ## remove the virtual environment
	rm -rf "$(VENV)"

$(STAMP): requirements.lock pyproject.toml
	@python='$(PYTHON)'; found=; bare=; \
	for candidate in $${python:-$(PYTHONS)}; do \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    "$$candidate" -c 'import ensurepip, venv' 2>/dev/null || { bare="$$candidate"; continue; }; \
	    found="$$candidate"; break; \
	done; \
	if [ -z "$$found" ] && [ -n "$$bare" ]; then \
	    echo "make: $$bare cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)" >&2; exit 2; \
	elif [ -z "$$found" ]; then \
	    echo "make: needs Python 3.11 or newer, found none; install one or name it: make setup PYTHON=/path/to/python3" >&2; exit 2; \
	fi; \
	if ! "$(BIN)" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "setup: making $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear "$(VENV)" || exit 1; \
	fi
	@echo "setup: installing $$(grep -c == requirements.lock) packages of requirements.lock (up to a minute)"
	@$(PIP) install -qq --require-hashes -r requirements.lock
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@printf '%s' "$(CURDIR)" > "$(STAMP)"
	@echo "setup: done; $(VENV)/bin/rollouts is ready"
