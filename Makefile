# Everything a newcomer needs: each target sets up what it uses.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo rehearse campaign test test-core test-engine lint bench chaos numbers docs dist clean

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

# One row of each of Tables 2 to 12 at the paper's size, on generated data: some minutes
# on a CPU. ROWS='*' rehearses all 68, SIDE=64 with smaller images.
ROWS ?= resnet50-sgd resnet18 simclr-cifar100 moco-v3 mask-rcnn-2x yolox-s cifar10 simvp rcf-mnist-resnet18 lstm-sgd bert-yelp
SIDE ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)

rehearse: setup
	env -u SWITCH_EMA_DATA $(VENV)/bin/switch-ema reproduce all --scale paper --rehearse \
		--threads $(CORES) --max-steps 1 --max-eval 2 --rows $(foreach row,$(ROWS),'$(row)') \
		$(if $(SIDE),--rehearse-side $(SIDE)) --out runs/rehearse

# The rows of docs/protocol.md: 16 seeds (RetinaNet 48), or until Switch EMA against EMA
# is decided, and 8 for ablations. Some 20 minutes of a core per row, at low priority.
# Repeat it to continue; values go to evidence/.
FIXED := resnet50-sgd deit-s-lamb deit-s-adamw convnext-t-adan resnet18 convnext-t deit-s \
	swin-t simclr-stl10 barlow-twins-cifar100 barlow-twins-stl10 mask-rcnn-2x \
	cifar10 simvp convlstm lstm-sgd lstm-adabelief
DECIDED := simclr-cifar100 mae rcf-mnist-resnet18 \
	agedb-resnet50 lstm-adam bert-yelp bert-wikitext
CAMPAIGN := nice -n 10 $(VENV)/bin/switch-ema reproduce $(foreach n,2 3 4 5 6 7 8 9 10 11 12,table-$(n)) \
	--methods plain ema switch-ema 'ema@lr*f' --publish --rows
ABLATE := nice -n 10 $(VENV)/bin/switch-ema reproduce --publish --seeds 8

campaign: setup
	$(CAMPAIGN) $(FIXED) --seeds 16
	$(CAMPAIGN) retinanet-r50-2x --seeds 48
	$(ABLATE) table-13 --rows wrn28-10 deit-s-adamw agedb-resnet50 bert-yelp
	$(ABLATE) figure-decay --rows wrn28-10 deit-s-adamw simclr-cifar100 bert-yelp
	$(CAMPAIGN) $(DECIDED) --until-decided --settle switch-ema --max-seeds 32

lint: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

test: lint
	$(RUN) -m pytest -n 2 --dist worksteal

# The averaging tests with another Python or torch, such as
# make test-core PYTHON=python3.12 TORCH=2.10.0. The library needs torch alone, so only
# the tests' own tools are beside it. 2.14.1 is the last torch for Python 3.10.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TORCH ?= $(if $(filter 3.10,$(VERSION)),2.14.1,2.15.0)
CORE := .venv-core-$(VERSION)-torch-$(TORCH)
CORE_TOOLS := hypothesis numpy pytest pytest-timeout pytest-xdist safetensors

$(CORE)/.core: pyproject.toml constraints.txt
	@echo "Installing torch $(TORCH) into $(CORE) (a few minutes the first time)"
	$(PYTHON) -m venv $(CORE)
	@for tool in $(CORE_TOOLS); do grep "^$$tool==" constraints.txt; done >$(CORE)/tools.txt
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check \
		"torch==$(TORCH)" -r $(CORE)/tools.txt -e .
	@touch $@

test-core: $(CORE)/.core
	$(CORE)/bin/python -c "import sys, torch; print('Python', sys.version.split()[0], 'torch', torch.__version__)"
	$(CORE)/bin/python -m pytest -n 2 --dist worksteal tests/averaging src/switch_ema/averaging

# The engine of comparisons knows no particular task: its tests pass without the packages
# of the zoo, which tests/without_zoo hides from every process.
test-engine: setup
	PYTHONPATH=$(CURDIR)/tests/without_zoo $(RUN) -m pytest -n 2 --dist worksteal -m "not zoo" tests/bench

# What a release uploads: built, checked, and installed into an empty environment.
DIST := .venv-dist

dist:
	rm -rf dist $(DIST)
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(DIST)/bin/python -m build --outdir dist .
	$(DIST)/bin/python -m twine check --strict dist/*
	rm -rf $(DIST)
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd dist && ../$(DIST)/bin/python ../tests/check_installed.py

# One after the other, all of them even if one fails; make bench REPEATS=1 is the shortest.
# Each can be run alone: .venv/bin/python benchmarks/fused.py --help
BENCHMARKS := averaging switching fused training sharing landscape distributed precision cluster merge teacher stacking chance skew sequential large slicing input data_memory windows best audit
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

# The numbers of README and docs, computed from evidence/; a test fails if they differ.
numbers: setup
	$(RUN) -m tests.documented_numbers

docs: setup
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html; the search box needs a server: $(RUN) -m http.server -d site"

clean:
	rm -rf $(VENV) .venv-core-* .venv-dist dist site runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
