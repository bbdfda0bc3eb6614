/* modscope_replay.h - what a program would have needed: a capture's events, edited, and fed to the allocator's model.
 *
 *     capture --ms_replay_stream_load--> ms_replay_stream   every event, block and call in memory
 *                                              |  ms_replay_streams_fold: of equal steps only a few
 *                                              |
 *                                     ms_replay_edit_open
 *                                              v
 *                                        ms_replay_edit     what is to be different: sizes, devices, checkpointed calls
 *                                              |
 *                                        ms_replay_run
 *                                              v
 *                                       ms_replay_result    peaks of reserved and allocated bytes, and where they were
 *
 * Edits      They compose: each changes the blocks or adds actions between events, and a recomputation uses the blocks
 *            as the other edits left them.
 * Errors     Functions return MS_OK or a negative MS_E* code. An output argument has a value after MS_OK only. After
 *            MS_EINVAL the edit is unchanged. After MS_ENOMEM an edit may be half done: close it.
 * Memory     malloc and free. A stream takes about 64 bytes for each event of the capture, without those of steps that
 *            are left out; an edit takes 16 for each block, and a run 24 for each block besides what the model of the
 *            allocator needs. What is opened or loaded belongs to the caller, who closes or frees it; the arrays in it
 *            belong to it.
 * Threads    A stream never changes after it was loaded and folded: any number of threads may use it at once. An edit
 *            may be used by one thread at a time; several runs at once may use an edit that nobody changes. */
#ifndef MODSCOPE_REPLAY_H
#define MODSCOPE_REPLAY_H

#include "modscope_allocator.h"
#include "modscope_capture.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MS_REPLAY_NONE UINT32_MAX

/* ---- a stream: load.c, calls.c ---- */
typedef enum ms_replay_kind {
    MS_REPLAY_ADD,
    MS_REPLAY_DROP,
    MS_REPLAY_POSITION,
    MS_REPLAY_STEP,
    MS_REPLAY_RESERVED,   /* what the device's allocator had reserved from then on, as it was recorded */
    MS_REPLAY_EMPTY_CACHE /* reserved became less: the program, or an allocator without room
                             (ms_replay_stream.lacked_room), gave free segments back */
} ms_replay_kind;

typedef struct ms_replay_event {
    uint64_t number; /* in the capture */
    uint64_t time;   /* microseconds */
    uint64_t value;  /* add, drop: the index of the block. position: path. step: its number. reserved: bytes */
    uint32_t device; /* reserved, empty cache */
    uint16_t thread; /* an index */
    uint8_t kind;
    uint8_t phase; /* position */
} ms_replay_event;

typedef struct ms_replay_block {
    uint64_t bytes;
    uint64_t requested; /* what the program requested: at most `bytes` */
    uint64_t stream;    /* on which it was requested */
    uint64_t segment;   /* the address of a segment that was taken for it; 0: none was, or it is not known */
    uint32_t add, drop; /* indices of events. MS_REPLAY_NONE: it exists from the beginning, or to the end */
    uint32_t last_use;  /* an index of ms_replay_stream.uses, or MS_REPLAY_NONE */
    uint32_t call;      /* the innermost call in which it was added, or MS_REPLAY_NONE */
    ms_path path;       /* its owner */
    uint8_t device, category;
    uint8_t kind;       /* an ms_kind, since it was added */
    uint8_t phase;      /* in which it was added */
    uint8_t drop_phase; /* in which it was dropped; MS_IDLE if it was not */
    bool outside;       /* it did not come from torch's allocators */
    bool is_changed;    /* an operator in a forward changed it in place, as far as is known */
} ms_replay_block;

/* What a forward does with a block that no object holds: a call takes it or returns it, or autograd saves it. */
typedef enum ms_replay_use_kind { MS_REPLAY_INPUT, MS_REPLAY_OUTPUT, MS_REPLAY_SAVE } ms_replay_use_kind;

typedef struct ms_replay_use {
    uint32_t block;
    uint32_t call;    /* the call; of a save: the innermost one that ran, or MS_REPLAY_NONE */
    uint32_t event;   /* it was before this event */
    uint32_t earlier; /* the use of the same block before it, or MS_REPLAY_NONE */
    uint8_t kind;
} ms_replay_use;

