# The two commands: `make demo` shows the main job, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that the tests are shared out to; 0 runs them in one, as a debugger wants it.
WORKERS ?= 2
# Another index for torch, e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Python compiles a module when it is first imported; most of what is installed never is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--constraint constraints.txt
# The tests' forked ranks and a GPU exclude each other; benchmarks/gpu.sh runs those that need one.
PYTEST := CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
CI_MARKERS := not gpu and not network and not soak

.PHONY: demo test quick lint types all-tests quick-tests docs clean

demo: $(VENV)/.starter
	$(BIN)/embedkit finetune --recipe starter --set steps=50 --output runs/demo --overwrite

# Types are checked beside the tests: where nothing is cached yet, that takes a core two minutes.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types all-tests

quick: lint
	$(MAKE) --no-print-directory --jobs 2 types quick-tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

all-tests: $(VENV)/.dev
	$(PYTEST) -m "$(CI_MARKERS)"

quick-tests: $(VENV)/.dev
	$(PYTEST) -m "$(CI_MARKERS) and not slow"

# Strict: a link or a reference that leads nowhere is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -n --fresh-env docs build/docs

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "embedkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: with an index of its own nothing else may come from there.
$(VENV)/.torch: $(BIN)/python constraints.txt
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.starter: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[starter]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[starter,dev]'
	@touch $(VENV)/.starter $@

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache
