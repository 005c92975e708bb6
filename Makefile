# Everything a newcomer needs: `make demo`, `make test`. The first run makes .venv from pinned requirements; later ones
# start at once. Another interpreter: `make test PYTHON=python3.13 VENV=.venv313`.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(if $(shell command -v $(p) 2>/dev/null),$(p))))
VENV ?= .venv
BIN := $(VENV)/bin
PINS := $(shell $(PYTHON) -c 'import sys; print("requirements/dev-3.11.txt" if sys.version_info < (3, 12) else "requirements/dev-3.12.txt")' 2>/dev/null)
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=

.PHONY: help install demo test test-slow test-tensorflow lint bench docs clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s'|'

install: $(STAMP)  ## the virtual environment, with everything in it

$(STAMP): requirements/dev-3.11.txt requirements/dev-3.12.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "systolic needs Python 3.11 or newer; $(PYTHON) is not. Choose one: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(PINS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)  ## check ResNet-50 for eight TPU chips; train, evaluate, predict, export and load a small one
	@rm -rf runs/demo
	$(BIN)/python examples/resnet/main.py --model-dir runs/demo --expect-accuracy 0.97

test: $(STAMP)  ## all tests but the slow ones, and the examples in docstrings
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	$(BIN)/python -m pytest --doctest-modules systolic $(PYTEST_ARGS)

test-slow: $(STAMP)  ## the slow tests: TPU compiles, killed processes, whole examples
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-tensorflow: $(VENV)/.tensorflow  ## the tests that need TensorFlow, which is installed for them
	$(BIN)/python -m pytest tests/tf $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/data/test_libraries.py $(PYTEST_ARGS)

$(VENV)/.tensorflow: $(STAMP) requirements/tensorflow.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/tensorflow.txt
	@touch $@

lint: $(STAMP)  ## style, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## speed, against hand-written loops and peers
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

clean:  ## remove what was built, but not the virtual environment
	rm -rf site dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
