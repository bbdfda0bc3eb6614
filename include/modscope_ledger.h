/* modscope_ledger.h - how many bytes each module holds: now, at the peak, and around each of its calls.
 *
 * A ledger belongs to a watch (modscope.h). Its caller reports what happens to blocks of memory: added, dropped,
 * claimed. The watch tells it which calls and nodes are open on each thread, so that it can attribute each block to
 * the module that is running. It knows only numbers: addresses, bytes, devices, paths.
 *
 * Blocks     A new block belongs to the innermost path of the thread that adds it. Its category follows from the
 *            thread's phase, as ms_block_add says. A claim corrects both when the object that holds the block is known.
 * Sums       For every device, now and at every peak:
 *            total = sum over categories = sum over paths = sum over live blocks
 * Errors     Functions return MS_OK or a negative MS_E* code. After an error every figure is what it was before the
 *            call. Where memory ran out, ms_ledger_lost() grows as well: from then on a figure means "at least".
 * Memory     O(live blocks) + O(paths) + O(calls of the latest step).
 * Threads    Any thread may call any function at any time, unless the function says otherwise. A function waits only
 *            while another thread is inside a function of the same ledger or watch, and calls nothing back. */
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

/* The category's name, such as "Parameter"; never NULL. */
const char *ms_category_name(ms_category category);

/* A kind says more about a block within its category: which of the objects of FSDP2 or DDP holds it. Most
 * blocks have none (0). Captures store the numbers. Each line: the name, the text, the category. */
#define MS_KINDS(X)                                  \
    X(SHARDED_PARAM, "Sharded Param", PARAMETER)     \
    X(UNSHARDED_PARAM, "Unsharded Param", PARAMETER) \
    X(SHARDED_GRAD, "Sharded Grad", GRADIENT)        \
    X(UNSHARDED_GRAD, "Unsharded Grad", GRADIENT)    \
    X(ALL_GATHER, "All Gather", TEMP)                \
    X(REDUCE_SCATTER, "Reduce Scatter", TEMP)        \
    X(INPUT, "Inputs", OTHER)                        \
    X(BUCKET, "Bucket", GRADIENT)                    \
    X(ALL_REDUCE, "All Reduce", TEMP)                \
    X(PIPELINE, "Pipeline Buffer", ACTIVATION)

typedef enum ms_kind {
    MS_KIND_NONE,
#define X(name, text, category) MS_KIND_##name,
    MS_KINDS(X)
#undef X
        MS_KIND_COUNT
} ms_kind;

/* The kind's name, such as "Sharded Param"; "" for MS_KIND_NONE. Never NULL. */
const char *ms_kind_name(ms_kind kind);
/* The category of the blocks that have this kind; MS_OTHER for MS_KIND_NONE. */
static inline ms_category ms_kind_category(ms_kind kind)
{
    switch (kind) {
#define X(name, text, category) \
    case MS_KIND_##name:        \
        return MS_##category;
        MS_KINDS(X)
#undef X
    default:
        return MS_OTHER;
    }
}

typedef struct ms_ledger ms_ledger;
typedef struct ms_peak_tracker ms_peak_tracker;

/* The caller numbers the devices, from 0; this is how many there may be. */
#define MS_MAX_DEVICES 64u

/* Bytes by category. */
typedef struct ms_sums {
    int64_t of[MS_CATEGORY_COUNT];
} ms_sums;

/* Bytes by kind. of[MS_KIND_NONE] is 0: blocks without a kind are not counted. */
typedef struct ms_kind_sums {
    int64_t of[MS_KIND_COUNT];
} ms_kind_sums;

/* ---- a ledger ---- */

/* Open an empty ledger, which is not attached yet. NULL when memory runs out. */
ms_ledger *ms_ledger_open(ms_watch *watch);
/* Detach the ledger if it is attached, and free what it holds, its peak trackers included. End its captures
 * first, and close every ledger before its watch. NULL is allowed.
 * A thread that got the address earlier may still be about to report a block: it gets MS_EDETACHED. */
void ms_ledger_close(ms_ledger *ledger);
/* Attach the ledger to its watch: from now on it follows the watch's threads and accepts blocks. Calls that are open
 * already get no snapshots. MS_EINVAL if another ledger is attached to the watch; MS_OK if this one is. */
