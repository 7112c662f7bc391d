# The software NPU has an environment of its own: where torch-npu is installed, `import torch` needs a CANN.

NPU_VENV := .venv-npu
NPU_READY := $(NPU_VENV)/.ready
SOFTNPU_LIB := $(NPU_VENV)/softnpu
SOFTNPU_CANN := $(wildcard tests/softnpu/cann/*)
TEST_NPU_ARGS ?=

.PHONY: test-npu

# The plugin comes first: it must be imported before torch.
test-npu: $(SOFTNPU_LIB)/libascendcl.so
	SOFTNPU_LIB=$(abspath $(SOFTNPU_LIB)) PYTHONPATH=. $(TEST_ENV) $(NPU_VENV)/bin/python -m pytest \
	  -p tests.softnpu.softnpu $(or $(TEST_NPU_ARGS),tests/softnpu)

$(SOFTNPU_LIB)/libascendcl.so: $(NPU_READY) $(SOFTNPU_CANN)
	tests/softnpu/cann/build.sh $(NPU_VENV)/bin/python $(SOFTNPU_LIB)

# torch comes first and pinned; torch-npu's own requirement would bring another one.
$(NPU_READY): pyproject.toml constraints.txt tests/softnpu/softnpu.mk
	test -x $(NPU_VENV)/bin/python || $(PYTHON) -m venv $(NPU_VENV)
	$(NPU_VENV)/bin/pip install -q -c constraints.txt torch
	$(NPU_VENV)/bin/pip install -q --no-deps torch-npu==2.13.0
	$(NPU_VENV)/bin/pip install -q -c constraints.txt pyyaml numpy packaging transformers pytest
	$(NPU_VENV)/bin/pip install -q -c constraints.txt -e .
	touch $@
