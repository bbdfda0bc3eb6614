# py.mk - the Python suite, with a pytest process for each group of folders of tests/py. Included by the Makefile.
#
#   suite        every folder; where the fallback behaves differently, again with MODSCOPE_INTERPOSE=0
#   suite-fast   the tests that are not marked slow, for `make check`
#   storm        tests/py/storms with other random numbers each time, for MINUTES
#   conformance  the tests that the seed documents print, both ways
#
# The processes are independent of each other: with -j, make runs several at once. Each writes
# $(LOGS)/TARGET.log and prints that file when it ends.

LOGS ?= build/logs
# What must be there before the suite starts. `make gpu-check` needs none of it.
SUITE_NEEDS ?= build trainers readers extras
PYTEST_ARGS ?=
# Most tests start a Python that imports torch, which takes twice as long without its bytecode. That is kept here, also
# where the environment says that none is to be written beside the sources.
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE
PYTEST := -m pytest -q -p no:cacheprovider $(PYTEST_ARGS)

# Each process imports torch, which takes seconds: few of them run, and each has several folders. The slowest come
# first, so that none runs alone at the end. Pages are looked at in two browsers. What no other group names is in
# suite-small. What the fallback does not change is left out by tests/py/conftest.py.
SUITE_page := $(wildcard tests/py/show/page/test_[a-h]*.py)
SUITE_looks := $(filter-out $(SUITE_page),$(wildcard tests/py/show/page/test_*.py))
SUITE_mem_tracker := tests/py/trackers/mem_tracker
SUITE_trackers := tests/py/trackers/module_tracker $(wildcard tests/py/torch/test_*.py)
SUITE_ranks := $(addprefix tests/py/,trackers/fsdp_mem_tracker virtual/ranks job)
SUITE_cli := $(addprefix tests/py/,cli read export)
SUITE_compiled := $(addprefix tests/py/predict/,test_compiled.py test_epoch.py) tests/py/plan
SUITE_predict := $(filter-out $(SUITE_compiled),$(wildcard tests/py/predict/test_*.py))
SUITE_virtual := $(wildcard tests/py/virtual/test_*.py) tests/py/fit
SUITE_record := $(addprefix tests/py/,record torch/lines)
SUITE_GROUPS := predict compiled page looks mem_tracker ranks cli virtual record trackers
SUITE := $(SUITE_GROUPS:%=suite-%) suite-small
SUITE_NAMED := $(foreach group,$(SUITE_GROUPS),$(SUITE_$(group)))
SUITE_small := $(filter-out $(SUITE_NAMED) $(SUITE_NAMED:%=%/%),$(shell find tests/py -name 'test_*.py' | sort))
FALLBACK := fallback-mem_tracker fallback-trackers
FALLBACK_mem_tracker := $(SUITE_mem_tracker)
FALLBACK_trackers := $(SUITE_trackers) $(addprefix tests/py/,trackers/memory_tracker record read storms)
FAST := fast-mem_tracker fast-trackers fast-reading
FAST_mem_tracker := trackers/mem_tracker
FAST_trackers := trackers/module_tracker trackers/memory_tracker trackers/estimators trackers/fsdp_mem_tracker torch
FAST_reading := record read job cli export replay fit plan docs virtual/ranks show/page/test_report.py
.PHONY: suite suite-fast $(SUITE) $(FALLBACK) $(FAST) storm conformance conformance-interception conformance-fallback

# $(call logged,COMMAND): `make --output-sync` prints the log in one piece.
logged = @mkdir -p $(LOGS); $(1) > $(LOGS)/$@.log 2>&1; status=$$?; echo "== $@"; cat $(LOGS)/$@.log; exit $$status

suite: $(filter-out suite-small,$(SUITE)) $(FALLBACK) suite-small

$(SUITE): suite-%: | $(SUITE_NEEDS)
	$(call logged,$(VPY) $(PYTEST) $(SUITE_$*))

$(FALLBACK): fallback-%: | $(SUITE_NEEDS)
	$(call logged,MODSCOPE_INTERPOSE=0 $(VPY) $(PYTEST) $(FALLBACK_$*))

suite-fast: $(FAST)

$(FAST): fast-%: | build
	$(call logged,$(VPY) $(PYTEST) -m "not slow" $(addprefix tests/py/,$(FAST_$*)))

MINUTES ?= 60

storm: build ## alarms, threads and random programs with random seeds, for MINUTES=60; stops at the first failure
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); while [ $$(date +%s) -lt $$end ]; do \
	    seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
	    for interpose in 1 0; do \
	        echo "== MODSCOPE_STORM_SEED=$$seed MODSCOPE_INTERPOSE=$$interpose"; \
	        MODSCOPE_STORM_SEED=$$seed MODSCOPE_INTERPOSE=$$interpose $(VPY) $(PYTEST) -s tests/py/storms || exit 1; \
	    done; \
	done

SEEDS := $(firstword $(wildcard ../shared/conformance/seedtests shared/conformance/seedtests))
SEED_FILES := $(addprefix $(LOGS)/seeds/,test_seed_000.py test_seed_001.py test_seed_002.py test_seed_004.py)

ifdef SEEDS
conformance: conformance-interception conformance-fallback

$(firstword $(SEED_FILES)): $(SEEDS) | $(SUITE_NEEDS)
	@mkdir -p $(@D)
	$(VPY) $(SEEDS) $(@D) --package modscope

conformance-interception conformance-fallback: $(firstword $(SEED_FILES))
	$(call logged,$(if $(filter %-fallback,$@),MODSCOPE_INTERPOSE=0) $(VPY) $(PYTEST) $(SEED_FILES))
else
conformance:
	@echo "== conformance: skipped, ../shared is absent"
endif
