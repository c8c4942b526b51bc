# Everything starts here: `make demo`, `make test`, `make check`. Each sets up .venv first, and only if needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Of `make fuzz`: how long, from which seed, and, for the same work everywhere, how many cases instead.
SECONDS ?= 60
SEED    ?= 0
CASES   ?=

# Of `make against`: the commit to compare with, which of the cases (a glob), and whether rounding may differ.
REF       ?=
ONLY      ?= *
TOLERANCE ?=

# Of `make bench`: where records of this machine go, and QUICK=1 for a first look.
RECORDS ?= docs/records/bench-two-cores.jsonl
QUICK   ?=

# Tests start hundreds of processes, and each would read all modules from their source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check slow cluster gpu gpu-test tools browser fuzz mutants against bench docs dist dist-test clean

help: ## say what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 11

setup: $(STAMP) ## create .venv, and install the package and the developers' tools into it

# Stamps are as old as what is installed, so a second run does nothing: the package alone, and with all for developers.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(STAMP): $(CORE)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(CORE) ## nine structures in theory, and five learning a language, beside the best possible; report into out/
	$(BIN)/resolvent analyze --n 1024 --plot out/compare.png
	$(BIN)/resolvent study incontext --preset demo --out out/incontext-demo

# Two processes share the cores: threads that wait must not spin.
test: $(STAMP) ## run the tests
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(STAMP) ## run the slow studies too
	$(BIN)/python -m pytest -n 2 -m slow

# Ray takes 240 MB, which no other test needs.
cluster: $(STAMP) ## install Ray and submitit, and run studies on clusters of both on this machine
	$(PIP) -e '.[ray,slurm]'
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/studies/test_engines.py

# Triton takes 1 GB. Interpreting and compiling need processes of their own.
gpu: $(STAMP) ## install Triton; interpret and compile the kernels for GPUs, without one
	$(PIP) -e '.[gpu]'
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'gpu and not slow' tests/gpu/test_laws.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'gpu and not slow' tests/gpu/test_compiled.py tests/gpu/test_launches.py

gpu-test: $(STAMP) ## the same on all cases, and every variant in the table of registers: an hour
	$(PIP) -e '.[gpu]'
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m gpu tests/gpu/test_laws.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m gpu tests/gpu/test_compiled.py tests/gpu/test_launches.py

# They bring forty packages, which no other test needs.
tools: $(STAMP) ## install Trainer's needs, TRL, peft and lm-eval, and run models of ours with them
	$(PIP) -e '.[tools]'
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/hf/test_tools.py tests/hf/test_evaluate.py tests/hf/test_page.py

# Chromium comes from the system: of Debian and its like with apt, where one may install.
browser: $(STAMP) ## install chromium and playwright, and drive the explorer's page
	$(PIP) -e '.[browser]'
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || (apt-get update -q && apt-get install -y -q chromium)
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/explore/test_browser.py

fuzz: $(STAMP) ## random cases against oracles: make fuzz SECONDS=600 SEED=7
	$(BIN)/python -m fuzz --seed $(SEED) $(if $(CASES),--cases $(CASES),--seconds $(SECONDS))

mutants: $(STAMP) ## apply small wrong changes, one after another, and see that the tests notice each: hours
	$(BIN)/python -m fuzz.mutants

against: $(STAMP) ## the same cases here and at a commit, compared to the bit: make against REF=HEAD~1 ONLY='decode/*'
	$(if $(REF),,$(error make against needs a commit to compare with: make against REF=HEAD~1))
	$(BIN)/python -m fuzz.against $(REF) --only '$(ONLY)' $(if $(TOLERANCE),--tolerance)

bench: $(STAMP) ## measure speed, half an hour on an idle machine, and remake docs/bench.md and the README's table
	$(BIN)/resolvent bench all $(RECORDS) $(if $(QUICK),--quick)
	$(BIN)/python -m docs.make docs/bench.md README.md

# What builds the site comes on top, and only for it.
$(VENV)/.docs: $(STAMP)
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation site into out/site, and check its links
	NO_MKDOCS_2_WARNING=1 OMP_WAIT_POLICY=passive $(BIN)/python -m mkdocs build --quiet --clean
	$(BIN)/python -m website.links out/site

check: $(STAMP) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(STAMP) ## build the wheel and the source distribution into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

dist-test: dist ## install the wheel elsewhere, and use it as another user, read-only and without a home
	.ci/dist dist/*.whl $(BIN)/python

clean: ## remove what was made
	rm -rf $(VENV) out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
