/* modscope_ledger.h - who holds how many bytes, now and when it was most.
 *
 * A ledger hangs on a watch (modscope.h). Sources tell it what happens to blocks of memory;
 * the watch's threads tell it, by their calls and nodes, whose a block is. It answers what is
 * held now, what was held when most was, by device, category and path, and what was held
 * around each call. It knows numbers only: addresses, bytes, devices, paths.
 *
 * Blocks     A block belongs to the innermost path of the thread that adds it, and its
 *            category follows from the thread's phase: MS_ACTIVATION outside backward,
 *            MS_TEMP in backward and in an optimizer's step. When more is known, it is claimed.
 * Sums       total = sum over categories = sum over paths = sum over live blocks, for every
 *            device, now and at every peak.
 * Errors     MS_OK or a negative MS_E* code. After a failure every answer is as before the
 *            call; ms_ledger_lost() grows where memory ran out, and figures are then "at least".
 * Memory     O(live blocks) + O(paths seen) + O(calls of the latest step).
 * Threads    Every function may be called by any thread at any time, except where noted. None
 *            blocks for longer than another thread is inside one of them, none calls out. */
#ifndef MODSCOPE_LEDGER_H
#define MODSCOPE_LEDGER_H

#include "modscope.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MS_CATEGORIES(X)        \
    X(PARAMETER, "Parameter")   \
    X(BUFFER, "Buffer")         \
    X(GRADIENT, "Gradient")     \
    X(ACTIVATION, "Activation") \
    X(TEMP, "Temp")             \
    X(OPTSTATE, "Optstate")     \
    X(OTHER, "Other")

typedef enum ms_category {
#define X(name, text) MS_##name,
    MS_CATEGORIES(X)
#undef X
        MS_CATEGORY_COUNT
} ms_category;

/* The category's word; never NULL. */
const char *ms_category_name(ms_category category);

typedef struct ms_ledger ms_ledger;
typedef struct ms_peak_tracker ms_peak_tracker;

/* Devices are numbered by the caller, from 0. */
#define MS_MAX_DEVICES 64u

/* Bytes by category. */
typedef struct ms_sums {
    int64_t of[MS_CATEGORY_COUNT];
} ms_sums;

/* ---- a ledger ---- */

/* A new ledger, empty, not attached. NULL when memory runs out. */
ms_ledger *ms_ledger_open(ms_watch *watch);
/* Free a ledger and its viewers. It must be detached; threads that still hold its address
 * from before may call with it once more and are told MS_EDETACHED. Before ms_watch_close. */
void ms_ledger_close(ms_ledger *ledger);
/* From now on the watch's calls and nodes are told to it, and blocks are taken. One ledger a
 * watch: MS_EINVAL if another is attached. Calls that are open already have no moments. */
int ms_ledger_attach(ms_ledger *ledger);
/* Nothing more is told to it, and block events are MS_EDETACHED; its figures stay. */
void ms_ledger_detach(ms_ledger *ledger);
/* Strike off every block, as if all were dropped; what was lost stays lost. */
void ms_ledger_clear(ms_ledger *ledger);
/* How many blocks and moments could not be kept for want of memory. */
uint64_t ms_ledger_lost(const ms_ledger *ledger);

/* ---- blocks ---- */

/* `thread` made a block; thread may be NULL: then it is MS_GLOBAL's. A block that is there
 * already under that address was freed unseen, and is dropped first. No bytes: nothing. */
int ms_block_add(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device);
/* The same for a thread that is in this phase and path, by other means of knowing. */
int ms_block_add_in(ms_ledger *ledger, ms_phase phase, ms_path path, uint64_t address, uint64_t bytes, uint32_t device);
/* The same with what it is said, whatever the thread is doing. `outside`: not the allocator's. */
int ms_block_add_as(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device,
                    ms_category category, ms_path path, bool outside);
/* The block is gone. MS_ENOBLOCK if it is not known. Never allocates. */
int ms_block_drop(ms_ledger *ledger, uint64_t address);
/* The block is this category's and this path's, now and, if it lived then, at each viewer's
 * peak. What is a parameter or a buffer does not become optimizer state by a claim. MS_ENOBLOCK
 * if it is not known. */
int ms_block_claim(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path);
/* The block has another size now; none: it is dropped. MS_ENOBLOCK if it is not known. */
int ms_block_resize(ms_ledger *ledger, uint64_t address, uint64_t bytes);
/* The device the block is on. MS_ENOBLOCK if it is not known. */
int ms_block_device(ms_ledger *ledger, uint64_t address, uint32_t *device);
/* The bytes of the blocks at these addresses, summed; those not known count nothing. */
uint64_t ms_block_bytes(ms_ledger *ledger, const uint64_t *addresses, size_t count);

/* Between begin and end every claim, and every block added with a category, is noted; of several
 * claims of one block the category that comes first in MS_CATEGORIES holds. At the
 * end, blocks of the four categories that objects hold (parameter, buffer, gradient, optstate)
 * that nobody claimed are MS_OTHER from now on (at the peaks they stay what they were), and
 * blocks from outside that nobody claimed are dropped. */
void ms_claims_begin(ms_ledger *ledger);
void ms_claims_end(ms_ledger *ledger);

/* ---- figures now ---- */

