# The same commands for people and CI. `make demo` and `make test` need a Python of these, make, gcc and pip, nothing else.
PYTHONS := 3.11 3.12 3.13
# The first that runs; `make VENV=.venv-3.12 PYTHON=python3.12 test` is an environment for another, beside the first.
PYTHON ?= $(or $(shell for version in $(PYTHONS); do python$$version -c '' 2>/dev/null && echo python$$version && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
# The CUDA build of vLLM where an NVIDIA GPU answers, the CPU build elsewhere; never both.
GPU := $(shell nvidia-smi -L 2>/dev/null | grep GPU)
LOCK := $(if $(GPU),requirements/gpu.lock,requirements/cpu.lock)
STAMP := $(VENV)/.installed-$(notdir $(LOCK))
OUT ?= runs/demo
# pip draws its progress on a terminal.
PIP = $(BIN)/python -m pip install $(shell test -t 2 || echo --quiet) --disable-pip-version-check --no-deps

.PHONY: demo example study test test-fast test-floors test-more test-long chaos test-real check docs bench gpu-card install lock clean

demo: install
	$(BIN)/resurface demo --out $(OUT)

example: OUT = runs/smollm2
example: install  ## a real model from start to report; ITEMS=200, TASK=xquad:DIR, CHAT=1 and OUT= are optional
	$(BIN)/python -m examples.run_smollm2 --out $(OUT) $(if $(ITEMS),--items $(ITEMS)) $(if $(TASK),--task $(TASK)) $(if $(CHAT),--chat)

study: install  ## a study from its plan to its numbers, in hours: NAME=silent-zone; TASK=xquad:DIR and WEB=jsonl:FILE are optional
	$(BIN)/python -m examples.make_smollm2
	$(BIN)/python -m benchmarks.studies.$(subst -,_,$(NAME)) --out runs/$(NAME) $(if $(TASK),--task $(TASK)) $(if $(WEB),--web $(WEB))

# In the order of the files: those that start engines come first.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 30
# Tests of engines one to a process: an engine's memory is free again when its process has ended.
ON_A_GPU = $(BIN)/python -m pytest -m gpu tests/gpu/test_prune_cuda.py && \
	$(BIN)/python -m pytest -m gpu --collect-only tests/gpu/test_engine_gpu.py | grep :: | xargs -n 1 timeout 600 $(BIN)/python -m pytest -m gpu
test: install  ## the test suite, a file at a time in each process (tests/conftest.py sets their number)
	$(PYTEST) --ignore tests/test_architecture.py
	$(if $(GPU),$(ON_A_GPU))

test-fast: install  ## without the tests that start an engine or Ray
	$(PYTEST) -m "not slow"

test-floors: install  ## the tests without engines on the lowest versions that pyproject.toml allows; the locks pin the newest
	$(PIP) --upgrade --target build/floors -r requirements/lowest.lock
	PYTHONPATH=build/floors:$$PYTHONPATH $(BIN)/python -m pytest -m "not slow" tests/unit

# The arithmetic of a processor without AVX-512, and torch's without any vector instructions.
NUMPY = import numpy._core._multiarray_umath as m; print(*(n for n in m.__cpu_dispatch__ if "512" in n and m.__cpu_features__[n]))
OTHER = OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c '$(NUMPY)')"
test-more: install  ## what must hold besides: the GPU's model runner, other arithmetic, and rehearsals that take minutes
	$(PYTEST) -m more
	$(PYTEST) --runner V2 -m "more or not more" tests/integration tests/unit/evaluator/engine
	$(OTHER) ATEN_CPU_CAPABILITY=avx2 $(PYTEST) -m "not slow" tests/golden $(addprefix tests/unit/evaluator/,deciding engine metrics probes) \
		tests/unit/pruning tests/unit/quantising
	ATEN_CPU_CAPABILITY=default $(PYTEST) -m "not slow" tests/unit/pruning tests/unit/quantising tests/unit/evaluator/engine

test-long: install  ## minutes for one more case of what `make test` covers
	$(PYTEST) -m long

chaos: install  ## KILLS=100 random kills of drivers, engines and Ray; every run ends with the records of an undisturbed one
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),100)

test-real: install  ## on the model of `make example`, which is made first
	$(BIN)/python -m examples.make_smollm2
	$(BIN)/python -m pytest -m real

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_architecture.py

docs: install  ## the site of all pages, in build/site; a dead link is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/docs.lock
	rm -rf build/pages build/site && mkdir -p build/pages
	cp --parents LICENSE CITATION.cff *.md docs/*.* docs/schemas/* docs/studies/* benchmarks/studies/*.md benchmarks/README.md benchmarks/results/*.md benchmarks/results/gpu/*.md \
		 examples/README.md examples/open_run.ipynb launch/reference_model/README.md tests/gpu/README.md tests/taught/__init__.py build/pages
	$(BIN)/zensical build --strict

bench: install
	$(BIN)/resurface bench all

# vLLM in a folder of PYTHONPATH, as on a machine without a network: nothing is installed.
CARRIED := $(wildcard $(addsuffix /vllm/__init__.py,$(subst :, ,$(PYTHONPATH))))
gpu-card: OUT = runs/gpu
gpu-card: $(if $(CARRIED),,install)  ## what should run first on a GPU: engines, doctor, speed, a demo; OUT= is optional
	@echo "ends after 14 minutes at most; after 10 on an H100 (estimate)"
	$(if $(CARRIED),$(PYTHON),$(BIN)/python) -m tests.gpu.visit $(OUT)

install: $(STAMP)

$(STAMP): $(LOCK) requirements/v2.lock pyproject.toml
	@found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	case " $(PYTHONS) " in *" $$found "*) ;; *) \
		echo "error: PYTHON=$(PYTHON) $${found:+is Python }$${found:-does not run}; it must be Python 3.11, 3.12 or 3.13" >&2; \
		exit 2;; \
	esac
	@echo "installs the $$(grep -c == $(LOCK)) packages of $(LOCK) into $(VENV): several GB, 3 to 15 minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r $(LOCK)
	@# Where pip finds no CPU build of torch, its default build needs CUDA's libraries to be imported at all.
	$(BIN)/python -c 'import torch' 2>/dev/null || \
		$(PIP) -r requirements/cuda-libraries.lock
	@# Apart from the other packages: with Triton among them, vLLM would run the GPU's model runner.
	$(if $(GPU),,$(PIP) --upgrade --target $(VENV)/triton -r requirements/v2.lock)
	$(PIP) --no-build-isolation -e .
	touch $@

lock: install
	requirements/compile.sh

clean:
	rm -rf $(VENV) runs build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
