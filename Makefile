# Everything a newcomer needs: each target sets up what it uses.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test lint bench clean

setup: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (a few minutes the first time)"
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.peers: $(VENV)/.dev
	@echo "Installing the libraries that the benchmark compares with"
	$(PIP) -e ".[peers]"
	@touch $@

demo: setup
	$(VENV)/bin/switch-ema compare noisy-digits digits

lint: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

test: lint
	$(RUN) -m pytest

bench: $(VENV)/.peers
	$(RUN) benchmarks/averaging.py

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