/* One forward of a module. Its events lie in [begin, end), and its blocks in [first_block, last_block), together
 * with those of other threads. */
typedef struct ms_replay_call {
    ms_path path;
    uint32_t parent;     /* the call around it, or MS_REPLAY_NONE */
    uint32_t begin, end; /* indices of events; end is MS_REPLAY_NONE if the capture ended first */
    uint32_t backward;   /* the event that begins its backward, or MS_REPLAY_NONE: it left nothing for backward */
    uint32_t last_save;  /* the event before which autograd saved the last block in it, or MS_REPLAY_NONE */
    uint32_t first_block, last_block;
    uint32_t first_input, input_count;      /* uses that are its inputs */
    uint32_t first_operator, last_operator; /* its operators, together with those of other threads */
    uint16_t thread;
    bool saves; /* autograd saved something in it, outside of the calls in it */
    uint64_t step;
    uint64_t nanoseconds;           /* that the GPU needed for it; 0: not known */
    uint64_t microseconds;          /* that the program needed for it */
    uint64_t recompute_nanoseconds; /* of the part that a checkpoint runs again: the GPU's, or else the program's */
    uint32_t stands_for; /* so many calls, by whose means the times are: see ms_replay_streams_fold. 1: itself */
} ms_replay_call;

/* An operator that ran in a forward, in the events [begin, end). Those that only return views are left out. */
typedef struct ms_replay_operator {
    uint32_t call; /* the innermost one */
    uint32_t begin, end;
    uint32_t name; /* an index of ms_replay_stream.operator_names */
    uint64_t nanoseconds;
} ms_replay_operator;

typedef struct ms_replay_step {
    uint64_t number, time; /* when it began, in microseconds */
    uint64_t first;        /* the capture's event that begins it */
    uint32_t event;        /* that begins it, or of a step that is left out, the one that stands for it */
    bool is_left_out;
} ms_replay_step;

/* A step that stands for equal ones after it, which are left out. */
typedef struct ms_replay_fold {
    uint32_t step;                                /* an index of ms_replay_stream.steps */
    uint32_t left_out;                            /* so many steps after it */
    uint32_t begin, end, first_block, last_block; /* its events and blocks: [begin, end) */
    uint32_t run_begin, run_block;                /* where the equal steps before it begin */
} ms_replay_fold;

typedef struct ms_replay_stream {
    ms_replay_event *events;
    ms_replay_block *blocks;          /* in the order of their adds; those from the beginning come first */
    ms_replay_call *calls;            /* in the order of their begins */
    ms_replay_use *uses;              /* in their order */
    ms_replay_operator *operators;    /* in their order. None where the capture does not have them */
    ms_operator_name *operator_names; /* with what an operator does beside returning tensors */
    ms_path *parents;                 /* by path */
    uint32_t *parameters;             /* blocks of parameters, ordered by owner and requested bytes */
    ms_replay_step *steps;            /* in their order, those that are left out too */
    ms_replay_fold *folds;            /* in their order */
    uint32_t event_count, block_count, call_count, use_count, parameter_count, path_count, device_count, thread_count;
    uint32_t step_count, fold_count, operator_count, operator_name_count;
    uint64_t reserved_first[MS_MAX_DEVICES]; /* what was reserved at the beginning */
    bool is_lower_bound;                     /* events are lost or damaged */
    bool
        lacked_room; /* reserved became less where the GPU had no room: with more of it, that would not have happened */
    bool has_inputs; /* what calls take and return is known */
    bool has_times;  /* how long the GPU needed for calls is known */
} ms_replay_stream;

/* Read the whole capture. MS_EINVAL: it has more events than 2^32 - 2. MS_ENOMEM, MS_EIO. */
int ms_replay_stream_load(ms_reader *reader, ms_replay_stream **stream);
/* Leave out steps that are equal: they have the same events, requests and calls, apart from times. Of a run of them the
 * first three and the last two are kept, and the third stands for those between. A replay repeats it as often as it
 * stands for a step; once the state of the allocator is one that it had before, what follows is known, and is not
 * replayed. So a replay with an edit that does the same to equal steps gives the figures of the whole capture. Of a
 * step that is left out, the events in figures are those of the step that stands for it, counted from its own
 * beginning.
 *
 * Several streams are folded at the same steps, where they have equally many and each stream's are equal: streams of
 * one program with two batches stay comparable. This is done once, before any edit. MS_EINVAL: the counts of steps
 * differ. After MS_ENOMEM all streams are as they were. */
