# Everything a fresh clone needs, without root and without containers. `make` alone lists the targets.
#
# The virtual environment is .venv, made on first use and renewed when pyproject.toml changes. Frameworks that cannot share
# it with the others have theirs in .venvs, made and renewed in the same way.
#   PYTHON=python3.12   choose the Python for them (3.10 or newer)
#   UV=                 do without uv even if it is installed
#   KILLS=1000 TASK_KILLS=500 SEEDS=50000 SERVER_KILLS=300 SERVER_CUTS=2000 EXAMPLES=20   how long `make soak` runs: kills of
#                       writers and of tasks on each engine, seeds of faults, kills of servers and answers of theirs that
#                       are cut off, and how many times as many examples of each law
#   FLIPS=all           how many bits of each sample store it flips, one at a time; all of them take a night
#   FUZZ_SECONDS=300    how long it fuzzes each decoder with atheris, where that can be installed

VENV := .venv
PY := $(VENV)/bin/python
RUNTIME := $(VENV)/.holdfast-runtime
DEV := $(VENV)/.holdfast-dev
UV ?= $(shell command -v uv 2>/dev/null)

# Classic AutoGen: dependency groups in pyproject.toml, and the first Python 3 that is too new for one of them.
CLASSIC := classic-autogen classic-ag2 classic-agentchat
TOO_NEW_classic-agentchat := 13
# The others with an environment of their own, and the tests of each.
APART := $(CLASSIC) google-adk
TESTS_google-adk := tests/integrations/test_google_adk.py

CODE := src tests bench examples scripts
KILLS ?= 1000
TASK_KILLS ?= 500
SEEDS ?= 50000
SERVER_KILLS ?= 300
SERVER_CUTS ?= 2000
EXAMPLES ?= 20
FLIPS ?= all
PYTEST := -m pytest --dist worksteal
# Many tests start Python, which would compile the library each time.
export PYTHONDONTWRITEBYTECODE :=

# The tests of features: those that `make quick` runs, and that run on encrypted stores.
FEATURES := $(addprefix tests/,streams state conversations tasks memory worker admin redaction)
# The tests whose length is set by environment variables.
LAWS := $(shell grep -rlE "example_counts import|_program import" tests --include "test_*.py" --exclude "test_autogen_classic*" --exclude "test_google_adk*")
FUZZ_SECONDS ?= 300
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-main $(APART:%=test-%) check docs bench bench-peers soak clean

help:
	@echo "make demo    kill an agent with -9 in the middle of its work, and see it resume (15 seconds)"
	@echo "make quick   the tests of logic and of features, on memory and SQLite (a minute)"
	@echo "make test    all tests (20 minutes): test-main$(APART:%=, test-%)"
	@echo "make check   formatting, lint, types, layers, layout, words, prose and the tree map"
	@echo "make docs    the documentation as a site, in build/site (half a minute); open build/site/index.html"
	@echo "make bench   measure, and compare with the same work by hand on SQLite, files and PostgreSQL (started for it);"
	@echo "             apart, and longer: .venv/bin/python -m bench.scale, and -m bench.costs"
	@echo "make bench-peers   the same work done with LangGraph, DBOS and the OpenAI Agents SDK, side by side"
	@echo "make soak    every test on every engine, crash tests, hostile stores and fuzzing, for a long time"
	@echo "make clean   remove everything that was made here, .venv and .venvs too"

demo: $(RUNTIME)
	@$(PY) -m holdfast.cli demo

quick: $(DEV)
	HOLDFAST_ENGINES=memory,sqlite $(PY) $(PYTEST) -n 2 -m "not slow and not server" tests/unit tests/log tests/encryption $(FEATURES)

# The frameworks two at a time: each runs one process after the other.
test: test-main
	@$(MAKE) --no-print-directory -j 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(APART:%=test-%)

# More processes than processors: many tests wait, for a server, a lease or a process that is to die. Who has nothing left to
# run takes over what others have before them: the long tests are not spread evenly. tests/conftest.py puts slow tests first.
test-main: $(DEV)
	$(PY) $(PYTEST) -n 4

