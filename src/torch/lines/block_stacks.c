/* block_stacks.c - the stack that makes a block: the program's own Python frames, and in backward the node.
 *
 * Which frames are kept: a frame is of the program itself, of an installed library or Python's, of torch, or of
 * modscope (file_owners.c). The innermost frame of the lowest owner that occurs is kept, and the frames around it that
 * are of the same owner, up to mst_stack_depth. Inside a frame of the program, so are as many frames of libraries that
 * a module's call is around: the code of a model that is installed.
 *
 * A thread remembers the owners of code objects and the stacks of instructions that it has seen, by their addresses.
 * What is seen for the first time is copied and looked up by its contents (ms_stack_add). An address may be that of
 * another code object later: whenever a code object is freed, each thread forgets what it remembers of it
 * (freed_code.c). */
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/lines/lines.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Atomic uint32_t mst_stack_depth;
MST_THREAD_LOCAL const void *mst_running_node;

/* ---- what a thread remembers ---- */

/* Sets of two entries, the latest that was seen first: what two code objects or lines of a loop have in common by
 * chance is only where they are searched. The numbers of sets are powers of two. */
enum { WAYS = 2, CODES = 128, PLACES = 512, NODES = 512, LATEST = 24 };

/* Entries of 16 bytes, so that none is in two cache lines. */
struct seen {
    struct seen_code {
        const PyCodeObject *code; /* NULL: nothing is here */
        uint32_t first;           /* how far its first instruction at which a frame counts as begun is behind `code` */
        uint16_t owner;           /* enum mst_owner */
        bool calls_modules;       /* torch's Module._call_impl */
    } codes[CODES][WAYS];
    struct seen_place {
        const void *at; /* an instruction, or the name of an operator; NULL: nothing is here */
        ms_stack outer, stack;
    } places[PLACES][WAYS];
    struct seen_node {
        const void *table; /* the node's table of virtual functions; NULL: nothing is here */
        ms_stack outer, forward, stack;
    } nodes[NODES][WAYS];
    /* The instructions of the frames that were read last, innermost first, and the stack that they are. An operator
     * makes nodes and blocks, and a backward many blocks, in the same frames. */
    struct latest {
        const void *instructions[LATEST];
        uint32_t count; /* 0: nothing is here */
        ms_stack stack;
        bool is_whole; /* there is no frame around them; else the frames around them do not matter */
    } latest;
    uint64_t generation; /* of everything in it */
};

static pthread_key_t seen_key; /* its destructor frees what a thread remembered */
static MST_THREAD_LOCAL struct seen *seen_here;

static void forget_seen(void *seen)
{
    seen_here = NULL;
    free(seen);
}

static struct seen *open_seen(void)
{
    struct seen *seen = calloc(1, sizeof *seen);
    if (seen && pthread_setspecific(seen_key, seen) != 0) {
        free(seen);
        seen = NULL;
    }
    return seen_here = seen;
}

static void forget_code(struct seen *seen, const struct mst_freed_code *freed)
{
    for (int i = 0; i < CODES * WAYS; i++) {
        struct seen_code *code = &seen->codes[i / WAYS][i % WAYS];
        if ((uintptr_t)code->code == freed->begin)
            code->code = NULL;
    }
    for (int i = 0; i < PLACES * WAYS; i++) {
        struct seen_place *place = &seen->places[i / WAYS][i % WAYS];
        if ((uintptr_t)place->at - freed->begin < freed->end - freed->begin)
            place->at = NULL;
    }
}

/* Code objects were freed since: forget what is at their addresses. Nodes are not known by addresses of code. */
static __attribute__((noinline)) void forget_freed(struct seen *seen)
{
    struct mst_freed_code freed[MST_MOST_FREED];
    size_t count;
    uint64_t now;
    bool is_listed = mst_freed_code_since(seen->generation, &now, freed, &count);
    if (!is_listed)
        memset(seen, 0, sizeof *seen);
    for (size_t i = 0; is_listed && i < count; i++)
        forget_code(seen, &freed[i]);
    seen->latest.count = 0;
    seen->generation = now;
}

/* Returns NULL if memory runs out. */
static struct seen *find_seen(void)
{
    struct seen *seen = LIKELY(seen_here != NULL) ? seen_here : open_seen();
    uint64_t now = atomic_load_explicit(&mst_code_generation, memory_order_relaxed);
    if (seen && UNLIKELY(seen->generation != now))
        forget_freed(seen);
    return seen;
}

