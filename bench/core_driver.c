/* core_driver.c - runs N events, so that a tool can count the instructions of each.
 *
 *     core_driver calls N           N module calls, three deep; each creates 2 nodes
 *     core_driver nodes N           N backward nodes of such calls, the newest first
 *     core_driver steps N           N module calls in training steps of 300 each, and their 2 N nodes
 *     core_driver steps-ledger N    the same with a ledger attached and a peak tracker open
 *     core_driver blocks N          N blocks added and dropped in such calls, a few hundred live at a time
 *     core_driver memory N          N live blocks: prints the ledger's bytes for each, now and at most
 *     core_driver threads N         N blocks added and dropped by 8 threads: none may be lost
 *
 * core_instructions.py subtracts two runs from each other, so what does not depend on N is not counted. */
#include "modscope.h"
#include "modscope_ledger.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREAD 1
#define MODEL_CALLS 1536 /* calls before the nodes of `nodes`; a multiple of 3 */
#define NODES_A_CALL 2
#define STEP_CALLS 300 /* the model, its blocks with a leaf each, and one more leaf */
#define BLOCKS ((STEP_CALLS - 2) / 2)
#define DEVICE 0

static ms_watch *watch;
static ms_ledger *ledger;
static ms_thread *thread;
static ms_path model, blocks[BLOCKS], leaves[BLOCKS];
static uint64_t next_number;

/* ---- calls and nodes ---- */

/* A call creates its first node when it begins, and the others when it ends. */
static void enter(ms_path path)
{
    ms_call_enter(thread, path, next_number);
    next_number++;
}

static void leave(void)
{
    next_number += NODES_A_CALL - 1;
    ms_call_leave(thread, next_number);
}

static void run_node(uint64_t number)
{
    ms_node_enter(thread, THREAD, number, next_number);
    ms_node_leave(thread, next_number);
}

static bool run_calls(uint64_t calls)
{
    for (uint64_t i = 0; i < calls / 3; i++) {
        enter(model);
        enter(blocks[0]);
        enter(leaves[0]);
        leave();
        leave();
        leave();
    }
    return true;
}

static bool run_nodes(uint64_t nodes)
{
    run_calls(MODEL_CALLS);
    uint64_t number = next_number;
    for (uint64_t i = 0; i < nodes; i++) {
        number = number ? number - 1 : next_number - 1;
        run_node(number);
    }
    return true;
}

static void one_step(void)
{
    uint64_t first = next_number;
    enter(model);
    for (int i = 0; i < BLOCKS; i++) {
        enter(blocks[i]);
        enter(leaves[i]);
        leave();
        leave();
    }
    enter(leaves[0]);
    leave();
    leave();
    for (uint64_t number = next_number; number-- > first;)
        run_node(number);
}

static bool run_steps(uint64_t calls)
{
    for (uint64_t i = 0; i < calls / STEP_CALLS; i++)
        one_step();
    return true;
}

/* ---- a heap that reuses addresses as an allocator does: of one size, the one freed last comes first ---- */

#define BINS 8    /* 64 bytes, 256, 1 KiB ... 1 MiB */
#define SLOTS 128 /* of each bin */
#define BASE UINT64_C(0x7f3a40000000)
#define WAVE 150     /* blocks added, then dropped, in one leaf; FEW and MANY of core_instructions.py are multiples */
#define MIN_LIVE 200 /* blocks that are live between two waves */

struct live_block {
    uint64_t address;
    uint32_t bin;
};

struct heap {
    uint64_t free[BINS][SLOTS];
    uint32_t free_count[BINS];
    struct live_block live[MIN_LIVE + WAVE];
    uint32_t live_count;
    uint64_t random;
    uint64_t errors; /* of the ledger */
};

static uint64_t bin_bytes(uint32_t bin)
{
    return UINT64_C(64) << (2 * bin);
}

static uint64_t draw(struct heap *h, uint64_t below)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return h->random % below;
}

