# Everything a newcomer needs: each target sets up what it uses.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-core lint bench chaos docs clean

setup: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What the demo needs; everything else for the tests comes on top of it.
$(VENV)/.bench: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (a few minutes the first time)"
	$(PIP) -e ".[bench]"
	@touch $@

$(VENV)/.dev: $(VENV)/.bench
	@echo "Installing what the tests need"
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.peers: $(VENV)/.dev
	@echo "Installing the libraries that the benchmark compares with"
	$(PIP) -e ".[peers]"
	@touch $@

demo: $(VENV)/.bench
	$(VENV)/bin/switch-ema compare noisy-digits digits --seeds 32

lint: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

test: lint
	$(RUN) -m pytest -n 2 --dist worksteal

# The averaging tests against another torch: make test-core TORCH=2.13.0. The library
# needs torch alone, so only the tests' own tools are beside it.
TORCH ?= 2.13.0
CORE := .venv-torch-$(TORCH)
CORE_TOOLS := hypothesis numpy pytest pytest-timeout safetensors

$(CORE)/.core: pyproject.toml constraints.txt
	@echo "Installing torch $(TORCH) into $(CORE) (a few minutes the first time)"
	$(PYTHON) -m venv $(CORE)
	@for tool in $(CORE_TOOLS); do grep "^$$tool==" constraints.txt; done >$(CORE)/tools.txt
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check \
		"torch==$(TORCH)" -r $(CORE)/tools.txt -e .
	@touch $@

test-core: $(CORE)/.core
	$(CORE)/bin/python -c "import torch; print('torch', torch.__version__)"
	$(CORE)/bin/python -m pytest tests/averaging src/switch_ema/averaging

# One after the other, all of them even if one fails; make bench REPEATS=1 is the shortest.
# Each can be run alone: .venv/bin/python benchmarks/fused.py --help
BENCHMARKS := averaging fused training sharing landscape distributed precision cluster merge teacher stacking chance skew large slicing
REPEATS ?=

bench: $(VENV)/.peers
	@failed=; for name in $(BENCHMARKS); do \
		echo "benchmarks/$$name.py"; \
		$(RUN) benchmarks/$$name.py $(if $(REPEATS),--repeats $(REPEATS)) \
			|| { [ $$? -eq 130 ] && exit 130; failed="$$failed $$name"; }; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi

# Kills, damaged files and hostile input, minutes; docs/reliability.md has the figures.
chaos: setup
	$(RUN) -m tests.chaos

docs: setup
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html"

clean:
	rm -rf $(VENV) .venv-torch-* site runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
