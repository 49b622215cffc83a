# Every target does its own set-up, from a fresh clone. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# modules and tests are compiled once, also where the shell says to write no bytecode
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick lint stress bench bench-quick verdicts book pages docs dist clean

demo: $(VENV)/demo
	$(BIN)/wellcond demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# the inner loop: the first case of every test that is not slow
quick: $(VENV)/test
	$(BIN)/ruff check -q src tests stress
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --quick

lint: $(VENV)/test
	$(BIN)/ruff check src tests stress benchmarks examples packaging docs/scripts
	$(BIN)/ruff format --check src tests stress benchmarks examples packaging docs/scripts
	$(BIN)/mypy

# random problems against dense float64 references, and whether stated bounds hold as often as is said
stress: $(VENV)/test
	OMP_NUM_THREADS=1 $(BIN)/python -m stress --cases 2000 --seeds 3 --jobs 2

# all results beside the peers, the tables of docs/benchmarks.md and its picture; under 15 minutes on two cores
bench: $(VENV)/bench
	$(BIN)/python -m benchmarks
	$(BIN)/python docs/scripts/tables.py
	$(BIN)/python -m benchmarks.picture

# the inner loop: two minutes, nothing that is committed changes
bench-quick: $(VENV)/bench
	$(BIN)/python -m benchmarks --quick --out $(VENV)/bench-quick

# real faults and healthy networks beside the peers, both forms trained; the tables of docs/verdicts.md and its picture
verdicts: $(VENV)/bench
	$(BIN)/python -m benchmarks.verdicts --verify --jobs 2
	$(BIN)/python -m benchmarks.verdicts --jobs 2
	$(BIN)/python -m benchmarks.verdicts.repair
	$(BIN)/python docs/scripts/tables.py
	$(BIN)/python -m benchmarks.verdicts.picture

# the pages and pictures of docs/reproduction, from its rows
book: $(VENV)/test
	$(BIN)/python docs/scripts/book.py
	$(BIN)/python docs/scripts/together.py

# what pages show of the code and of committed results: outputs, the room map, files, walks and tables
pages: $(VENV)/test
	OMP_NUM_THREADS=1 $(BIN)/python docs/scripts/pages.py
	$(BIN)/python docs/scripts/tables.py

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# wheel and sdist as a person gets them: contents, metadata, an empty environment; `make dist LOWEST=--lowest` adds the
# lowest torch, `TAG=v0.2.0` compares the versions
dist: $(VENV)/dist
	$(BIN)/python packaging/check.py $(LOWEST) $(if $(TAG),--tag $(TAG))

clean:
	rm -rf $(VENV) site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and pinned: resolved along with the rest, a newer build with its GPU libraries could be taken
$(VENV)/demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch numpy
	$(PIP) --editable ".[cli]"
	@touch $@

# BackPACK, which curvlinops needs, asks for torchvision and never imports it; beside this build of torch it cannot be
# imported, and torchmetrics, which Lightning needs, imports it wherever it is installed
$(VENV)/test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch numpy
	$(PIP) --editable ".[test,lint]"
	$(BIN)/python -m pip uninstall --quiet --yes torchvision
	@touch $@ $(VENV)/demo

$(VENV)/docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch numpy
	$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/dist: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "build>=1.2" "twine>=6"
	@touch $@

# peers that ask for libraries they never import come without their dependencies
$(VENV)/bench: $(VENV)/test
	$(PIP) --editable ".[bench]"
	$(PIP) --no-deps pyhessian hessian-eigenthings nngeometry landscaper
	$(BIN)/python -m pip uninstall --quiet --yes torchvision
	@touch $@
