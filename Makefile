# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv itself and is quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Threads that spin while they wait slow a shared machine down many times.
export OMP_WAIT_POLICY ?= passive

.PHONY: help demo test test-slow test-oldest lint bench results reference docs package clean

help:
	@echo "make demo       run four methods on built-in data and write a report"
	@echo "make test       lint, types and tests (under 10 minutes)"
	@echo "make test-slow  slow tests: killed processes, packaging"
	@echo "make test-oldest  core and command-line tests with the lowest declared version of every dependency"
	@echo "make bench      speed as ratios within one run; make bench NAME=importance for one of them"
	@echo "make results    regenerate the tables of RESULTS.md from the runs in results/"
	@echo "make reference  regenerate the signatures of docs/reference.md from the code"
	@echo "make docs       the documentation as a site in site/"
	@echo "make package    wheel and source archive in dist/"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/softmask demo

test: $(READY) lint
	$(BIN)/python -m pytest -m "not slow" -n 2 --durations=15 --cov --cov-report=term:skip-covered

# Chromium opens the report in a test, which says so where it skips; installing it may fail.
test-slow: $(READY)
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -qq -y chromium >/dev/null 2>&1; } || true
	$(BIN)/python -m pytest -m slow -n 2 -rs --durations=15

# An environment of its own. The lowest torch comes from the package index as it is there, perhaps with its CUDA libraries.
test-oldest:
	rm -rf .venv-oldest && $(PYTHON) -m venv .venv-oldest
	$(PYTHON) .ci/oldest_versions.py yaml oldest > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/constraints.txt -e ".[yaml,oldest]"
	.venv-oldest/bin/python -m pytest -m "not slow" tests/core tests/kernels tests/cli

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks $(NAME)

results: $(READY)
	$(BIN)/python docs/refresh_results.py

reference: $(READY)
	$(BIN)/python docs/refresh_reference.py

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict --quiet

package: $(READY)
	rm -rf dist && $(BIN)/python -m build --quiet

clean:
	rm -rf $(VENV) .venv-oldest build dist site *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