int ms_ledger_attach(ms_ledger *ledger);
/* Detach the ledger. Its figures stay as they are: from now on block events change nothing and return MS_EDETACHED. */
void ms_ledger_detach(ms_ledger *ledger);
/* Drop every block. The peaks, the call snapshots and ms_ledger_lost() stay. */
void ms_ledger_clear(ms_ledger *ledger);
/* How many blocks and call snapshots are missing because memory ran out. */
uint64_t ms_ledger_lost(const ms_ledger *ledger);
/* Count a block that the caller could not report because memory ran out. */
void ms_ledger_count_lost(ms_ledger *ledger);

/* ---- stacks: where in the program a block was made ----
 *
 * A stack is a frame, and the stack around it: a tree, in which each distinct frame is stored once in its context. The
 * innermost frames may be operators: one of torch's dispatcher, whose name has "::" in it, and around it a backward
 * node. The table of stacks has bounds (MS_STACKS_MAX and MS_STACK_TEXT_MAX); what does not fit is MS_STACK_LOST, and
 * counted. Stacks are never forgotten before the watch is closed, so their texts can be read without a lock. */
typedef uint32_t ms_stack;
enum {
    MS_STACK_NONE, /* not known */
    MS_STACK_LOST, /* known when the block was made, but the table was full */
    MS_STACKS_MAX = 1 << 18,
    MS_STACK_TEXT_MAX = 32 << 20 /* bytes of all distinct texts */
};

typedef struct ms_frame {
    const char *file;                      /* NULL: `function` is the name of an operator, and there is no line */
    const char *function;                  /* its qualified name */
    const char *called;                    /* what is called there: "torch.relu", "matmul"; NULL: not known */
    uint32_t line;                         /* 0: not known */
    uint32_t column, end_line, end_column; /* of the expression, columns in bytes from 0; end_line 0: not known */
    ms_stack outer;                        /* the stack around the frame, or MS_STACK_NONE */
    ms_stack forward; /* of an operator that is a backward node: the stack that created it, or MS_STACK_NONE */
    bool is_model;    /* of a library's code inside a module's forward; the program's own frames are around it */
} ms_frame;

/* The number of the stack, which is added if it is new; the texts are copied. It may be called on any thread at any
 * time; it takes the watch's lock. MS_STACK_LOST: the table is full, memory ran out, or `outer` is not known. */
ms_stack ms_stack_add(ms_watch *watch, const ms_frame *frame);
/* The stack's innermost frame, whose texts belong to the watch. False for MS_STACK_NONE, MS_STACK_LOST and numbers
 * that no stack has. Takes no lock. */
bool ms_stack_frame(const ms_watch *watch, ms_stack stack, ms_frame *frame);
/* One more than the highest stack. */
uint32_t ms_stack_count(const ms_watch *watch);
/* How many times a stack was lost. */
uint64_t ms_stacks_lost(const ms_watch *watch);

/* This thread has just created the backward node with this number, here. Only the latest 131072 nodes of a thread are
 * remembered, and none if memory runs out. */
void ms_node_created(ms_thread *thread, uint64_t number, ms_stack stack);
/* The stack that created the node, as ms_node_enter has it; MS_STACK_NONE if it is not known. `thread`: this one, which
 * remembers the creator of the node that it entered last. */
ms_stack ms_node_stack(const ms_thread *thread, uint64_t creator, uint64_t number);

/* ---- blocks ----
 * Each of these may return, besides the errors it names:
 * MS_EINVAL      a device, size, category, phase or path is out of range
 * MS_EDETACHED   the ledger is not attached
 * MS_ENOMEM      memory ran out, and ms_ledger_lost() has grown
 * In each of these cases the ledger is unchanged. */

/* Add a block that `thread` has allocated. It belongs to the thread's innermost path. Its category is MS_OTHER while
 * the thread is idle, MS_TEMP in backward and in an optimizer step, and MS_ACTIVATION in the other phases. Where thread
 * is NULL, the block belongs to MS_GLOBAL and is MS_OTHER. If a block is known at that address, it was freed without a
 * report, and is dropped first. A block of 0 bytes is ignored: MS_OK. */
int ms_block_add(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device);
/* Like ms_block_add, and this stack made the block. */
int ms_block_add_at(ms_ledger *ledger, const ms_thread *thread, ms_stack stack, uint64_t address, uint64_t bytes,
                    uint32_t device);
/* Like ms_block_add_at, but the block belongs to `path`, in whose place the thread runs code that does not call it:
 * that of a compiler, for several modules at once. A thread that is idle is in forward then. MS_EINVAL for a path that
 * the watch does not have, too. */
