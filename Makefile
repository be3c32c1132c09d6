# Every target builds .venv when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
unexport PYTHONDONTWRITEBYTECODE # each of many processes would compile everything anew

.PHONY: demo test unit long check lint types imports bench gpu-check kafka clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    run the watched, broken and healed training job, then leave the dashboard running"
	@echo "make test    the tests, real components included"
	@echo "make long    what takes minutes and is shown in part by shorter tests, one after another"
	@echo "make unit    the tests that need no other process (under a minute)"
	@echo "make check   lint, types, import direction and tests"
	@echo "make bench   every benchmark; each prints one JSON object as its last line"
	@echo "make gpu-check  what needs a CUDA device, on one GPU in under eight minutes, as one JSON file"
	@echo "make kafka   Apache Kafka on loopback (needs Java 17 and Maven)"

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/pulsetrain demo $(ARGS)

UNIT := not integration and not browser and not kafka and not slow and not gpu and not long
NONE_IS_FINE := [ $$? -eq 5 ] # ARGS may leave a part without a test
OPTIONS := -q --durations=15 -p no:logging # no test reads the records of logging
# Tests that fail, at most five, must pass when they run once more by themselves.
ONCE_MORE := $(BIN)/python tests/once_more.py

unit: $(STAMP)
	$(ONCE_MORE) -n 2 -- $(OPTIONS) -m "$(UNIT)" $(ARGS) || $(NONE_IS_FINE)

# Tests with real processes share the cores: three at a time, two where each has several nodes, and one at a
# time those that measure how soon something happens.
FEW := paired or alone or long
SHARED := --dist loadfile --no-loadscope-reorder

test: unit
	deploy/test-services
	$(ONCE_MORE) -n 3 $(SHARED) -- \
		$(OPTIONS) -m "not ($(UNIT)) and not ($(FEW)) and not gpu" $(ARGS) || $(NONE_IS_FINE)
	$(ONCE_MORE) -n 2 $(SHARED) -- $(OPTIONS) -m "paired and not long and not gpu" $(ARGS) || $(NONE_IS_FINE)
	$(ONCE_MORE) -- $(OPTIONS) -m "alone and not long and not gpu" $(ARGS) || $(NONE_IS_FINE)

long: $(STAMP)
	deploy/test-services
	$(ONCE_MORE) -- $(OPTIONS) -m "long and not gpu" $(ARGS) || $(NONE_IS_FINE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

check: lint types imports test

bench: $(STAMP)
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

gpu-check: $(STAMP)
	@$(BIN)/python -m benchmarks.gpucheck $(ARGS)

kafka: $(STAMP)
	deploy/kafka/start

clean:
	rm -rf $(VENV)