$(APART:%=test-%): test-%: .venvs/%/.holdfast
	@if [ -e $< ]; then \
	    HOLDFAST_FRAMEWORK=$* .venvs/$*/bin/python -m pytest -p no:cacheprovider \
	        $(or $(TESTS_$*),tests/integrations/test_autogen_classic*.py); \
	else \
	    printf '\n*** LEFT OUT: $*. It needs a Python below 3.$(TOO_NEW_$*), and none was found. ***\n\n' >&2; \
	    [ "$(CI)" != true ]; \
	fi

check: $(DEV)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(VENV)/bin/lint-imports --no-cache
	$(PY) scripts/check_layout.py
	$(PY) scripts/check_words.py
	$(PY) scripts/check_prose.py
	$(PY) scripts/tree_map.py
	$(PY) scripts/cli_reference.py
	$(PY) scripts/pictures.py
	$(PY) scripts/peer_plots.py
	@mkdir -p build
	sed -n '/^```python$$/,/^```$$/{/^```/d;p;}' README.md > build/readme.py
	$(PY) -m mypy src scripts tests/typed_api.py build/readme.py

# Strict: a page that is not in docs/index.md, or a link that leads nowhere, is an error.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "Open build/site/index.html"

bench: $(DEV)
	$(PY) -m bench

bench-peers: .venvs/peers/.holdfast
	.venvs/peers/bin/python -m bench.peers

soak: $(DEV)
	HOLDFAST_KILL_CYCLES=$(KILLS) HOLDFAST_TASK_KILLS=$(TASK_KILLS) HOLDFAST_LOG_SEEDS=$(SEEDS) \
	HOLDFAST_SERVER_KILLS=$(SERVER_KILLS) HOLDFAST_SERVER_CUTS=$(SERVER_CUTS) HOLDFAST_OBJECTS_SEEDS=$(SEEDS) \
	HOLDFAST_ENGINES=all \
	    $(PY) -m pytest -s --timeout 0 tests/crash tests/log/test_log_faults.py tests/backends/test_objects_schedules.py
	HOLDFAST_EXAMPLES=$(EXAMPLES) $(PY) $(PYTEST) -n 2 --timeout 0 $(LAWS)
	HOLDFAST_ENGINES=all $(PY) $(PYTEST) -n 2 --ignore tests/crash
	HOLDFAST_ENGINES=encrypted $(PY) $(PYTEST) -n 2 -k encrypted $(FEATURES)
	HOLDFAST_HOSTILE=all HOLDFAST_FLIPS=$(FLIPS) HOLDFAST_FUZZ_EXAMPLES=100000 $(PY) $(PYTEST) -n 2 --timeout 0 tests/hostile tests/fuzz
	-@if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python $(PY) atheris; else $(PY) -m pip install --quiet atheris; fi
	$(PY) tests/fuzz/run_atheris.py $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) .venvs build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
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

# Without pip in them: the pip of .venv installs there too.
$(patsubst %,.venvs/%/.holdfast,$(APART) peers): .venvs/%/.holdfast: pyproject.toml | $(DEV)
	@set -e; venv=.venvs/$*; python=; \
	for candidate in $(PY) python3.12 python3.11 python3.10 $(wildcard $(HOME)/.pyenv/versions/3.1[0-2].*/bin/python); do \
	    if "$$candidate" -c 'import sys; sys.exit(not 10 <= sys.version_info[1] < $(or $(TOO_NEW_$*),99))' >/dev/null 2>&1; \
	    then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then rm -rf $$venv; exit 0; fi; \
	if [ ! -x $$venv/bin/python ]; then \
	    echo "Making $$venv with $$("$$python" --version)"; \
	    if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --clear --python "$$(command -v "$$python")" $$venv; \
	    else "$$python" -m venv --clear --without-pip $$venv; fi; \
	fi; \
	echo "Installing the framework into $$venv"; \
	if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python $$venv/bin/python --editable . --group $*; \
	else \
	    $(PY) -m pip --python $$venv/bin/python install --quiet --disable-pip-version-check --editable . --group $*; \
	fi; \
	touch $@
