# py.mk - the Python suite, with a pytest process for each folder of tests/py. Included by the Makefile.
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
SUITE_NEEDS ?= build trainers readers
PYTEST_ARGS ?=
PYTEST := -m pytest -q -p no:cacheprovider $(PYTEST_ARGS)

# The tests that start scripts take the longest, so each of their files has a process of its own.
RUN_FILES := $(wildcard tests/py/commands/test_run_*.py)
RUN_SUITES := $(patsubst tests/py/commands/test_%.py,suite-%,$(RUN_FILES))
$(foreach file,$(RUN_FILES),$(eval SUITE_$(patsubst tests/py/commands/test_%.py,%,$(file)) := $(file)))
SUITE_commands := $(filter-out $(RUN_FILES),$(wildcard tests/py/commands/test_*.py))
# The slowest folder comes first. What the fallback does not change is left out by tests/py/conftest.py.
SUITE := suite-page $(RUN_SUITES) suite-commands suite-memory suite-trackers suite-export suite-captures suite-storms suite-integrations \
         suite-docs suite-allocator suite-replay suite-fit suite-plan suite-virtual suite-predict suite-ranks
FALLBACK := fallback-memory fallback-trackers fallback-captures fallback-storms
FAST := fast-memory fast-trackers fast-reading
FAST_reading := captures commands export replay fit plan docs page/test_report.py
.PHONY: suite suite-fast $(SUITE) $(FALLBACK) $(FAST) storm conformance conformance-interception conformance-fallback

# $(call logged,COMMAND): `make --output-sync` prints the log in one piece.
logged = @mkdir -p $(LOGS); $(1) > $(LOGS)/$@.log 2>&1; status=$$?; echo "== $@"; cat $(LOGS)/$@.log; exit $$status

suite: $(SUITE) $(FALLBACK)

$(SUITE): suite-%: | $(SUITE_NEEDS)
	$(call logged,$(VPY) $(PYTEST) $(or $(SUITE_$*),tests/py/$*))

$(FALLBACK): fallback-%: | $(SUITE_NEEDS)
	$(call logged,MODSCOPE_INTERPOSE=0 $(VPY) $(PYTEST) tests/py/$*)

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
