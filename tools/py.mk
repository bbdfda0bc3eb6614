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
# Most tests start a Python that imports torch, which takes twice as long without its bytecode. That is kept here, also where
# the environment says that none is to be written beside the sources.
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE
PYTEST := -m pytest -q -p no:cacheprovider $(PYTEST_ARGS)

# Each process imports torch, which takes seconds: few of them run, and each has several folders. The slowest come first, so
# that none runs alone at the end. Pages are looked at in two browsers. Folders that are named nowhere here are in suite-small.
# What the fallback does not change is left out by tests/py/conftest.py.
RUNS := $(wildcard tests/py/commands/test_run_*.py)
SUITE_page := $(wildcard tests/py/page/test_[a-h]*.py)
SUITE_looks := $(filter-out $(SUITE_page),$(wildcard tests/py/page/test_*.py))
SUITE_runs := $(RUNS) tests/py/lines
SUITE_predict := tests/py/predict tests/py/plan
SUITE_virtual := tests/py/virtual tests/py/fit
SUITE_commands := $(filter-out $(RUNS),$(wildcard tests/py/commands/test_*.py)) tests/py/captures tests/py/export
SUITE := $(addprefix suite-,page looks memory ranks commands predict virtual runs trackers small)
SUITE_NAMED := memory ranks trackers page commands lines predict plan virtual fit captures export
SUITE_small := $(filter-out $(SUITE_NAMED:%=tests/py/%),$(sort $(patsubst %/,%,$(dir $(wildcard tests/py/*/test_*.py)))))
FALLBACK := fallback-memory fallback-trackers
FALLBACK_trackers := $(addprefix tests/py/,trackers memory_tracker captures storms)
FAST := fast-memory fast-trackers fast-reading
FAST_trackers := trackers memory_tracker
FAST_reading := captures commands export replay fit plan docs ranks page/test_report.py
.PHONY: suite suite-fast $(SUITE) $(FALLBACK) $(FAST) storm conformance conformance-interception conformance-fallback

# $(call logged,COMMAND): `make --output-sync` prints the log in one piece.
logged = @mkdir -p $(LOGS); $(1) > $(LOGS)/$@.log 2>&1; status=$$?; echo "== $@"; cat $(LOGS)/$@.log; exit $$status

suite: $(filter-out suite-small,$(SUITE)) $(FALLBACK) suite-small

$(SUITE): suite-%: | $(SUITE_NEEDS)
	$(call logged,$(VPY) $(PYTEST) $(or $(SUITE_$*),tests/py/$*))

$(FALLBACK): fallback-%: | $(SUITE_NEEDS)
	$(call logged,MODSCOPE_INTERPOSE=0 $(VPY) $(PYTEST) $(or $(FALLBACK_$*),tests/py/$*))

suite-fast: $(FAST)

$(FAST): fast-%: | build
	$(call logged,$(VPY) $(PYTEST) -m "not slow" $(addprefix tests/py/,$(or $(FAST_$*),$*)))

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
