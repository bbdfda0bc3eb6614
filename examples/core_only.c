/* core_only.c - the core alone, without Python and without PyTorch.
 *
 * A pretend model runs forward and creates nodes. Then the nodes run backward, the last one
 * first, on another thread, as autograd's engine does it. The watch answers in which call each
 * node was created. Each node also allocates some memory, and a ledger answers which module
 * held how much of it at the peak.
 * It needs include/ and the files of src/core; `make test-c` builds and runs it. */
#include "modscope.h"
#include "modscope_ledger.h"

#include <inttypes.h>
#include <stdio.h>

#define FORWARD_THREAD 1
#define ENGINE_THREAD 2

/* Autograd numbers the nodes that a thread creates; here a counter does. */
static uint64_t next_number;

/* The address and size of the block that each node allocates. */
#define ADDRESS(number) (4096 * ((number) + 1))
#define BYTES(number) (100 * ((number) + 1))
#define DEVICE 0

static ms_watch *watch;
static ms_ledger *ledger;
static ms_thread *forward_thread;

/* Prints "Model.block.linear": a path has a name, and a parent that has its own. */
static void print_path(ms_path path)
{
    if (ms_path_depth(watch, path) > 1) {
        print_path(ms_path_parent(watch, path));
        putchar('.');
    }
    fputs(ms_path_name(watch, path), stdout);
}

/* The path of module `name`, called inside the thread's innermost call. */
static ms_path path_here(const char *name)
{
    ms_path path = MS_UNKNOWN;
    /* If this fails, the path stays MS_UNKNOWN and the program continues. */
    ms_path_add(watch, ms_thread_path(forward_thread), name, &path);
    return path;
}

/* Entering and leaving a call both pass the number that the next node will get. */
static void begin(const char *name)
{
    ms_call_enter(forward_thread, path_here(name), next_number);
}

static void end(void)
{
    ms_call_leave(forward_thread, next_number);
}

static void create_node(const char *operation)
{
    ms_block_add(ledger, forward_thread, ADDRESS(next_number), BYTES(next_number), DEVICE);
    printf("  node %" PRIu64 "  %-8s created in ", next_number++, operation);
    print_path(ms_thread_path(forward_thread));
    putchar('\n');
}

static void forward(void)
{
    begin("Model");
    begin("block");
    begin("linear");
    create_node("addmm");
    end();
    begin("act");
    create_node("relu");
    end();
    create_node("add"); /* after its children have ended: this node belongs to the block itself */
    end();
    begin("head");
    create_node("addmm");
    end();
    end();
    create_node("mean"); /* the loss, outside any module */
}

static void backward(ms_thread *engine)
{
    /* The engine's thread creates no nodes here, so its own next number stays 0. */
    for (uint64_t number = next_number; number-- > 0;) {
        ms_node_enter(engine, FORWARD_THREAD, number, 0);
        printf("  node %" PRIu64 "  runs in ", number);
        print_path(ms_thread_path(engine));
        printf("%s\n", ms_thread_phase(engine) == MS_BACKWARD ? " (backward)" : "");
        ms_block_drop(ledger, ADDRESS(number));
        ms_node_leave(engine, 0);
    }
}

static void print_peak(ms_peak_tracker *tracker)
{
    ms_peak peak = ms_peak_tracker_peak(tracker, DEVICE);
    printf("the peak was %" PRId64 " bytes, of which\n", peak.bytes);
    for (ms_path path = 0; path < ms_path_count(watch); path++) {
        int64_t bytes = ms_peak_tracker_peak_of(tracker, DEVICE, path).of[MS_ACTIVATION];
        if (!bytes)
            continue;
        printf("  %4" PRId64 " in ", bytes);
        print_path(path);
        putchar('\n');
    }
}

int main(void)
{
    watch = ms_watch_open(NULL);
    ledger = watch ? ms_ledger_open(watch) : NULL;
    ms_peak_tracker *tracker = ledger ? ms_peak_tracker_open(ledger) : NULL;
    forward_thread = watch ? ms_thread_open(watch, FORWARD_THREAD) : NULL;
    ms_thread *engine = watch ? ms_thread_open(watch, ENGINE_THREAD) : NULL;
    if (!forward_thread || !engine || !tracker || ms_ledger_attach(ledger) != MS_OK) {
        fprintf(stderr, "%s\n", ms_error_text(MS_ENOMEM));
        ms_ledger_close(ledger);
        ms_watch_close(watch);
        return 1;
    }
    puts("forward");
    forward();
    puts("backward");
    backward(engine);
    /* Any thread may look up any node at any time. */
    fputs("node 2 was created in ", stdout);
    print_path(ms_node_path(watch, FORWARD_THREAD, 2));
    putchar('\n');
    print_peak(tracker);
    printf("events lost: %" PRIu64 "\n", ms_watch_lost(watch) + ms_ledger_lost(ledger));
    ms_ledger_close(ledger);
    ms_watch_close(watch);
    return 0;
}