static __attribute__((noinline)) const struct seen_code *see_code(struct seen_code set[WAYS], const PyCodeObject *code)
{
    char file[MST_CODE_TEXT];
    ptrdiff_t first = (const char *)mst_code_first_instruction(code) - (const char *)code;
    enum mst_owner owner = mst_is_generated(code) ? MST_OF_PROGRAM : mst_owner_of_file(mst_code_file(code, file));
    bool calls_modules = owner == MST_OF_TORCH && mst_code_is_function(code, "Module._call_impl");
    set[1] = set[0];
    set[0] = (struct seen_code){code, (uint32_t)first, (uint16_t)owner, calls_modules};
    return set;
}

static inline const struct seen_code *find_code(struct seen *seen, const PyCodeObject *code)
{
    struct seen_code *set = seen->codes[((uintptr_t)code >> 4 ^ (uintptr_t)code >> 12) & (CODES - 1)];
    if (LIKELY(set[0].code == code))
        return set;
    return LIKELY(set[1].code == code) ? &set[1] : see_code(set, code);
}

static inline struct seen_place *find_places(struct seen *seen, const void *at, ms_stack outer)
{
    uint64_t hash = ((uintptr_t)at ^ (uint64_t)outer << 40) * UINT64_C(0x9E3779B97F4A7C15);
    return seen->places[hash >> 48 & (PLACES - 1)];
}

static inline bool is_place(const struct seen_place *place, const void *at, ms_stack outer)
{
    return place->at == at && place->outer == outer;
}

static ms_stack remember_place(struct seen_place set[WAYS], const void *at, ms_stack outer, ms_stack stack)
{
    set[1] = set[0];
    set[0] = (struct seen_place){at, outer, stack};
    return stack;
}

static __attribute__((noinline)) ms_stack see_frame(struct seen_place set[WAYS], const struct mst_frame *frame,
                                                    ms_stack outer, bool is_model)
{
    struct mst_code_texts texts;
    ms_frame added;
    if (!mst_generated_describe(frame->code, frame->instruction, &added))
        mst_code_describe(frame->code, frame->instruction, &texts, &added);
    added.outer = outer;
    added.is_model = is_model;
    return remember_place(set, frame->instruction, outer, ms_stack_add(mst.watch, &added));
}

/* A frame inside a frame of the program is always one of the program or of a model, so `outer` tells which it is. */
static inline ms_stack stack_of_frame(struct seen *seen, const struct mst_frame *frame, ms_stack outer, bool is_model)
{
    struct seen_place *set = find_places(seen, frame->instruction, outer);
    if (LIKELY(is_place(&set[0], frame->instruction, outer)))
        return set[0].stack;
    return LIKELY(is_place(&set[1], frame->instruction, outer)) ? set[1].stack : see_frame(set, frame, outer, is_model);
}

/* ---- operators of the dispatcher ---- */

/* The names of operators are never freed, so their addresses identify them. */
static inline ms_stack stack_of_operator(struct seen *seen, const char *name, ms_stack outer)
{
    struct seen_place *set = find_places(seen, name, outer);
    for (int way = 0; way < WAYS; way++)
        if (is_place(&set[way], name, outer))
            return set[way].stack;
    return remember_place(set, name, outer, ms_stack_add(mst.watch, &(ms_frame){.function = name, .outer = outer}));
}

/* ---- reading ---- */

struct frames {
    struct mst_frame of[MST_MOST_FRAMES]; /* innermost first */
    uint32_t count;
    enum mst_owner owner;                    /* of all of them; MST_OF_MODSCOPE while there is none */
    uint32_t in_call;                        /* while they are a library's: a module's call is around so many of them */
    struct mst_frame model[MST_MOST_FRAMES]; /* of libraries, inside those of the program and in a module's call */
    uint32_t model_count;
};

/* Whether the frames from `at` on are those that were read last: an instruction identifies its code, too. */
static inline bool is_latest(const struct latest *latest, const void *at)
{
    struct mst_frame frame;
    for (uint32_t i = 0; i < latest->count; at = frame.next) {
        if (!at)
            return false;
        frame = mst_frame_read(at);
        if (frame.is_shim)
            continue;
        if (frame.instruction != latest->instructions[i++])
            return false;
    }
    while (UNLIKELY(latest->is_whole) && at) {
        frame = mst_frame_read(at);
        if (!frame.is_shim)
            return false;
        at = frame.next;
    }
    return latest->count;
}