int ms_block_add_for(ms_ledger *ledger, const ms_thread *thread, ms_path path, ms_stack stack, uint64_t address,
                     uint64_t bytes, uint32_t device);
/* Like ms_block_add, for a thread that the watch does not know: it is in this phase, and `path` is its innermost. */
int ms_block_add_in(ms_ledger *ledger, ms_phase phase, ms_path path, uint64_t address, uint64_t bytes, uint32_t device);
/* Like ms_block_add_in, and this stack made the block. */
int ms_block_add_in_at(ms_ledger *ledger, ms_phase phase, ms_path path, ms_stack stack, uint64_t address,
                       uint64_t bytes, uint32_t device);
/* Like ms_block_add, with a category and owner that do not depend on what the thread is doing. This counts as a claim.
 * `outside`: the memory is not from an allocator of torch. */
int ms_block_add_as(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device,
                    ms_category category, ms_path path, bool outside);
/* The stack that made the block; MS_STACK_NONE if it is not known, or no block is at that address. */
ms_stack ms_block_stack(ms_ledger *ledger, uint64_t address);
/* Drop a block that was freed. MS_ENOBLOCK if no block is known at that address. Never allocates. */
int ms_block_drop(ms_ledger *ledger, uint64_t address);
/* Drop a block from outside that belongs to `path`. MS_ENOBLOCK if there is none at that address. Never allocates. */
int ms_block_drop_outside(ms_ledger *ledger, uint64_t address, ms_path path);
/* Set the block's category and owner, retroactively: the block counts as that since it was added, at each peak
 * tracker's peak as well. Claiming a parameter or buffer as MS_OPTSTATE has no effect: MS_OK. MS_ENOBLOCK if no block
 * is known at that address. */
int ms_block_claim(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path);
/* Like ms_block_claim, with the kind's category, and the block gets the kind, retroactively. A later claim without a
 * kind takes the kind away if it gives the block another category; else the block keeps its kind and its owner.
 * MS_EINVAL for MS_KIND_NONE, too. */
int ms_block_claim_kind(ms_ledger *ledger, uint64_t address, ms_kind kind, ms_path path);
/* Like ms_block_claim, but a block of a category that objects hold (parameter, buffer, gradient, optimizer state) keeps
 * its category and owner: MS_OK. In a claim pass that holds only for what was claimed in the pass or has this category
 * already. */
int ms_block_claim_unheld(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path);
/* Autograd keeps the block for backward: if it is MS_OTHER, it becomes MS_ACTIVATION, retroactively, and keeps its
 * owner. MS_ENOBLOCK if no block is known at that address. */
int ms_block_saved(ms_ledger *ledger, uint64_t address);
/* Note for captures that autograd keeps the block for backward, without changing its category. Parameters, gradients
 * and other blocks that objects hold are not noted. `requested` is the size of the tensor's storage, which the program
 * requested; 0: it is not known. MS_ENOBLOCK as above. */
int ms_block_note_saved(ms_ledger *ledger, uint64_t address, uint64_t requested);
/* Note for captures how many bytes the program requested for the block, and on which stream. Without captures this does
 * nothing. MS_ENOBLOCK if no block is known at that address. */
int ms_block_note_request(ms_ledger *ledger, uint64_t address, uint64_t requested, uint64_t stream);
/* Note for captures that the allocator took a segment for the block, which begins at the same address. */
int ms_block_note_segment(ms_ledger *ledger, uint64_t address);
/* For captures: the time of the call that the thread has just entered will be known later, under this number, which is
 * not 0 and not that of another such call. Without captures this does nothing. */
void ms_call_note_begin(ms_ledger *ledger, const ms_thread *thread, uint64_t number);
/* For captures: how long the GPU needed for that call. Of more than 8192 calls whose times are not known yet, the
 * earliest have none. */
void ms_call_note_time(ms_ledger *ledger, uint64_t number, uint64_t nanoseconds);
/* How many events the earliest capture of the ledger has; 0: there is none. */
uint64_t ms_captured_events(ms_ledger *ledger);

