# Two commands on a fresh machine do everything: make demo, make test. Both need only Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
SCENARIO ?= examples/chat-h100-draft.yaml
MUTANTS ?= 400
SEED ?= 1
COUNT ?= 1000
ROUNDS ?= 10
# The studies of research/ are a distribution of their own; without the folder, all else works.
RESEARCH := $(if $(wildcard research/pyproject.toml),--editable research)

.PHONY: demo test test-load coverage lint types docs package mutants search clean

demo: .venv/ready
	$(BIN)/forerun run $(SCENARIO) --out out/demo

test: .venv/ready-dev
	$(BIN)/pytest

# What a busy machine can break: tests with processes, threads, signals or browsers, beside four endless loops.
test-load: .venv/ready-dev
	@for n in 1 2 3 4; do (while :; do :; done) & busy="$$busy $$!"; done; trap "kill $$busy" EXIT INT TERM; \
	for n in $$(seq $(ROUNDS)); do $(BIN)/pytest -q -m concurrent || exit 1; done

coverage: .venv/ready-dev
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "coverage needs torch: $(BIN)/pip install -e '.[measure]'"; exit 1; }
	$(BIN)/pytest --cov --cov-report=
	@for package in hwprofiles simulator traces; do \
		$(BIN)/coverage report --include="$$package/*" --fail-under=95 || exit 1; done

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/mypy
	$(if $(RESEARCH),$(BIN)/mypy --package forerun_research)

# Draws the pictures anew where there is a Chromium.
docs: .venv/ready-docs
	$(BIN)/python docs/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: .venv/ready-docs
	rm -rf dist
	$(BIN)/python -m build
	$(if $(RESEARCH),$(BIN)/python -m build --outdir dist research)
	$(BIN)/python tests/package/smoke.py dist --dashboard

mutants: .venv/ready-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray==8.7.*' 'coverage>=7.6'
	nice $(BIN)/python tests/mutation/mutants.py --count $(MUTANTS) --seed $(SEED)

search: .venv/ready-dev
	nice $(BIN)/python tests/scenario_search/search.py --count $(COUNT) --seed $(SEED)

# The engine is compiled anew when its source changes; without a C compiler it is interpreted.
ENGINE := setup.py $(wildcard simulator/serving/engine/*.py simulator/serving/engine/*/*.py)

.venv/ready: pyproject.toml $(wildcard research/pyproject.toml) $(ENGINE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Forerun needs Python 3.11 or newer (make PYTHON=python3.12 ...)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . $(RESEARCH)
	touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.venv/ready-docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv out build dist *.egg-info