static inline bool has_begun(const struct mst_frame *frame, const struct seen_code *code)
{
    return (uintptr_t)frame->instruction >= (uintptr_t)frame->code + code->first;
}

/* The frames that were collected are inside one of a lower owner, which takes their place. */
static inline void begin_owner(struct frames *frames, enum mst_owner owner)
{
    if (owner == MST_OF_PROGRAM && frames->owner == MST_OF_LIBRARY) {
        memcpy(frames->model, frames->of, frames->in_call * sizeof frames->of[0]);
        frames->model_count = frames->in_call;
    }
    frames->owner = owner;
    frames->count = frames->in_call = 0;
}

static inline void clear_frames(struct frames *frames)
{
    frames->count = frames->in_call = frames->model_count = 0;
    frames->owner = MST_OF_MODSCOPE;
}

/* Inlined also into its second, rare caller, so that the first one stays as fast. */
static inline __attribute__((always_inline)) void collect_frames(struct seen *seen, const void *at,
                                                                 struct frames *frames, uint32_t depth)
{
    struct mst_frame frame;
    uint32_t read = 0;
    bool is_complete = false;
    for (; at && !is_complete; at = frame.next) {
        frame = mst_frame_read(at);
        if (frame.is_shim)
            continue;
        if (LIKELY(read < LATEST))
            seen->latest.instructions[read] = frame.instruction;
        read++;
        const struct seen_code *code = find_code(seen, frame.code);
        if (code->owner > frames->owner || code->owner == MST_OF_MODSCOPE || UNLIKELY(!has_begun(&frame, code))) {
            frames->in_call = code->calls_modules ? frames->count : frames->in_call;
            continue;
        }
        if (code->owner < frames->owner)
            begin_owner(frames, (enum mst_owner)code->owner);
        if (frames->count < depth)
            frames->of[frames->count++] = frame;
        is_complete = frames->owner == MST_OF_PROGRAM && frames->count == depth;
    }
    seen->latest.count = read <= LATEST ? read : 0;
    seen->latest.is_whole = !is_complete;
}

HOT static __attribute__((noinline)) ms_stack read_other_frames(struct seen *seen, const void *at)
{
    struct frames frames;
    clear_frames(&frames);
    collect_frames(seen, at, &frames, atomic_load_explicit(&mst_stack_depth, memory_order_relaxed));
    ms_stack stack = MS_STACK_NONE;
    while (frames.count)
        stack = stack_of_frame(seen, &frames.of[--frames.count], stack, false);
    while (UNLIKELY(frames.model_count))
        stack = stack_of_frame(seen, &frames.model[--frames.model_count], stack, true);
    return seen->latest.stack = stack;
}

static inline ms_stack read_frames_stack(struct seen *seen)
{
    const void *at = mst_frame_innermost();
    if (!at)
        return MS_STACK_NONE;
    return LIKELY(is_latest(&seen->latest, at)) ? seen->latest.stack : read_other_frames(seen, at);
}

/* ---- nodes ---- */

static ms_stack add_node(const char *name, ms_stack outer, ms_stack forward)
{
    return ms_stack_add(mst.watch, &(ms_frame){.function = name, .outer = outer, .forward = forward});
}

static uint32_t smaller_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many of the frames that are kept run inside the innermost node of a custom Function: those in its backward. */
static uint32_t count_frames_inside(struct seen *seen)
{
    const void *innermost = mst_frame_innermost();
    struct frames frames;
    struct mst_frame frame;
    uint32_t count = 0, model_count = 0;
    clear_frames(&frames);
    collect_frames(seen, innermost, &frames, atomic_load_explicit(&mst_stack_depth, memory_order_relaxed));
    for (const void *at = innermost; at; at = frame.next) {
        frame = mst_frame_read(at);
        if (frame.is_shim)
            continue;
        const struct seen_code *code = find_code(seen, frame.code);
        if (code->owner == MST_OF_TORCH && mst_code_is_function(frame.code, "BackwardCFunction.apply"))
            return smaller_of(count, frames.count) + smaller_of(model_count, frames.model_count);
        count += code->owner == frames.owner && has_begun(&frame, code);
        model_count += code->owner == MST_OF_LIBRARY && has_begun(&frame, code);
    }
    return 0;
}