int ms_replay_streams_fold(ms_replay_stream *const *streams, uint32_t count);
/* NULL is allowed. No edit may use it any more. */
void ms_replay_stream_free(ms_replay_stream *stream);
/* Whether `path` is `root` or below it. Every path is below MS_GLOBAL. */
bool ms_replay_path_is_below(const ms_replay_stream *stream, ms_path path, ms_path root);
/* Whether the call keeps the block for its backward: autograd frees it there, and nothing outside the call holds it. */
bool ms_replay_call_keeps(const ms_replay_stream *stream, const ms_replay_call *call, const ms_replay_block *block);

typedef struct ms_replay_call_bytes {
    uint64_t kept;   /* of blocks that it keeps for its backward; checkpointing frees them at its end */
    uint64_t output; /* of blocks that outlive it otherwise */
} ms_replay_call_bytes;
ms_replay_call_bytes ms_replay_call_measure(const ms_replay_stream *stream, uint32_t call, uint32_t device);
/* The event before which a recomputation of the call stops: when autograd has saved again the last of what the call
 * keeps. MS_REPLAY_NONE: the call keeps nothing, or has not ended. */
uint32_t ms_replay_call_recomputed_to(const ms_replay_stream *stream, uint32_t call);

/* ---- operators of calls: operators.c ---- */
typedef struct ms_replay_call_operator {
    uint32_t index;      /* of ms_replay_stream.operators */
    uint32_t number, of; /* which of the operator's calls in this call it is, from 1 on, and how many those are */
    uint64_t bytes;      /* of its results: blocks that it leaves */
    uint64_t saved;      /* of those, that the call keeps for backward */
    bool is_changed;     /* one of its results is changed in place later, so that it cannot be kept */
    bool is_recomputed;  /* a recomputation of the call runs it again: it does not stop before */
} ms_replay_call_operator;

/* The operators of the call and of the calls in it, in their order, for the caller to free. MS_ENOMEM. */
int ms_replay_call_operators(const ms_replay_stream *stream, uint32_t call, uint32_t device,
                             ms_replay_call_operator **list, uint32_t *count);

/* ---- edits: edit.c ---- */
typedef struct ms_replay_selection { /* blocks that satisfy all of it */
    uint32_t categories;             /* bit i: category i; 0: any */
    uint32_t phases;                 /* bit i: added in phase i; 0: any */
    uint32_t device;                 /* MS_REPLAY_NONE: any */
    ms_path root;                    /* the owner is this path or below it; MS_GLOBAL: any */
    uint64_t min_bytes;              /* at least so many were requested */
    uint32_t kinds;                  /* bit i: kind i; 0: any */
} ms_replay_selection;

/* Whether the block satisfies the selection, without edits. */
bool ms_replay_block_is_selected(const ms_replay_stream *stream, uint32_t block, const ms_replay_selection *selection);

typedef struct ms_replay_edit ms_replay_edit;

/* NULL: out of memory. The stream must outlive the edit. */
ms_replay_edit *ms_replay_edit_open(const ms_replay_stream *stream);
/* NULL is allowed. */
void ms_replay_edit_close(ms_replay_edit *edit);
/* Make the selected blocks numerator / denominator as large, rounded up: a larger batch, or one shard of several.
 * MS_EINVAL: the denominator is 0. A block that becomes larger than 2^62 bytes has 2^62. Returns how many were
 * selected in *count, which may be NULL. */
int ms_replay_edit_scale(ms_replay_edit *edit, const ms_replay_selection *selection, uint64_t numerator,
                         uint64_t denominator, uint64_t *count);
/* The selected blocks are on another device. */
int ms_replay_edit_move(ms_replay_edit *edit, const ms_replay_selection *selection, uint32_t device, uint64_t *count);
/* The selected blocks are never allocated. */
int ms_replay_edit_remove(ms_replay_edit *edit, const ms_replay_selection *selection, uint64_t *count);
/* Set the size of one block; 0: it is never allocated. */
int ms_replay_edit_resize(ms_replay_edit *edit, uint32_t block, uint64_t bytes);
/* Add a block on a stream of the device before event `begin`, which is freed before event `end`; MS_REPLAY_NONE: never.
 */