static void heap_open(struct heap *h, uint64_t seed)
{
    memset(h, 0, sizeof *h);
    h->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    uint64_t address = BASE + (seed << 32);
    for (uint32_t bin = 0; bin < BINS; bin++) {
        for (uint32_t i = 0; i < SLOTS; i++, address += bin_bytes(bin))
            h->free[bin][i] = address + 64; /* an allocator keeps a header before each block */
        h->free_count[bin] = SLOTS;
    }
}

static void heap_add(struct heap *h, ms_thread *on)
{
    uint32_t bin = (uint32_t)draw(h, BINS);
    while (!h->free_count[bin])
        bin = (bin + 1) % BINS;
    struct live_block block = {h->free[bin][--h->free_count[bin]], bin};
    h->live[h->live_count++] = block;
    h->errors += ms_block_add(ledger, on, block.address, bin_bytes(bin) - draw(h, 8) * 4, DEVICE) != MS_OK;
}

static void heap_drop(struct heap *h, uint32_t index)
{
    struct live_block block = h->live[index];
    h->live[index] = h->live[--h->live_count];
    h->free[block.bin][h->free_count[block.bin]++] = block.address;
    h->errors += ms_block_drop(ledger, block.address) != MS_OK;
}

/* ---- blocks ---- */

/* In a leaf, three calls deep, add a wave of blocks, then drop as many live ones, chosen at random. */
static void one_wave(struct heap *h, ms_thread *on, uint64_t wave)
{
    ms_call_enter(on, model, next_number);
    ms_call_enter(on, blocks[wave % BLOCKS], next_number);
    ms_call_enter(on, leaves[wave % BLOCKS], next_number);
    for (int i = 0; i < WAVE; i++)
        heap_add(h, on);
    for (int i = 0; i < WAVE; i++)
        heap_drop(h, (uint32_t)draw(h, h->live_count));
    for (int i = 0; i < 3; i++)
        ms_call_leave(on, next_number);
}

static bool run_blocks(uint64_t pairs)
{
    static struct heap h;
    heap_open(&h, 1);
    while (h.live_count < MIN_LIVE)
        heap_add(&h, thread);
    for (uint64_t i = 0; i < pairs / WAVE; i++)
        one_wave(&h, thread, i);
    while (h.live_count)
        heap_drop(&h, h.live_count - 1);
    return !h.errors;
}

/* ---- memory ---- */

static bool run_memory(uint64_t count)
{
    double most = 0;
    for (uint64_t i = 1; i <= count; i++) {
        if (ms_block_add(ledger, thread, BASE + i * 4096 + 64 * (i % 61), 512 + 64 * (i % 61), DEVICE))
            return false;
        double each = (double)ms_ledger_block_memory(ledger) / (double)i;
        if (i > count / 2 && each > most)
            most = each;
    }
    /* How full the table is depends on N, so print the worst case on the way to N as well. */
    printf("%.1f %.1f\n", (double)ms_ledger_block_memory(ledger) / (double)count, most);
    ms_ledger_clear(ledger);
    return true;
}

/* ---- threads ---- */

#define THREADS 8
#define MAILBOXES 64
#define GIVEN_AWAY 8 /* one wave in so many is of blocks that another thread drops */

static _Atomic uint64_t mailboxes[MAILBOXES]; /* addresses of blocks that the next thread drops */

struct job {
    uint64_t id, pairs, errors;
};

/* Add a block that another thread will drop. Its address is not used again. */
static bool give_away(struct job *j, ms_thread *on, uint64_t count)
{
    uint64_t address = BASE + (j->id << 32) + (UINT64_C(1) << 31) + 64 * count;
    bool added = ms_block_add(ledger, on, address, 64, DEVICE) == MS_OK;
    uint64_t found = atomic_exchange(&mailboxes[(count * 7 + j->id) % MAILBOXES], address);
    return (!found || ms_block_drop(ledger, found) == MS_OK) && added;
}

static void *run_job(void *argument)
{
    struct job *j = argument;
    struct heap *h = malloc(sizeof *h);
    ms_thread *on = ms_thread_open(watch, THREAD + j->id);
    if (!h || !on) {
        j->errors = j->pairs;
        free(h);
        return NULL;
    }
    heap_open(h, j->id);
    for (uint64_t done = 0, wave = 0, given = 0; done < j->pairs; wave++) {
        if (wave % GIVEN_AWAY && j->pairs - done >= WAVE) {
            one_wave(h, on, wave);
            done += WAVE;
        } else {
            for (uint64_t i = 0; i < WAVE && done < j->pairs; i++, done++)
                j->errors += !give_away(j, on, given++);
        }
    }
    j->errors += h->errors;
    ms_thread_close(on);
    free(h);
    return NULL;
}

static bool run_threads(uint64_t pairs)
{
    pthread_t threads[THREADS];
    static struct job jobs[THREADS];
    struct timespec begin, end;
    timespec_get(&begin, TIME_UTC);
    for (uint64_t i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.id = i + 1, .pairs = pairs / THREADS + (i < pairs % THREADS)};
        if (pthread_create(&threads[i], NULL, run_job, &jobs[i]))
            return false;
    }
    uint64_t errors = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        errors += jobs[i].errors;
    }
    timespec_get(&end, TIME_UTC);
    for (int i = 0; i < MAILBOXES; i++) {
        uint64_t found = atomic_load(&mailboxes[i]);
        errors += found && ms_block_drop(ledger, found) != MS_OK;
    }
    int64_t total = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        total += ms_ledger_now(ledger, DEVICE).of[i];
    uint64_t left = ms_ledger_blocks(ledger), lost = ms_ledger_lost(ledger);
    const char *fault = ms_ledger_check(ledger);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("%llu pairs from %d threads in %.1f s, %.0f ns each: total %lld bytes, %llu blocks left, %llu errors, "
           "%llu lost, sums %s\n",
           (unsigned long long)pairs, THREADS, seconds, seconds * 1e9 / (double)(pairs ? pairs : 1), (long long)total,
           (unsigned long long)left, (unsigned long long)errors, (unsigned long long)lost, fault ? fault : "right");
    return !total && !left && !errors && !lost && !fault;
}

/* ---- the modes ---- */

static bool open_all(bool with_ledger)
{
    watch = ms_watch_open(NULL);
    thread = watch ? ms_thread_open(watch, THREAD) : NULL;
    if (!thread || ms_path_add(watch, MS_GLOBAL, "Model", &model))
        return false;
    for (int i = 0; i < BLOCKS; i++) {
        char name[24];
        snprintf(name, sizeof name, "block%d", i);
        if (ms_path_add(watch, model, name, &blocks[i]) || ms_path_add(watch, blocks[i], "leaf", &leaves[i]))
            return false;
    }
    if (!with_ledger)
        return true;
    ledger = ms_ledger_open(watch);
    return ledger && !ms_ledger_attach(ledger) && ms_peak_tracker_open(ledger);
}

static const struct mode {
    const char *name;
    bool (*run)(uint64_t count);
    uint64_t multiple;
    bool with_ledger;
} modes[] = {
    {"calls", run_calls, 3, false},          {"nodes", run_nodes, 3, false},
    {"steps", run_steps, STEP_CALLS, false}, {"steps-ledger", run_steps, STEP_CALLS, true},
    {"blocks", run_blocks, WAVE, true},      {"memory", run_memory, 1, true},
    {"threads", run_threads, 1, true},
};
#define MODES (sizeof modes / sizeof modes[0])

int main(int argc, char **argv)
{
    size_t at = 0;
    while (argc == 3 && at < MODES && strcmp(argv[1], modes[at].name) != 0)
        at++;
    uint64_t count = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (at == MODES || !count || count % modes[at].multiple) {
        fprintf(stderr, "core_driver MODE N, where MODE is\n");
        for (at = 0; at < MODES; at++)
            fprintf(stderr, "    %-14s N a multiple of %d\n", modes[at].name, (int)modes[at].multiple);
        return 2;
    }
    bool right = open_all(modes[at].with_ledger) && modes[at].run(count);
    uint64_t lost = watch ? ms_watch_lost(watch) : 0;
    if (ledger) {
        lost += ms_ledger_lost(ledger) + ms_ledger_blocks(ledger);
        ms_ledger_detach(ledger);
        ms_ledger_close(ledger);
    }
    ms_watch_close(watch);
    return lost || !right ? 1 : 0;
}