/* A tensor among the inputs of a root call: "2 x 4,096 tokens". */
typedef enum ms_element { MS_ELEMENT_OTHER, MS_ELEMENT_INTEGER, MS_ELEMENT_FLOAT, MS_ELEMENT_COUNT } ms_element;
enum { MS_INPUT_DIMS = 5, MS_INPUTS = 16 }; /* as many dimensions, and inputs of a call, are noted at most */
typedef struct ms_input {
    uint64_t dims[MS_INPUT_DIMS];
    uint32_t dim_count;
    ms_element element;
} ms_input;

/* For captures: the inputs of the root call that has just begun in forward on the thread, at most MS_INPUTS. From the
 * second step on the out-of-memory report compares those of its step with the largest before. Without captures, and in
 * other phases, this does nothing. */
void ms_inputs_note(ms_ledger *ledger, const ms_thread *thread, const ms_input *inputs, uint32_t count);
/* The input that stands for all of a call, of which there is at least one: the first integers of two dimensions, else
 * the first of those with most dimensions. */
const ms_input *ms_inputs_main(const ms_input *inputs, uint32_t count);
/* Write a shape as people read it, such as "2 x 4,096 tokens"; `unit`: with what its elements are, where that is known.
 * Returns how long it is; what does not fit into `room` is cut off. */
size_t ms_input_text(const ms_input *input, bool unit, char *text, size_t room);

/* What an operator of torch's dispatcher does beside returning new tensors. */
enum { MS_OPERATOR_IN_PLACE = 1, MS_OPERATOR_VIEW = 2, MS_OPERATOR_RANDOM = 4 };
#define MS_OPERATOR_NAME_MAX 127 /* what is longer is cut off */

typedef struct ms_operator {
    const char *name; /* it is never freed, and its address identifies it */
    uint32_t flags;
} ms_operator;

/* For captures: the operator has run on the thread, which needed so much time of the device for it. `before` is what
 * ms_captured_events returned when it began. `address`: of the block that it changes in place; 0: it is not known.
 * Without captures this does nothing. */
void ms_operator_note(ms_ledger *ledger, const ms_thread *thread, const ms_operator *ran, uint64_t before,
                      uint64_t nanoseconds, uint64_t address);
/* Whether any capture records the ledger now. */
bool ms_ledger_is_captured(const ms_ledger *ledger);
/* Whether the block is MS_OTHER and belongs to MS_GLOBAL. *known becomes whether a block is known at that address. */
bool ms_block_is_unowned(ms_ledger *ledger, uint64_t address, bool *known);
/* The block is an input of a root call: if it is MS_OTHER and belongs to MS_GLOBAL, it belongs to `path`,
 * retroactively. MS_ENOBLOCK if no block is known at that address. */
int ms_block_claim_input(ms_ledger *ledger, uint64_t address, ms_path path);
/* Change the block's size. The block counts as dropped and added anew, with its category and owner; with 0 bytes it is
 * only dropped. MS_ENOBLOCK if no block is known at that address. */
int ms_block_resize(ms_ledger *ledger, uint64_t address, uint64_t bytes);
/* The sum of the sizes of the blocks at these addresses. An address at which no block is known counts 0. */
uint64_t ms_block_bytes(ms_ledger *ledger, const uint64_t *addresses, size_t count);
/* Like ms_block_bytes, and note for captures that the blocks are inputs of the call that has just begun, or outputs of
 * the one that is about to end. Blocks that objects hold are not noted. */
uint64_t ms_block_note_uses(ms_ledger *ledger, const uint64_t *addresses, size_t count, bool output);

/* A claim pass: between begin and end the caller claims every block that a known object holds.
 * - Of several claims of one block in a pass, the category that comes first in MS_CATEGORIES is kept.
 * - The end looks at blocks that were neither claimed nor added in the pass. Those of the categories that objects hold
 *   (parameter, buffer, gradient, optimizer state) become MS_OTHER from now on: at the peaks they stay what they were.
 *   Those from outside are dropped. Blocks of MS_KIND_BUCKET stay what they are: no object tells who holds them. */
void ms_claims_begin(ms_ledger *ledger);
/* In this pass, the end leaves unclaimed blocks of this category as they are: some of the objects that hold them could
 * not be read. MS_EINVAL if the category is out of range, or outside a pass. */
int ms_claims_keep(ms_ledger *ledger, ms_category category);
void ms_claims_end(ms_ledger *ledger);

/* ---- what is allocated now ----
 * A device or path that never had a block has sums of 0. */