/* The stack of a custom Function's node: the frames of its backward are inside it, and the others around it. */
static ms_stack see_custom_node(struct seen *seen, const char *name, ms_stack outer, ms_stack forward)
{
    ms_frame inside[2 * MST_MOST_FRAMES];
    uint32_t count = 0, most = count_frames_inside(seen);
    while (count < most && ms_stack_frame(mst.watch, outer, &inside[count]))
        outer = inside[count++].outer;
    ms_stack stack = add_node(name, outer, forward);
    while (count) {
        inside[--count].outer = stack;
        stack = ms_stack_add(mst.watch, &inside[count]);
    }
    return stack;
}

static ms_stack see_node(const void *table, ms_stack outer, ms_stack forward)
{
    char name[MST_CLASS_NAME];
    return mst_node_class(table, name) ? add_node(name, outer, forward) : outer;
}

/* `custom`: the class of a custom Function, or NULL. */
static __attribute__((noinline)) ms_stack remember_node(struct seen *seen, struct seen_node set[WAYS],
                                                        struct seen_node node, const char *custom)
{
    node.stack = custom ? see_custom_node(seen, custom, node.outer, node.forward)
                        : see_node(node.table, node.outer, node.forward);
    set[1] = set[0];
    set[0] = node;
    return node.stack;
}

static inline bool is_same_node(const struct seen_node *a, const struct seen_node *b)
{
    return a->table == b->table && a->outer == b->outer && a->forward == b->forward;
}

static inline ms_stack find_node(struct seen *seen, const struct seen_node *key, const char *custom)
{
    uint64_t outer = key->outer;
    uint64_t hash = ((uintptr_t)key->table ^ (outer << 20 ^ key->forward) << 24) * UINT64_C(0x9E3779B97F4A7C15);
    struct seen_node *set = seen->nodes[hash >> 48 & (NODES - 1)];
    if (LIKELY(is_same_node(&set[0], key)))
        return set[0].stack;
    return LIKELY(is_same_node(&set[1], key)) ? set[1].stack : remember_node(seen, set, *key, custom);
}

/* A custom Function's class may be freed and another one be at its address, so it is known by its name. */
static __attribute__((noinline)) ms_stack stack_of_custom_node(struct seen *seen, const void *node,
                                                               struct seen_node *key)
{
    const char *name = mst_custom_class(node);
    if (!name)
        return key->outer;
    key->table = (const void *)mst_class_key(name);
    return find_node(seen, key, name);
}

static inline ms_stack stack_of_node(struct seen *seen, const void *node, ms_stack outer)
{
    struct seen_node key = {.table = (const void *)(uintptr_t)mst_node_word(node, 0), .outer = outer};
    key.forward = ms_node_stack(mst_this_thread, mst_node_word(node, mst.node_layout.thread),
                                mst_node_word(node, mst.node_layout.number));
    return UNLIKELY((uintptr_t)key.table == mst.node_layout.custom) ? stack_of_custom_node(seen, node, &key)
                                                                    : find_node(seen, &key, NULL);
}

/* ---- the whole stack ---- */

HOT ms_stack mst_frames_stack(void)
{
    struct seen *seen = find_seen();
    return LIKELY(seen != NULL) ? read_frames_stack(seen) : (ms_stack)MS_STACK_LOST;
}

static bool is_in_node(void)
{
    return mst_running_node && mst_this_thread && ms_thread_phase(mst_this_thread) == MS_BACKWARD;
}

HOT ms_stack mst_stack_read(void)
{
    struct seen *seen = find_seen();
    if (UNLIKELY(!seen))
        return MS_STACK_LOST;
    ms_stack stack = read_frames_stack(seen);
    if (is_in_node())
        stack = stack_of_node(seen, mst_running_node, stack);
    return UNLIKELY(mst_running_operator != NULL) ? stack_of_operator(seen, mst_running_operator, stack) : stack;
}

int mst_stacks_init(void)
{
    if (pthread_key_create(&seen_key, forget_seen) == 0)
        return 0;
    PyErr_SetString(PyExc_ImportError, "modscope: this system does not support thread-specific data");
    return -1;
}

/* ---- start and stop ---- */

bool mst_stacks_start(uint32_t depth)
{
    if (!mst_freed_code_intercept())
        return false;
    atomic_store(&mst_stack_depth, depth);
    mst_created_nodes_intercept();
    return true;
}

void mst_stacks_stop(void)
{
    atomic_store(&mst_stack_depth, 0);
    mst_freed_code_restore();
    mst_created_nodes_restore();
}
