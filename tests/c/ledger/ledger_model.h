/* ledger_model.h - a slow, obvious twin of a ledger.
 *
 * Blocks are an array, a sum is a loop, a peak is a copy of everything, a call has what was held
 * when it began and ended. Each event goes to the core and to the model; lm_check() compares
 * every figure. The first that differs is kept in `wrong`, and nothing is checked after it.
 *
 * Threads are logical: one OS thread drives them all. A path is open at most once at a time,
 * because the header does not say whose moments are whose otherwise. */
#ifndef MS_TEST_LEDGER_MODEL_H
#define MS_TEST_LEDGER_MODEL_H

#include "modscope_ledger.h"

#define LM_DEVICES 3
#define LM_PATHS 16 /* the first is MS_GLOBAL */
#define LM_THREADS 4
#define LM_VIEWERS 3
#define LM_BLOCKS 256
#define LM_DEEPEST 48
#define LM_NOBODY UINT32_MAX /* in place of a thread */

extern const uint32_t lm_device_numbers[LM_DEVICES];

struct lm_block {
    uint64_t address, bytes;
    uint64_t since; /* it was made, or became MS_OTHER */
    uint32_t device, path;
    ms_category category;
    bool outside, noted;
};

/* What is held on one device. */
struct lm_cells {
    int64_t of[LM_PATHS][MS_CATEGORY_COUNT];
};

struct lm_peak {
    int64_t bytes;
    struct lm_cells cells;
    uint64_t time;
    uint64_t since; /* of the block that made it; 0: none did, or it was claimed meanwhile */
    uint32_t owner; /* this and the rest: if a block made it */
    uint32_t running;
    ms_phase phase;
    uint64_t step;
    bool made;
};

struct lm_viewer {
    ms_peak_tracker *core; /* NULL: not open */
    struct lm_peak peaks[LM_DEVICES];
};

/* What was held, by device and category. */
struct lm_sums {
    ms_sums on[LM_DEVICES];
    bool tied[LM_DEVICES]; /* a peak: the same total was there twice, and which counts is not said */
};

struct lm_call {
    uint32_t path, outer; /* outer: a place in `calls`, plus 1 */
    uint64_t round;
    bool again, open, ended;
    struct lm_sums pre, post, peak;
    /* Backward: nodes_open of its nodes run now. The peak is at least what was held while a
     * node ran, and at most what was held from the first to the last. The end is where the last
     * node was left, or where the thread went on. */
    bool begun, went_on;
    uint32_t nodes_open;
    struct lm_sums pre_back, post_back, went_back, least, most, most_so_far;
};

enum lm_kind { LM_CALL, LM_NODE, LM_HOLD };

struct lm_frame {
    enum lm_kind kind;
    uint32_t path;
    uint32_t call; /* a place in `calls`, plus 1: the call, or the one that the node was made in */
};

struct lm_node {
    uint32_t path, call;
    bool odd; /* made in a node: the header does not say whose backward it is */
};

struct lm_thread {
    ms_thread *core;
    uint64_t id, round;
    struct lm_frame frames[LM_DEEPEST];
    uint32_t depth;
    uint32_t step_at; /* the depth that a step began at, plus 1; 0: none */
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
    uint64_t replaced;
    struct lm_viewer viewers[LM_VIEWERS];
    struct lm_thread threads[LM_THREADS];
    uint64_t next_id;
    struct lm_call *calls;
    uint64_t call_count, call_room;
    uint64_t round_of[LM_PATHS];     /* the latest that called the path */
    uint64_t iteration_of[LM_PATHS]; /* of its latest round */
    uint32_t open_of[LM_PATHS];
    uint64_t rounds, step, time;
    bool claiming, steps, step_left;
    bool no_backward; /* something was run whose backward the header leaves open */
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

/* ---- blocks; `thread` may be LM_NOBODY ---- */
void lm_add(struct ledger_model *model, uint32_t thread, uint64_t address, uint64_t bytes, uint32_t device);
void lm_add_as(struct ledger_model *model, uint32_t thread, struct lm_block what);
void lm_drop(struct ledger_model *model, uint64_t address);
void lm_claim(struct ledger_model *model, uint64_t address, ms_category category, uint32_t path);
void lm_clear(struct ledger_model *model);
void lm_claims_begin(struct ledger_model *model);
void lm_claims_end(struct ledger_model *model);
/* Detaches and attaches; only while no thread is anywhere. */
void lm_pause(struct ledger_model *model);

/* ---- viewers, each in its place: opens one that is closed ---- */
void lm_view(struct ledger_model *model, uint32_t place);
void lm_view_close(struct ledger_model *model, uint32_t place);
void lm_view_reset(struct ledger_model *model, uint32_t place);

/* ---- threads: ledger_model_calls.c ---- */
void lm_call_enter(struct ledger_model *model, uint32_t thread, uint32_t path);
void lm_node_enter(struct ledger_model *model, uint32_t thread, uint32_t maker, uint64_t number);
void lm_node_enter_as(struct ledger_model *model, uint32_t thread, uint32_t path);
void lm_hold_enter(struct ledger_model *model, uint32_t thread, uint32_t path);
/* The innermost of what is open, if anything is. */
void lm_leave(struct ledger_model *model, uint32_t thread);
void lm_make(struct ledger_model *model, uint32_t thread, uint64_t count);
void lm_step_enter(struct ledger_model *model, uint32_t thread);
void lm_step_leave(struct ledger_model *model, uint32_t thread);
/* Another thread in its place, if it is nowhere. */
void lm_thread_renew(struct ledger_model *model, uint32_t thread);

/* ---- what the files of the model share ---- */
bool lm_thread_open(struct ledger_model *model, uint32_t thread);
void lm_calls_close(struct ledger_model *model);
ms_phase lm_phase(const struct lm_thread *thread);
uint32_t lm_path(const struct lm_thread *thread);
uint32_t lm_open_of_kind(const struct lm_thread *thread, enum lm_kind kind);
struct lm_cells lm_cells_now(const struct ledger_model *model, uint32_t device);
ms_sums lm_sums_of(const struct lm_cells *cells);
struct lm_sums lm_now(const struct ledger_model *model);
int64_t lm_total(const ms_sums *sums);
/* The total grew: what is open may have a new peak. */
void lm_calls_grow(struct ledger_model *model);

/* Every figure there is: ledger_model_check.c. */
void lm_check(struct ledger_model *model);

#endif