/* The highest number of a device that ever had a block, plus 1. */
uint32_t ms_ledger_devices(ms_ledger *ledger);
/* What is allocated on the device. */
ms_sums ms_ledger_now(ms_ledger *ledger, uint32_t device);
/* The part of ms_ledger_now that is from outside the allocator. */
ms_sums ms_ledger_outside(ms_ledger *ledger, uint32_t device);
/* The path's own part of ms_ledger_now, without the paths inside it. */
ms_sums ms_ledger_now_of(ms_ledger *ledger, uint32_t device, ms_path path);
/* Set *path to the first path from *path on that has a part of ms_ledger_now, or, with a peak tracker, of the device's
 * peak. False if there is none. So all of them are found without asking for every path that the watch ever knew. */
bool ms_ledger_find_path(ms_ledger *ledger, ms_peak_tracker *at_peak, uint32_t device, ms_path *path);
/* What is allocated on the device by kind, and the path's own part of that. */
ms_kind_sums ms_ledger_kinds(ms_ledger *ledger, uint32_t device);
ms_kind_sums ms_ledger_kinds_of(ms_ledger *ledger, uint32_t device, ms_path path);
/* Set *path to the first path from *path on that may have blocks with a kind, now or at a peak. False if there is none.
 */
bool ms_ledger_find_path_with_kinds(ms_ledger *ledger, uint32_t device, ms_path *path);
/* How many blocks are live. */
uint64_t ms_ledger_blocks(ms_ledger *ledger);
/* How many parameter and buffer blocks were dropped so far. When it grows, modules may hold other parameters.
 * Unsharded parameters do not count: they come and go around each call. */
uint64_t ms_ledger_parameters_dropped(ms_ledger *ledger);
/* How many bytes the ledger itself uses for its live blocks. */
uint64_t ms_ledger_block_memory(ms_ledger *ledger);

/* ---- peaks: each peak tracker has its own ---- */
typedef struct ms_peak {
    int64_t bytes;   /* the most that was allocated on the device */
    ms_sums sums;    /* the same by category */
    uint64_t step;   /* the step in which the peak was reached (ms_ledger_step) */
    ms_phase phase;  /* the phase of the thread whose block reached it */
    ms_path running; /* that thread's innermost path */
    ms_path owner;   /* the owner of that block */
} ms_peak;

/* Open a peak tracker, whose peak begins at what is allocated now. NULL when memory runs out. */
ms_peak_tracker *ms_peak_tracker_open(ms_ledger *ledger);
/* Open a tracker whose ms_peak_tracker_peak_of is all zero. Blocks cost less if all trackers are such. */
ms_peak_tracker *ms_peak_tracker_open_without_paths(ms_ledger *ledger);
/* Close it before its ledger, or let ms_ledger_close do it. NULL is allowed. */
void ms_peak_tracker_close(ms_peak_tracker *tracker);
/* Forget the peak: the next one begins at what is allocated now. */
void ms_peak_tracker_reset(ms_peak_tracker *tracker);
/* The peak of a device; all zero for a device that does not exist. */
ms_peak ms_peak_tracker_peak(ms_peak_tracker *tracker, uint32_t device);
/* The path's own part of the peak, without the paths inside it. */
ms_sums ms_peak_tracker_peak_of(ms_peak_tracker *tracker, uint32_t device, ms_path path);

/* Bytes by kind: at the device's peak, and the path's own part of it. */
ms_kind_sums ms_peak_tracker_kinds(ms_peak_tracker *tracker, uint32_t device);
ms_kind_sums ms_peak_tracker_kinds_of(ms_peak_tracker *tracker, uint32_t device, ms_path path);

/* ---- call snapshots: what the whole program had allocated around the calls of a path ---- */
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

/* The state's name, such as "Pre-Forward"; never NULL. */
const char *ms_call_state_name(ms_call_state state);

/* The ledger keeps the snapshots of the calls of a path in the latest step (ms_ledger_step) that called the path, or,
 * if an evaluation called it later, in one root call of it, the latest. Of a step with more than 256 root calls it
 * keeps the latest only, at least 1 and at most 256 of them.
 * - Each call adds one snapshot of MS_PRE_FW and MS_PEAK_FW when it begins, and one of MS_POST_FW when it ends; a
 *   recompute adds to MS_PRE_FW_AC and MS_POST_FW_AC instead.
 * - The call's backward begins when a node runs that was created in the call, or in a call inside it. It ends when
 *   the thread begins a node that was created elsewhere. If a node of the call runs after that, the end moves.
 * - A peak is the highest total between beginning and end, for each device on its own. */