int ms_replay_edit_insert(ms_replay_edit *edit, uint32_t begin, uint32_t end, uint64_t bytes, uint32_t device,
                          uint64_t stream);
/* Checkpoint a call: what it keeps for backward is freed at its end, and its forward runs again before its first
 * backward node. A call that keeps nothing stays as it is. MS_EINVAL: there is no such call, or it lies in a call that
 * is checkpointed or offloaded already, or around one. */
int ms_replay_edit_checkpoint(ms_replay_edit *edit, uint32_t call);
/* The same, but results of some operators stay until the recomputation, which does not run these operators again; what
 * backward needs of them is freed as without a checkpoint. `operators`: indices of ms_replay_stream.operators.
 * MS_EINVAL also where one of them does not lie in the call. */
int ms_replay_edit_checkpoint_keeping(ms_replay_edit *edit, uint32_t call, const uint32_t *operators, uint32_t count);
/* What a call keeps for backward is freed at its end and allocated again before its first backward node; between the
 * two it is on device `to` (torch's save_on_cpu). MS_EINVAL as for checkpoint. */
int ms_replay_edit_offload(ms_replay_edit *edit, uint32_t call, uint32_t to);

/* ---- edits of lifetimes: lifetimes.c ---- */

/* The block is freed before event `end`, earlier or later than it was; MS_REPLAY_NONE: never. MS_EINVAL: there is no
 * such block, or it is added after that. */
int ms_replay_edit_end(ms_replay_edit *edit, uint32_t block, uint32_t end);
/* Replay only the events before this one. */
int ms_replay_edit_stop(ms_replay_edit *edit, uint32_t event);
/* Stop a replay as soon as more is reserved: where the peak of its result is above `bytes`, it is a lower bound. */
void ms_replay_edit_stop_above(ms_replay_edit *edit, uint64_t bytes);
/* zero_grad(set_to_none=True): a gradient that lives on into the next step is freed when that begins. In the next
 * backward the gradient that is computed takes its place, instead of being added to it and freed. *count, which may be
 * NULL, gets the number of such gradients. */
int ms_replay_edit_zero_grad(ms_replay_edit *edit, uint64_t *count);
/* torch's save_on_cpu around the outermost calls: what they keep for backward is freed in forward where autograd does
 * not need it, and is allocated again when the nodes of the module that frees it begin. Between the two it is on
 * device `to`. *bytes, which may be NULL, gets how many bytes are copied there. */
int ms_replay_edit_save_on_cpu(ms_replay_edit *edit, uint32_t from, uint32_t to, uint64_t *bytes);

/* ---- edits of how parameters are divided among ranks, as FSDP2 does: sharding.c, casts.c, resharding.c ---- */

/* The modules that FSDP2 shards, each on its own. Both arrays are by path. */
typedef struct ms_replay_units {
    uint32_t count;
    const uint32_t *around; /* the unit that the module is or lies in, or MS_REPLAY_NONE */
    const uint32_t *called; /* the unit that the module is, or MS_REPLAY_NONE */
} ms_replay_units;

typedef struct ms_replay_sharding {
    ms_replay_units units; /* none of which lies in another; the other modules are one more */
    uint32_t device, ranks;
    uint32_t end;      /* an event: steps that begin there or later are not edited, as they are not whole */
    bool is_mixed;     /* a MixedPrecisionPolicy gathers and reduces in half precision, instead of autocast's casts */
    bool keeps_params; /* reshard_after_forward=False */
} ms_replay_sharding;

/* A job of one process becomes one of so many ranks: parameters, gradients and state are divided, and the buffers of
 * gathers and reductions are inserted. *count, which may be NULL, gets how many parameters are sharded. 0: nothing is
 * edited, because there are none, or because the precision is to be mixed and no casts of autocast are found.
 * MS_EINVAL: there are no ranks. */
int ms_replay_edit_shard(ms_replay_edit *edit, const ms_replay_sharding *how, uint64_t *count);

