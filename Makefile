# Every target sets up .venv by itself, once; delete the folder to start afresh.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread each for the two test workers: more of them only compete.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-all bench lint format doctor ledger clean

demo: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python examples/demo.py

test: $(READY)
	$(PYTEST)

test-all: $(READY)
	$(PYTEST) -m ''

bench: $(READY)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/decode_capacity.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ledger: $(READY)
	$(TEST_ENV) nice $(BIN)/python -m tests.models.ledger $(ARGS)

doctor: $(READY)
	$(BIN)/npu-compile doctor

include tests/softnpu/softnpu.mk

clean:
	rm -rf $(VENV) $(NPU_VENV) build dist *.egg-info

# torch comes first and pinned, so that no other package's requirement brings another torch.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV): about a minute"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[hf,dev]'
	touch $@