/* Whether call snapshots are kept from now on; a new ledger keeps them. Without them, calls and nodes cost less. When
 * they are kept again, those from before are forgotten, and a call that is open then has none. */
void ms_ledger_keep_call_snapshots(ms_ledger *ledger, bool keep);
/* How many snapshots of this state the path has. */
size_t ms_call_snapshot_count(ms_ledger *ledger, ms_path path, ms_call_state state);
/* Set *sums to snapshot number `index`, counted from 0 in the order of the calls, of this device. *time, unless NULL,
 * becomes the time at which it was taken (ms_ledger_time). False, and both are unchanged, if there is no such one. */
bool ms_call_snapshot_at(ms_ledger *ledger, ms_path path, ms_call_state state, size_t index, uint32_t device,
                         ms_sums *sums, uint64_t *time);

/* Set the size in bytes of the inputs, or of the outputs, of the thread's innermost call. */
void ms_call_set_size(ms_thread *thread, bool output, uint64_t bytes);
/* The sizes that were set for the path's latest call; 0 where none was set. */
void ms_call_sizes(ms_ledger *ledger, ms_path path, uint64_t *input, uint64_t *output);

/* Report that the backward of a call of `path` begins or ends. For callers that report no nodes to the watch. */
void ms_backward_enter(ms_thread *thread, ms_path path);
void ms_backward_leave(ms_thread *thread, ms_path path);

/* The number of the step: 0 before the first, then counted from 1. A root call that was entered with grad
 * (ms_call_enter) begins a step if none is open, else it belongs to the open one. A step is open until
 * - an optimizer step has ended, or of several optimizers that step in turn the last one's;
 * - or, as long as no optimizer step was ever entered or announced with ms_ledger_expect_optimizer, until a root call
 *   begins, with grad or without, whose path has had a root call in this step already.
 * A root call without grad (ms_call_enter_without_grad) belongs to the step that is open: a teacher, a target network.
 * If none is open, it is an evaluation, begins no step, and has the number of the step before it. */
uint64_t ms_ledger_step(ms_ledger *ledger);
void ms_ledger_expect_optimizer(ms_ledger *ledger);
/* The same, where the program has `count` optimizers with parameters in use. Several may step in turn, as those of a
 * GAN do: each once in a training step, which the last of them ends. If one steps again before all others have, they do
 * not step in turn, and from then on each step of an optimizer ends a step. Optimizers are told apart by
 * ms_optimizer_leave_as. */
void ms_ledger_expect_optimizers(ms_ledger *ledger, uint32_t count);
/* Whether the step is over when a step of this optimizer ends now; 0: whether the latest optimizer step ended it. */
bool ms_ledger_ends_step(ms_ledger *ledger, uint64_t optimizer);
/* Whether several optimizers were found not to step in turn. */
bool ms_ledger_optimizers_lack_order(ms_ledger *ledger);
/* A number that grows with every change. A snapshot was taken before this call if its time is below what this
 * returns. */
uint64_t ms_ledger_time(ms_ledger *ledger);

/* ---- what devices and their allocators report ---- */

/* Set the device's name for captures and out-of-memory reports. At most 31 bytes of it are kept. */
void ms_device_set_name(ms_watch *watch, uint32_t device, const char *name);
/* The device's allocator has this much reserved from now on. */
void ms_ledger_reserved(ms_ledger *ledger, uint32_t device, uint64_t bytes);

typedef struct ms_oom { /* an allocation that failed */
    uint32_t device;
    uint64_t requested;
    uint64_t allocated, reserved; /* as the allocator reports them; 0 if it does not */
    ms_stack stack;               /* that requested it */
} ms_oom;
/* An allocation by `thread` (may be NULL) failed. Record it in the captures, and write the out-of-memory report to
 * `report`: about a dozen lines, cut off after room - 1 bytes, with a '\0' at the end unless room is 0. Returns the
 * length of what was written. Never allocates. */
size_t ms_ledger_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom, char *report, size_t room);

/* Write a size as people read it, such as "7.01 MiB", right-aligned to `width` where that is not 0. Returns what
 * snprintf returns. */
int ms_size_text(int64_t bytes, int width, char *text, size_t room);

/* NULL if the ledger's sums are right, else the invariant that does not hold. It reads every block: for tests. */
const char *ms_ledger_check(ms_ledger *ledger);

#ifdef __cplusplus
}
#endif
#endif
