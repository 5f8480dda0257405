# Everything a fresh clone needs, without root and without containers. `make` alone lists the targets.
#
# The virtual environment is .venv, made on first use and renewed when pyproject.toml changes.
#   PYTHON=python3.12   choose the Python for it (3.10 or newer)
#   UV=                 do without uv even if it is installed
#   KILLS=1000 SEEDS=50000   how long `make soak` runs: kills of each engine, seeds of faults

VENV := .venv
PY := $(VENV)/bin/python
RUNTIME := $(VENV)/.holdfast-runtime
DEV := $(VENV)/.holdfast-dev
UV ?= $(shell command -v uv 2>/dev/null)

CODE := src tests bench
KILLS ?= 1000
SEEDS ?= 50000
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))

.DEFAULT_GOAL := help
.PHONY: help demo test check bench soak clean

help:
	@echo "make demo    kill writers with -9 in a loop and see that nothing is lost (20 seconds)"
	@echo "make test    run the tests"
	@echo "make check   formatting, lint and types"
	@echo "make bench   measure, and compare with plain SQLite and files"
	@echo "make soak    the crash tests, for a long time"
	@echo "make clean   remove everything that was made here, .venv too"

demo: $(RUNTIME)
	@$(PY) -m holdfast.cli demo

test: $(DEV)
	$(PY) -m pytest -n 2

check: $(DEV)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m mypy src tests/typed_api.py

bench: $(DEV)
	$(PY) -m bench

soak: $(DEV)
	HOLDFAST_KILL_CYCLES=$(KILLS) HOLDFAST_LOG_SEEDS=$(SEEDS) \
	    $(PY) -m pytest -s --timeout 0 tests/crash tests/test_log_faults.py

clean:
	rm -rf $(VENV) build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up: one stamp for what the library needs, one for what its developers need -----------------

$(PY):
	@python=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10 python); do \
	    if "$$candidate" -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Holdfast needs Python 3.10 or newer, and $(if $(PYTHON),PYTHON=$(PYTHON) is not one,none was found)." >&2; \
	    echo "Install one, or name it: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --clear --python "$$(command -v "$$python")" $(VENV); \
	else "$$python" -m venv --clear $(VENV); fi

# Not a prerequisite by time: Python's own date says nothing about what is installed.
$(RUNTIME): pyproject.toml | $(PY)
	@echo "Installing Holdfast into $(VENV)"
	@if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python $(PY) --editable .; \
	else $(PY) -m pip install --quiet --disable-pip-version-check --editable .; fi
	@touch $@

# pip knows --group since 25.1; an older one replaces itself, inside .venv only.
$(DEV): $(RUNTIME)
	@echo "Installing the development tools into $(VENV)"
	@set -e; if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python $(PY) --group dev; \
	else \
	    $(PY) -m pip install --help | grep -q -e --group || $(PY) -m pip install --quiet --upgrade 'pip>=25.1'; \
	    $(PY) -m pip install --quiet --disable-pip-version-check --group dev; \
	fi
	@touch $@
