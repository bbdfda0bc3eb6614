# c.mk - the C library's tests, fuzzing, example and instruction counts. Included by the Makefile.
#
#   test-c      tests and examples, plain and with the address and undefined-behaviour sanitizers, and test-c-library
#   test-c-library  install the C library into $(C_DIR)/prefix, and build and run the examples with it
#   test-c-aarch64  tests for 64-bit ARM, run by QEMU
#   tsan-c      tests with the thread sanitizer
#   fuzz-c      random events against the models, and any bytes as captures, for FUZZ_SECONDS
#   bench-allocator  how long a million events take the allocator model
#   bench-replay  how long ten replays of a million events take
#   bench-core  how many instructions a module call, a backward node and a block of memory cost; the ledger's own memory
#
# Where the runtime of a sanitizer is missing, its tests are skipped, and the output says so.

CC ?= cc
CLANG ?= clang
PYTHON ?= python3
BUILD ?= build
FUZZ_SECONDS ?= 30
FUZZ_INPUTS ?= 3000
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_ROOT ?= /usr/aarch64-linux-gnu
QEMU_AARCH64 ?= qemu-aarch64

C_DIR := $(BUILD)/c
C_FLAGS := -std=c11 -Wall -Wextra -Wpedantic -Werror -g -pthread -Iinclude -Isrc -Itests/c -Itests/c/support
C_CORE := $(shell find src/core -name '*.c' | sort)
C_REPLAY := $(wildcard src/replay/*.c src/replay/epoch/*.c) $(wildcard src/base/*.c)
C_LIBRARY = $(C_CORE) $(C_REPLAY) $(wildcard src/export/*.c)
C_EXAMPLES := core_only fits
C_FUZZERS := events ledger capture allocator
C_FUZZ_events := $(addprefix tests/c/,support/fuzz.c support/heap.c watch/fuzz_events.c watch/play.c watch/model.c)
C_FUZZ_ledger := $(addprefix tests/c/,support/fuzz.c support/heap.c ledger/fuzz_ledger.c ledger/ledger_play.c) \
                 $(wildcard tests/c/ledger/ledger_model*.c)
C_FUZZ_capture := $(addprefix tests/c/,support/fuzz.c support/heap.c \
                  $(addprefix capture/,fuzz_capture.c capture_exercise.c capture_file.c pack_read.c))
C_FUZZ_allocator := $(addprefix tests/c/,support/fuzz.c support/heap.c \
                    $(addprefix allocator/,fuzz_allocator.c play_allocator.c slow_allocator.c))
C_FUZZ_MOST_capture := 16384
C_TESTS := $(filter-out %/fuzz.c $(wildcard tests/c/*/fuzz_*.c),$(wildcard tests/c/*/*.c))

# For tests/c/support/refused_malloc.c.
C_WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free

C_FLAGS_plain := -O1
C_FLAGS_asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
C_FLAGS_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer
# valgrind does not read every compiler's newest debug information.
C_FLAGS_bench := -O2 -DNDEBUG -gdwarf-4
C_FLAGS_fuzz := -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

C_AGAIN = $(MAKE) --no-print-directory -f $(firstword $(MAKEFILE_LIST))

# $(call c_can,COMPILER,FLAGS,SOURCE): does a program built like this run?
c_can = mkdir -p $(C_DIR) && printf '%s\n' '$(3)' | $(1) $(2) -x c - -o $(C_DIR)/probe.$$$$ 2>/dev/null && \
	{ $(C_DIR)/probe.$$$$ -runs=1 >/dev/null 2>&1; probed=$$?; rm -f $(C_DIR)/probe.$$$$; [ $$probed = 0 ]; }
c_main := int main(void) { return 0; }
c_target := int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }

# $(eval $(call c_variant,NAME)): how to build it under $(C_DIR)/NAME.
define c_variant
$(C_DIR)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	@$$(CC) $$(C_FLAGS) $$(C_FLAGS_$(1)) -MMD -MP -c $$< -o $$@
$(C_DIR)/$(1)/test_core: $$(patsubst %.c,$(C_DIR)/$(1)/%.o,$$(C_LIBRARY) $$(C_TESTS))
	@$$(CC) $$(C_FLAGS) $$(C_FLAGS_$(1)) $$(C_WRAP) $$^ -o $$@
$(C_DIR)/$(1)/core_only: $$(patsubst %.c,$(C_DIR)/$(1)/%.o,$$(C_CORE) examples/core_only.c)
	@$$(CC) $$(C_FLAGS) $$(C_FLAGS_$(1)) $$^ -o $$@
$(C_DIR)/$(1)/fits: $$(patsubst %.c,$(C_DIR)/$(1)/%.o,$$(C_CORE) $$(C_REPLAY) examples/fits.c)
	@$$(CC) $$(C_FLAGS) $$(C_FLAGS_$(1)) $$^ -o $$@
-include $$(patsubst %.c,$(C_DIR)/$(1)/%.d,$$(C_LIBRARY) $$(C_TESTS) $(wildcard examples/*.c bench/*_driver.c))
endef
$(foreach variant,plain asan tsan bench,$(eval $(call c_variant,$(variant))))

C_FUZZ_RUNS := $(addprefix fuzz-c-,$(C_FUZZERS))
.PHONY: test-c test-c-plain test-c-aarch64 test-c-asan test-c-library tsan-c fuzz-c $(C_FUZZ_RUNS) \
        bench-core bench-allocator bench-replay

test-c: test-c-plain test-c-asan test-c-library

# $(call c_run,VARIANT): the tests, then the examples. C_RUNNER: the program that runs them.
c_run = $(C_RUNNER) $(C_DIR)/$(1)/test_core && $(C_RUNNER) $(C_DIR)/$(1)/core_only >/dev/null && \
	$(C_RUNNER) $(C_DIR)/$(1)/fits tests/corpus/runs/gpt-0.1.0.msc 24 >/dev/null

test-c-plain: $(addprefix $(C_DIR)/plain/,test_core $(C_EXAMPLES))
	@echo "== the C tests"
	@$(call c_run,plain)

test-c-asan:
	@echo "== the C tests, under ASan and UBSan"
	+@if $(call c_can,$(CC),$(C_FLAGS_asan),$(c_main)); then \
		$(C_AGAIN) $(addprefix $(C_DIR)/asan/,test_core $(C_EXAMPLES)) && $(call c_run,asan); \
	else echo "skipped, $(CC) has no runtime for them"; fi

test-c-library:
	@echo "== the installed C library"
	+@mkdir -p $(C_DIR); \
	if ! command -v pkg-config >/dev/null; then echo "skipped, pkg-config is not installed"; \
	elif ! $(CMAKE) --version >/dev/null 2>&1; then echo "skipped, cmake is not installed"; \
	elif $(C_AGAIN) install-c PREFIX=$(C_DIR)/prefix DESTDIR= LIBRARY_BUILD=$(C_DIR)/library \
		LIBRARY_FLAGS=-DMODSCOPE_WERROR=ON >$(C_DIR)/library.log 2>&1; \
	then tools/test_c_library.sh $(C_DIR)/prefix "$(CC)"; else cat $(C_DIR)/library.log; exit 1; fi

# QEMU cannot fork a process that has several threads.
test-c-aarch64:
	@echo "== the C tests, for aarch64"
	+@if command -v $(AARCH64_CC) >/dev/null && command -v $(QEMU_AARCH64) >/dev/null; then \
		MS_TEST_WITHOUT=a_forked_child_leaves_its_parents_capture_alone QEMU_LD_PREFIX=$(AARCH64_ROOT) \
			$(C_AGAIN) test-c-plain CC=$(AARCH64_CC) BUILD=$(BUILD)/aarch64 C_RUNNER=$(QEMU_AARCH64); \
	else echo "skipped, $(AARCH64_CC) or $(QEMU_AARCH64) is not installed"; fi

tsan-c:
	@echo "== the C tests, under TSan"
	+@if $(call c_can,$(CC),$(C_FLAGS_tsan),$(c_main)); then \
		$(C_AGAIN) $(C_DIR)/tsan/test_core && $(C_DIR)/tsan/test_core; \
	else echo "skipped, $(CC) has no runtime for it"; fi

fuzz-c: $(C_FUZZ_RUNS)

# The fuzzers share the time.
$(C_FUZZ_RUNS): fuzz-c-%:
	@echo "== $* by the fuzzer"
	+@if $(call c_can,$(CLANG),$(C_FLAGS_fuzz),$(c_target)); then \
		$(C_AGAIN) $(C_DIR)/fuzz/fuzz_$* && mkdir -p $(C_DIR)/fuzz/corpus_$* && \
		if $(C_DIR)/fuzz/fuzz_$* -max_total_time=$$(($(FUZZ_SECONDS) / $(words $(C_FUZZERS)) + 1)) \
			-max_len=$(or $(C_FUZZ_MOST_$*),4096) \
			-print_final_stats=1 -artifact_prefix=$(C_DIR)/fuzz/$*- $(C_DIR)/fuzz/corpus_$* $(wildcard tests/corpus/$*) \
			>$(C_DIR)/fuzz/log_$* 2>&1; \
		then sed -n 's/^stat::number_of_executed_units: *\(.*\)/\1 inputs, nothing wrong/p' $(C_DIR)/fuzz/log_$*; \
		else grep -v '^#' $(C_DIR)/fuzz/log_$*; exit 1; fi; \
	else \
		echo "$(CLANG) has no libFuzzer: $(FUZZ_INPUTS) seeded inputs instead"; \
		$(C_AGAIN) $(C_DIR)/fuzz/standalone_$* && $(C_DIR)/fuzz/standalone_$* $(FUZZ_INPUTS); \
	fi

# $(eval $(call c_fuzzer,NAME)): how to build it, for libFuzzer and on its own.
define c_fuzzer
$(C_DIR)/fuzz/fuzz_$(1): $$(C_CORE) $$(C_FUZZ_$(1)) $$(shell find include src/core tests/c -name '*.h')
	@mkdir -p $$(@D)
	@$$(CLANG) $$(C_FLAGS) $$(C_FLAGS_fuzz) $$(C_CORE) $$(C_FUZZ_$(1)) -o $$@
$(C_DIR)/fuzz/standalone_$(1): $$(C_CORE) $$(C_FUZZ_$(1)) $$(shell find include src/core tests/c -name '*.h')
	@mkdir -p $$(@D)
	@$$(CC) $$(C_FLAGS) -O1 -DFUZZ_STANDALONE $$(C_CORE) $$(C_FUZZ_$(1)) -o $$@
endef
$(foreach fuzzer,$(C_FUZZERS),$(eval $(call c_fuzzer,$(fuzzer))))

bench-core: $(C_DIR)/bench/core_driver
	@$(PYTHON) bench/core_instructions.py $<

$(C_DIR)/bench/core_driver: $(patsubst %.c,$(C_DIR)/bench/%.o,$(C_CORE) bench/core_driver.c)
	@$(CC) $(C_FLAGS) $(C_FLAGS_bench) $^ -o $@

bench-allocator: $(C_DIR)/bench/allocator_driver
	@$<

ALLOCATOR_DRIVER := $(filter src/core/allocator/%,$(C_CORE)) bench/allocator_driver.c
$(C_DIR)/bench/allocator_driver: $(patsubst %.c,$(C_DIR)/bench/%.o,$(ALLOCATOR_DRIVER))
	@$(CC) $(C_FLAGS) $(C_FLAGS_bench) $^ -o $@

bench-replay: $(C_DIR)/bench/replay_driver
	@$<

$(C_DIR)/bench/replay_driver: $(patsubst %.c,$(C_DIR)/bench/%.o,$(C_CORE) $(C_REPLAY) bench/replay_driver.c)
	@$(CC) $(C_FLAGS) $(C_FLAGS_bench) $^ -o $@
