# Needs Python >= 3.11, pip and make. Every target first creates or updates .venv if necessary, except perf-gpu, because
# machines with a GPU may have neither pip nor a network.

PYTHON ?= python3
PAPER ?= rscfed
SCALE ?= quick
JOBS ?=
DATA_DIR ?=
TABLES ?=
METHODS ?=
SEEDS ?=
ARGS ?=

COMMA := ,
DEFAULT := $(filter rscfed/quick/ rscfed/quick/1,$(PAPER)/$(SCALE)/$(TABLES)$(METHODS)$(SEEDS)$(ARGS))
BIN := .venv/bin
STAMP := .venv/.installed
CODE := benchmark methods datamodules tests docs
CHECK := 'import sys; sys.version_info >= (3, 11) or sys.exit("Python >= 3.11 is needed: make install PYTHON=...")'

.DEFAULT_GOAL := help
.PHONY: help install test lint types format bench-table1 docs perf perf-gpu clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with everything for development (PYTHON=python3.12 chooses the interpreter)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || { $(PYTHON) -c $(CHECK) && $(PYTHON) -m venv .venv; }
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

test: $(STAMP) ## run all tests, one single-threaded process per core, or the contract of METHODS=a,b (ARGS="-k static" passes options to pytest)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal \
		$(if $(METHODS),tests/contract $(addprefix --method ,$(subst $(COMMA), ,$(METHODS)))) $(ARGS)

lint: $(STAMP) ## check style and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## check types (ARGS="--python-version 3.12" passes options to mypy)
	$(BIN)/mypy $(ARGS)

format: $(STAMP) ## fix style and formatting in place
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench-table1: $(STAMP) ## run what the tables of a paper still lack, then print and write them: ALL tables, or only TABLES=1 (PAPER=rscfed SCALE=quick TABLES= METHODS= SEEDS= JOBS= DATA_DIR= ARGS=); by default after a table of what unlabelled images are worth
	$(if $(DEFAULT),$(BIN)/python -m benchmark table --paper digits $(if $(JOBS),--jobs $(JOBS)))
	$(BIN)/python -m benchmark table --paper $(PAPER) --scale $(SCALE) $(if $(TABLES),--tables $(TABLES)) \
		$(if $(METHODS),--methods $(METHODS)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(JOBS),--jobs $(JOBS)) $(if $(DATA_DIR),--data_dir $(DATA_DIR)) $(ARGS)

docs: $(STAMP) ## build the documentation, run its notebook and check the pages; open build/docs/index.html in a browser (ARGS="-D nb_execution_mode=off" skips the notebook)
	rm -rf build/docs/_modules # Sphinx keeps the pages of modules that are gone
	$(BIN)/python -m sphinx -c docs --fail-on-warning --keep-going $(ARGS) . build/docs
	$(BIN)/python -m pytest -m site tests/test_docs.py

perf: $(STAMP) ## measure the speed of this machine, idle for 10 minutes, and write build/speed.md (ARGS="--write other.md")
	@mkdir -p build
	$(BIN)/python -m benchmark.perf growth:fedavg --write build/speed.md $(ARGS)

perf-gpu: ## check and time the engines on a GPU, with the existing .venv or PYTHON, and write build/speed-gpu.md (METHODS=fedavg,cbafed ARGS="--parts agreement"; docs/gpu.md)
	@mkdir -p build
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmark.perf gpu$(if $(METHODS),:$(subst $(COMMA),:,$(METHODS))) --write build/speed-gpu.md $(ARGS)

clean: ## remove caches and build products; keep .venv, data and results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +
