/* ledger_model.h - a slow, obvious twin of a ledger.
 *
 * Blocks are an array, a sum is a loop, a peak is a copy of all totals, a call has copies of what was
 * held when it began and ended. Each event goes to the core and to the model, and lm_check() compares
 * every figure. `wrong` describes the first one that differs; nothing is checked after it.
 *
 * Threads are logical: one OS thread drives them all. A path is open at most once at a time:
 * for two calls at once the header does not define which snapshots belong to which call. */
#ifndef MS_TEST_LEDGER_MODEL_H
#define MS_TEST_LEDGER_MODEL_H

#include "modscope_ledger.h"

#define LM_DEVICES 3
#define LM_PATHS 16 /* the first is MS_GLOBAL */
#define LM_THREADS 4
#define LM_TRACKERS 3
#define LM_BLOCKS 256
#define LM_DEEPEST 48
#define LM_NO_THREAD UINT32_MAX /* in place of a thread */

extern const uint32_t lm_device_numbers[LM_DEVICES];

struct lm_block {
    uint64_t address, bytes;
    uint64_t since; /* model->time when it was added, or became MS_OTHER */
    uint32_t device, path;
    ms_category category;
    bool outside, claimed;
};

/* What is held on one device. */
struct lm_totals {
    int64_t of[LM_PATHS][MS_CATEGORY_COUNT];
};

struct lm_peak {
    int64_t bytes;
    struct lm_totals totals;
    uint64_t time;
    uint64_t since; /* of the block that reached the peak; 0: none did, or it was claimed later */
    uint32_t owner; /* this and the following: valid if `made` */
    uint32_t running;
    ms_phase phase;
    uint64_t step;
    bool made; /* by a block */
};

struct lm_tracker {
    ms_peak_tracker *core; /* NULL: not open */
    struct lm_peak peaks[LM_DEVICES];
};

/* What was held, by device and category. */
struct lm_sums {
    ms_sums on[LM_DEVICES];
    bool tied[LM_DEVICES]; /* a peak: the same total was reached twice, and the header does not define which one counts
                            */
};

struct lm_call {
    uint32_t path, outer; /* outer: an index in `calls`, plus 1 */
    uint64_t iteration;
    bool recompute, open, ended;
    struct lm_sums pre, post, peak;
    /* Backward: `nodes_open` of its nodes are running. The peak is at least the most that was held
     * while one of its nodes ran, and at most the most that was held from the first to the last one.
     * The end is where the last node was left, or where the thread went on to another call's node. */
    bool begun, went_on;
    uint32_t nodes_open;
    struct lm_sums pre_back, post_back, went_back, least, most, most_so_far;
};

enum lm_kind { LM_CALL, LM_NODE, LM_OVERRIDE };

struct lm_frame {
    enum lm_kind kind;
    uint32_t path;
    uint32_t call; /* an index in `calls`, plus 1: the call, or the one that the node was created in */
};

struct lm_node {
    uint32_t path, call;
    bool odd; /* created in a node: the header does not define whose backward it is part of */
};

struct lm_thread {
    ms_thread *core;
    uint64_t id, iteration;
    struct lm_frame frames[LM_DEEPEST];
    uint32_t depth;
    bool evaluation;  /* its latest root call began outside a step, without grad */
    uint32_t step_at; /* the depth at which an optimizer step began, plus 1; 0: none */
    struct lm_node *made;
    uint64_t made_count, made_room;
};

struct ledger_model {
    ms_watch *watch;
    ms_ledger *ledger;
    bool attached;
    ms_path paths[LM_PATHS];
    struct lm_block blocks[LM_BLOCKS];
    uint32_t block_count, device_count;
    uint64_t parameters_dropped;
    struct lm_tracker trackers[LM_TRACKERS];
    struct lm_thread threads[LM_THREADS];
    uint64_t next_id;
    struct lm_call *calls;
    uint64_t call_count, call_room;
    uint64_t iteration_of[LM_PATHS]; /* the latest that called the path */
    uint64_t step_of[LM_PATHS];      /* of its latest root call */
    uint32_t open_of[LM_PATHS];
    uint64_t iterations, step, time;
    uint32_t root_calls; /* of the latest iteration */
    bool claiming, steps, step_left;
    bool no_backward; /* a node ran whose backward the header does not define */
    uint64_t refused; /* events that the ledger had no memory for */
    uint64_t checks, peaks_made, backwards;
    bool failed;
    char wrong[256];
};

/* Opens a watch, its paths and threads; then its ledger. False when there is no memory. */
bool lm_open(struct ledger_model *model, const ms_options *options);
bool lm_open_ledger(struct ledger_model *model);
void lm_close(struct ledger_model *model);
__attribute__((format(printf, 2, 3))) void lm_wrong(struct ledger_model *model, const char *format, ...);

/* ---- blocks; `thread` may be LM_NO_THREAD ---- */
void lm_add(struct ledger_model *model, uint32_t thread, uint64_t address, uint64_t bytes, uint32_t device);
void lm_add_as(struct ledger_model *model, uint32_t thread, struct lm_block what);
void lm_drop(struct ledger_model *model, uint64_t address);
void lm_claim(struct ledger_model *model, uint64_t address, ms_category category, uint32_t path);
void lm_clear(struct ledger_model *model);
void lm_claims_begin(struct ledger_model *model);
void lm_claims_end(struct ledger_model *model);
/* Detach and attach the ledger; does nothing unless all threads are idle. */
void lm_pause(struct ledger_model *model);

/* ---- peak trackers; `index` is below LM_TRACKERS. Opening an open one does nothing ---- */
void lm_tracker_open(struct ledger_model *model, uint32_t index);
void lm_tracker_close(struct ledger_model *model, uint32_t index);
void lm_tracker_reset(struct ledger_model *model, uint32_t index);

/* ---- threads: ledger_model_calls.c ---- */
void lm_call_enter(struct ledger_model *model, uint32_t thread, uint32_t path, bool without_grad);
void lm_node_enter(struct ledger_model *model, uint32_t thread, uint32_t creator, uint64_t number);
void lm_node_enter_as(struct ledger_model *model, uint32_t thread, uint32_t path);
void lm_override_enter(struct ledger_model *model, uint32_t thread, uint32_t path);
/* Leave the innermost call, node or override; does nothing if none is open. */
void lm_leave(struct ledger_model *model, uint32_t thread);
void lm_make(struct ledger_model *model, uint32_t thread, uint64_t count);
void lm_step_enter(struct ledger_model *model, uint32_t thread);
void lm_step_leave(struct ledger_model *model, uint32_t thread);
/* End the thread and open another one in its place; does nothing unless it is idle. */
void lm_thread_renew(struct ledger_model *model, uint32_t thread);

/* ---- what the files of the model share ---- */
bool lm_thread_open(struct ledger_model *model, uint32_t thread);
void lm_calls_close(struct ledger_model *model);
ms_phase lm_phase(const struct lm_thread *thread);
uint32_t lm_path(const struct lm_thread *thread);
uint32_t lm_open_of_kind(const struct lm_thread *thread, enum lm_kind kind);
struct lm_totals lm_totals_now(const struct ledger_model *model, uint32_t device);
ms_sums lm_sums_of(const struct lm_totals *totals);
struct lm_sums lm_now(const struct ledger_model *model);
int64_t lm_total(const ms_sums *sums);
/* The total grew: raise the peaks of open calls and backwards. */
void lm_calls_grow(struct ledger_model *model);

/* Compare every figure (ledger_model_check.c). */
void lm_check(struct ledger_model *model);

#endif
