/* torch_snapshot.h - what the files that write torch's memory snapshot share: pickles, made-up addresses, its
 * strings, and the stack frames in which a block's owner is shown. */
#ifndef MS_EXPORT_TORCH_SNAPSHOT_H
#define MS_EXPORT_TORCH_SNAPSHOT_H

#include "base/array.h"
#include "base/map.h"
#include "export/output.h"

/* ---- pickle.c: Python's pickle format, protocol 4, with the few opcodes that torch's own viewer supports ---- */
enum {
    MS_EXPORT_PROTO = 0x80,
    MS_EXPORT_STOP = '.',
    MS_EXPORT_MARK = '(',
    MS_EXPORT_DICT = '}',    /* an empty one */
    MS_EXPORT_LIST = ']',    /* an empty one */
    MS_EXPORT_ITEMS = 'u',   /* add what was put since the mark to the dict before it... */
    MS_EXPORT_APPENDS = 'e', /* ...or the list */
    MS_EXPORT_PAIR = 0x86,
    MS_EXPORT_FALSE = 0x89,
};

typedef struct ms__export_pickle {
    ms__export_output output;
    uint32_t memo_count;
} ms__export_pickle;

static inline void ms__export_pickle_op(ms__export_pickle *pickle, uint8_t op)
{
    ms__export_put_byte(&pickle->output, op);
}

void ms__export_pickle_number(ms__export_pickle *pickle, uint64_t number);
void ms__export_pickle_text(ms__export_pickle *pickle, ms_export_text text);
/* Memoize what was put last; the number returned puts it again by ms__export_pickle_get. */
uint32_t ms__export_pickle_memoize(ms__export_pickle *pickle);
void ms__export_pickle_get(ms__export_pickle *pickle, uint32_t memo_index);

/* ---- segments.c: made-up addresses. A capture has no addresses, but torch's snapshot needs some.
 *
 * A segment is a range of addresses for one block of exactly its size; no two segments overlap. When the
 * block is gone the segment is idle, until a block of that size reuses it or the segment is removed. The
 * addresses of a removed segment are not used again.
 *
 *                     oldest                        newest
 *     idle segments:  [512 B] <-older/newer-> [4 KiB] <-> [512 B] <-> [4 KiB]        by age
 *                     by_size: 512 -> a stack of two (below/above), 4096 -> another  by size */
typedef struct ms__export_segment {
    uint64_t address, size;
    uint32_t older, newer; /* idle: its neighbours in the list of idle segments, in the order they became idle */
    uint32_t below, above; /* idle: its neighbours in the stack of idle segments of its size */
    bool idle;
} ms__export_segment;

/* total = sum of size over all segments, idle or not */
typedef struct ms__export_segments {
    ms__export_segment *all;
    size_t count, room;
    uint32_t removed;        /* an entry of `all` whose segment was removed; its `older` is the next one */
    uint32_t oldest, newest; /* idle segment */
    struct ms__map by_size;  /* size -> the top of the stack of idle segments */
    uint64_t next;           /* the next unused address */
    uint64_t total;
} ms__export_segments;

void ms__export_segments_open(ms__export_segments *segments);
void ms__export_segments_close(ms__export_segments *segments);
/* Take an idle segment of this size. MS_EXPORT_NONE: there is none. */
uint32_t ms__export_segments_reuse(ms__export_segments *segments, uint64_t size);
/* Add a segment that is in use. MS_EINVAL: no addresses are left. MS_ENOMEM. */
int ms__export_segments_add(ms__export_segments *segments, uint64_t size, uint32_t *index);
/* The segment becomes idle. False: out of memory. */
bool ms__export_segments_release(ms__export_segments *segments, uint32_t index);
/* Remove an idle segment. */
void ms__export_segments_remove(ms__export_segments *segments, uint32_t index);

/* ---- torch_frames.c: strings, and lists of frames ---- */
/* clang-format off */
#define STRINGS(X) \
    X(action) X(addr) X(size) X(stream) X(time_us) X(frames) X(category) X(kind) X(device_free) \
    X(alloc) X(free_requested) X(free_completed) X(segment_alloc) X(segment_free) X(oom) X(snapshot) X(unknown) \
    X(filename) X(operator) X(line) X(name) X(module) X(phase) X(device) \
    X(address) X(total_size) X(allocated_size) X(active_size) X(requested_size) X(segment_type) X(segment_pool_id) \
    X(is_expandable) X(large) X(blocks) X(state) X(active_allocated) X(inactive) \
    X(segments) X(device_traces) X(allocator_settings) X(modscope) X(note) X(program)
/* clang-format on */
enum ms__export_torch_string {
#define X(string) S_##string,
    STRINGS(X)
#undef X
        S_COUNT
};

enum { MS_EXPORT_NO_CATEGORY = MS_CATEGORY_COUNT };

/* A pickle, and the memo numbers of what was put into it: strings and frames are written once, and then referred to. */
typedef struct ms__export_torch_pickle {
    ms__export_pickle pickle;
    const ms_export_job *job;
    /* Memo number + 1; 0: it was not put yet. */
    uint32_t strings[S_COUNT], category_strings[MS_CATEGORY_COUNT], kinds[MS_KIND_COUNT];
    uint32_t categories[MS_CATEGORY_COUNT], phases[MS_PHASE_COUNT], devices[MS_MAX_DEVICES];
    uint32_t *modules; /* by path */
    uint32_t module_count;
    uint32_t *stacks, *operators; /* by stack */
    uint32_t stack_count;
    struct ms__map frames; /* lists of frames, by all that they depend on */
} ms__export_torch_pickle;

/* Returns false if memory runs out. Close it in any case. */
bool ms__export_torch_open(ms__export_torch_pickle *torch, const ms_export_job *job);
void ms__export_torch_close(ms__export_torch_pickle *torch);

void ms__export_torch_put_string(ms__export_torch_pickle *torch, enum ms__export_torch_string string);
/* Put a key and a number as its value. */
void ms__export_torch_put_field(ms__export_torch_pickle *torch, enum ms__export_torch_string string, uint64_t number);
void ms__export_torch_put_category(ms__export_torch_pickle *torch, uint8_t category);
/* Put the list of frames for such a block, innermost first as in torch: category, kind if it has one, the Python frames
 * that made it with its operator first, owner, the owner's parents, phase, device. MS_EXPORT_NO_CATEGORY: without
 * category. MS_ENOMEM. */
int ms__export_torch_put_frames(ms__export_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category,
                                uint8_t kind, uint8_t phase, ms_stack stack);

#endif
