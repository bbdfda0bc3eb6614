/* torch_snapshot.h - what the files that write torch's memory snapshot share: its strings, and the stack frames in
 * which a block's owner is shown. */
#ifndef MS_EXPORT_TORCH_SNAPSHOT_H
#define MS_EXPORT_TORCH_SNAPSHOT_H

#include "base/map.h"
#include "export/pickle.h"

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

/* False: out of memory. Close it in any case. */
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