/* The other edits are of a rank whose blocks have kinds. Each gets in *count, which may be NULL, how many parameters or
 * shards it edits. */

/* So many ranks hold one copy of the model, instead of `before`. `in_copies`: there are several copies, among which
 * gradients are reduced once more. MS_EINVAL: one of the numbers is 0. */
int ms_replay_edit_shard_over(ms_replay_edit *edit, uint32_t device, uint32_t before, uint32_t after, bool in_copies,
                              uint64_t *count);
/* What is gathered in forward stays until the end of the module's backward, and is not gathered again. */
int ms_replay_edit_keep_gathered(ms_replay_edit *edit, uint32_t device, uint64_t *count);
/* What a unit keeps from its forward to its backward is freed after forward and gathered again in backward, that of the
 * next unit while one runs. Units may lie in each other: a parameter belongs to the innermost one. */
int ms_replay_edit_reshard(ms_replay_edit *edit, const ms_replay_units *units, uint32_t device, uint64_t *count);

/* ---- the line through two captures of one program: match.c ---- */
typedef struct ms_replay_match {
    uint64_t *bytes;                  /* by block of the stream: requested in the other one, or MS_REPLAY_UNMATCHED */
    uint64_t *own_bytes;              /* by block of the stream: requested in it, of those that are matched */
    uint64_t matched, here, there;    /* blocks that both have; that only this stream or only the other one has */
    uint64_t here_bytes, there_bytes; /* of those that only one of them has, on the device */
    uint32_t here_first, there_first; /* the first one of them that was added, or MS_REPLAY_NONE */
    double ratio;           /* how many times as large the blocks are that grow with the batch; 1: none does */
    uint64_t partial_limit; /* as large as the partial results of a reduction become; 0: it is not known */
} ms_replay_match;

#define MS_REPLAY_UNMATCHED UINT64_MAX

/* Match the blocks of two streams by step, phase, module and their order there. `paths`, by path of the stream, has
 * the same module's path in the other one, or MS_REPLAY_NONE. MS_ENOMEM. */
int ms_replay_match_open(const ms_replay_stream *stream, const ms_replay_stream *other, const uint32_t *paths,
                         uint32_t device, uint64_t partial_limit, ms_replay_match *match);
void ms_replay_match_close(ms_replay_match *match);
/* Every matched block's size is on the line through its size in the other stream, at 0, and its size in this one, at
 * 1, and replaces the size that earlier edits gave it. Blocks that this stream alone has stay as they are. */
int ms_replay_edit_batch(ms_replay_edit *edit, const ms_replay_match *match, double position);

/* ---- replay: feed.c ---- */
typedef struct ms_replay_position {
    uint64_t number; /* of the capture's event, or of the event before which an edit acts */
    uint64_t time, step;
    ms_phase phase;
    ms_path path; /* the innermost module that runs */
} ms_replay_position;

typedef struct ms_replay_curve {
    uint64_t time; /* of its first event */
    uint64_t number;
    uint64_t reserved, allocated; /* the highest of its events, and of what edits do before them */
} ms_replay_curve;

typedef struct ms_replay_curve_range {
    ms_replay_curve *items; /* room for `count`; may be NULL if that is 0 */
    uint32_t count;         /* each item stands for an equal part of the range's events */
    bool is_folded;       /* without the steps that are left out: those belong to the items of the one they stand for */
    uint64_t first, last; /* the capture's events [first, last) */
    uint32_t filled;      /* gets how many items the replay reached */
} ms_replay_curve_range;

typedef struct ms_replay_result {
    uint64_t reserved_peak, allocated_peak;
    ms_replay_position reserved_at, allocated_at; /* when the peaks were first reached */
    uint64_t requests;                            /* allocations */
    uint64_t replayed;      /* events that were replayed: fewer than the capture has, where what they do was known */
    uint64_t retries;       /* requests for which everything free was given back first */
    uint64_t disagreements; /* events of blocks after which the capture recorded another reserved */
    bool failed;            /* a request failed; the replay ends there */
    uint64_t failed_bytes;
    ms_replay_position failed_at;
} ms_replay_result;

/* Replay the events of one device. `edit` may be NULL. `settings` are those of its allocator; NULL: it has no caching
 * allocator, and what is reserved is what is allocated. `curve` gets the curve of a range; NULL: none is wanted. What
 * an edit inserts before an event belongs to the item of that event. MS_ENOMEM. */