/* One more than the highest device that ever had a block. */
uint32_t ms_ledger_devices(ms_ledger *ledger);
ms_sums ms_ledger_now(ms_ledger *ledger, uint32_t device);
/* The part of ms_ledger_now that is from outside the allocator. */
ms_sums ms_ledger_outside(ms_ledger *ledger, uint32_t device);
ms_sums ms_ledger_now_of(ms_ledger *ledger, uint32_t device, ms_path path);
uint64_t ms_ledger_blocks(ms_ledger *ledger);
/* How many blocks of parameters and buffers were dropped: when it grows, modules may hold others. */
uint64_t ms_ledger_parameters_dropped(ms_ledger *ledger);
/* Bytes the ledger itself takes for its blocks. */
uint64_t ms_ledger_block_memory(ms_ledger *ledger);

/* ---- figures at the peak: each viewer has its own ---- */
typedef struct ms_peak {
    int64_t bytes;   /* the most that was held */
    ms_sums sums;    /* of what, then */
    uint64_t step;   /* when: see ms_ledger_step */
    ms_phase phase;  /* what the thread that made it was doing */
    ms_path running; /* the innermost path that thread was in */
    ms_path owner;   /* whose the block that made it is */
} ms_peak;

/* A viewer's peak begins at what is held now. NULL when memory runs out. */
ms_peak_tracker *ms_peak_tracker_open(ms_ledger *ledger);
void ms_peak_tracker_close(ms_peak_tracker *viewer);
/* Forget the peak; the next one begins at what is held now. */
void ms_peak_tracker_reset(ms_peak_tracker *viewer);
ms_peak ms_peak_tracker_peak(ms_peak_tracker *viewer, uint32_t device);
ms_sums ms_peak_tracker_peak_of(ms_peak_tracker *viewer, uint32_t device, ms_path path);

/* ---- moments: what was held around the calls of a path ---- */
#define MS_CALL_STATES(X)          \
    X(PRE_FW, "Pre-Forward")       \
    X(POST_FW, "Post-Forward")     \
    X(PEAK_FW, "Peak-Forward")     \
    X(PRE_BW, "Pre-Backward")      \
    X(PEAK_BW, "Peak-Backward")    \
    X(POST_BW, "Post-Backward")    \
    X(PRE_FW_AC, "Pre-Forward-AC") \
    X(POST_FW_AC, "Post-Forward-AC")

typedef enum ms_call_state {
#define X(name, text) MS_##name,
    MS_CALL_STATES(X)
#undef X
        MS_CALL_STATE_COUNT
} ms_call_state;

/* The moment's words; never NULL. */
const char *ms_call_state_name(ms_call_state moment);

/* A call that begins with no call and no node open on its thread begins a round: the moments
 * of a path are those of the latest round that called it. One entry a call, in order; a call
 * run again inside backward adds to the two AC moments instead. A peak is the most of the
 * total between the two, of each device. Backward begins with the first node made in the call,
 * and ends when the thread goes on to a node made elsewhere; coming back moves the end. */
size_t ms_call_snapshot_count(ms_ledger *ledger, ms_path path, ms_call_state moment);
/* False if there is no such entry. *when, if not NULL, orders the entries of different paths. */
bool ms_call_snapshot_at(ms_ledger *ledger, ms_path path, ms_call_state moment, size_t index, uint32_t device,
                         ms_sums *sums, uint64_t *when);

/* What went into the thread's innermost call, or came out of it. */
void ms_call_set_size(ms_thread *thread, bool output, uint64_t bytes);
/* What was noted of the path's latest call. */
void ms_call_sizes(ms_ledger *ledger, ms_path path, uint64_t *input, uint64_t *output);

/* Backward of a call of `path` begins or ends, where the caller cannot tell nodes. */
void ms_backward_enter(ms_thread *thread, ms_path path);
void ms_backward_leave(ms_thread *thread, ms_path path);

/* 0 before the first round, 1 from then on. It grows when a round begins after a step was left;
 * and, as long as no step was ever entered or expected, when a round begins of a path that has
 * had one in this step. */
uint64_t ms_ledger_step(ms_ledger *ledger);
void ms_ledger_expect_optimizer(ms_ledger *ledger);
/* Grows with every event. An entry whose `when` is below it now was there before now. */
uint64_t ms_ledger_time(ms_ledger *ledger);

/* ---- what devices say ---- */

/* What a device is called, in captures and stories; at most 31 bytes of it are kept. */
void ms_device_set_name(ms_watch *watch, uint32_t device, const char *name);
/* What the device's allocator has reserved from now on. */
void ms_ledger_reserved(ms_ledger *ledger, uint32_t device, uint64_t bytes);

typedef struct ms_oom { /* an allocation that failed */
    uint32_t device;
    uint64_t requested;
    uint64_t allocated, reserved; /* as the allocator says, or 0 where it does not */
} ms_oom;
/* An allocation of `thread` (may be NULL) failed. Captures are told, and `story` gets the text of who holds what:
 * a dozen lines, cut off after room - 1 bytes. Never allocates. Returns the story's length. */
size_t ms_ledger_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom, char *story, size_t room);

/* NULL if every sum is right, else what is not. Looks at every block. For tests. */
const char *ms_ledger_check(ms_ledger *ledger);

#ifdef __cplusplus
}
#endif
#endif
