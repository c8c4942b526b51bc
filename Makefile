# Everything starts here: `make demo`, `make test`, `make check`. Each sets up .venv first, and only if needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Of `make fuzz`: how long, from which seed, and, for the same work everywhere, how many cases of each fuzzer instead.
SECONDS ?= 60
SEED    ?= 0
CASES   ?=

# Of `make bench`: where records of this machine go, and QUICK=1 for a first look.
RECORDS ?= docs/records/bench-two-cores.jsonl
QUICK   ?=

.PHONY: help setup demo test check slow fuzz bench docs clean

help: ## say what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(STAMP) ## create .venv and install the package into it

# The stamp holds the files it was made from, so a second run does nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## the paper's nine structures in theory, five of them learning to copy; report into out/
	$(BIN)/resolvent compare --n 1024 --plot out/compare.png --pages out
	$(BIN)/resolvent study table1 --preset smoke --out out/table1-smoke

# Two processes share the cores: threads that wait must not spin.
test: $(STAMP) ## run the tests
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(STAMP) ## run the slow studies too
	$(BIN)/python -m pytest -n 2 -m slow

fuzz: $(STAMP) ## random cases against oracles: make fuzz SECONDS=600 SEED=7
	$(BIN)/python -m fuzz --seed $(SEED) $(if $(CASES),--cases $(CASES),--seconds $(SECONDS))

bench: $(STAMP) ## measure speed, half an hour on an idle machine, and remake docs/bench.md and the README's table
	$(BIN)/resolvent bench --all $(if $(QUICK),--quick) --out $(RECORDS)
	$(BIN)/resolvent results docs/bench.md README.md

# What builds the site comes on top, and only for it.
$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation site into out/site, and check its links
	NO_MKDOCS_2_WARNING=1 OMP_WAIT_POLICY=passive $(BIN)/python -m mkdocs build --quiet --clean
	$(BIN)/python -m website.links out/site

check: $(STAMP) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove what was made
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