int ms_replay_run(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                  const ms_allocator_settings *settings, ms_replay_curve_range *curve, ms_replay_result *result);

/* ---- where the allocator's model puts blocks: layout.c ---- */
typedef struct ms_replay_segment {
    uint64_t number; /* of the event at which it changed; 0: before all of them */
    uint64_t address, bytes;
    ms_segment_change change;
} ms_replay_segment;

typedef struct ms_replay_layout {
    uint64_t *addresses, *bytes; /* by block of the stream; of the allocator's block. 0: none of the device's memory */
    ms_replay_segment *segments; /* in the order of their events; pages, of expandable segments */
    size_t segment_count, segment_room;
} ms_replay_layout;

/* Replay the events of one device without edits. MS_EINVAL: the stream is folded, no settings are given, or there is no
 * such device. MS_ENOMEM. After an error *layout is empty. Free it with ms_replay_layout_close. */
int ms_replay_layout_open(const ms_replay_stream *stream, uint32_t device, const ms_allocator_settings *settings,
                          ms_replay_layout *layout, ms_replay_result *result);
void ms_replay_layout_close(ms_replay_layout *layout);

/* ---- what the events of one device ask of its allocator: a log for modscope_epoch.h ---- */
enum { MS_REPLAY_LOG_PHASE_BITS = 3, MS_REPLAY_LOG_PATHS = 1 << 24 };

typedef struct ms_replay_log_source {
    const uint64_t
        *adds; /* before which of the stream's requests marks are wanted, counted from 0, in ascending order */
    const uint32_t *operators; /* by request of the stream; may be NULL */
    uint32_t mark_count;
    uint64_t operator_count;
} ms_replay_log_source;

typedef struct ms_replay_log {
    uint64_t *entries; /* of ms_log_kind. An operator is module << MS_REPLAY_LOG_PHASE_BITS | phase, in its high 32
                          bits, and the stream's operator, in its low ones; a request that an edit adds has 0 there */
    uint64_t *marks;   /* the count of entries before each of `adds`, and what the edit does before it */
    size_t count;
} ms_replay_log;

/* `edit` may be NULL. MS_EINVAL: the stream is folded, or has fewer requests. MS_ENOMEM. */
int ms_replay_log_open(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                       const ms_replay_log_source *source, ms_replay_log *log);
void ms_replay_log_close(ms_replay_log *log);

/* What is reserved with checkpoints depends on when Python lets go of tensors that autograd does not keep, which
 * captures do not note: a variable lives longer than a part of an expression. Replay an edit so many times more, each
 * time with other ends of such blocks, equal ones in equal calls; in several threads, where that is faster. *least and
 * *most, which have the result of the edit itself, get the lowest and highest reserved peak of all, or of those until
 * one is above where the edit stops replays. MS_ENOMEM. */
int ms_replay_run_variants(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                           const ms_allocator_settings *settings, uint32_t variants, uint64_t *least, uint64_t *most);

/* ---- which modules to checkpoint so that no moment needs more than a target, chosen greedily: cover.c ----
 *
 * A row is a moment at which memory is needed; a candidate is a module that may be checkpointed. The savings of
 * candidates are taken to add up. Of candidates that lie in each other, one at most is chosen. */
typedef struct ms_cover_problem {
    uint32_t candidates, rows;
    const double *costs;    /* by candidate */
    const int64_t *needed;  /* by row: bytes without a choice */
    const int64_t *saved;   /* by candidate, then by row: bytes, negative where a recomputation needs more */
    const uint8_t *lies_in; /* by candidate, then by candidate: whether the first lies in the second */
} ms_cover_problem;

/* Add the candidate that saves most for its cost in rows above the target, until no row is above it. `chosen` has room
 * for a flag of each candidate. *is_covered: whether all rows are at the target or below it; if they are not, nothing
 * saves anything in the rows that are left, and `chosen` has what was chosen until then. MS_ENOMEM. */
int ms_cover_choose(const ms_cover_problem *problem, int64_t target, bool *chosen, bool *is_covered);

#ifdef __cplusplus
}
#endif
#endif
