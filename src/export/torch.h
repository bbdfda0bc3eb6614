/* torch.h - what the files that write torch's snapshot share: its words, and frames that tell who holds a block. */
#ifndef MS_EXPORT_TORCH_H
#define MS_EXPORT_TORCH_H

#include "export/index.h"
#include "export/pickle.h"

/* clang-format off */
#define WORDS(X) \
    X(action) X(addr) X(size) X(stream) X(time_us) X(frames) X(category) X(device_free) \
    X(alloc) X(free_requested) X(free_completed) X(segment_alloc) X(segment_free) X(oom) X(snapshot) X(unknown) \
    X(filename) X(line) X(name) X(module) X(phase) X(device) \
    X(address) X(total_size) X(allocated_size) X(active_size) X(requested_size) X(segment_type) X(segment_pool_id) \
    X(is_expandable) X(large) X(blocks) X(state) X(active_allocated) X(inactive) \
    X(segments) X(device_traces) X(allocator_settings) X(modscope) X(note) X(program)
/* clang-format on */
enum mse_torch_word {
#define X(word) W_##word,
    WORDS(X)
#undef X
        W_COUNT
};

enum { MSE_NO_CATEGORY = MS_CATEGORY_COUNT };

/* A pickle with all that was put into it once and can be put again. */
typedef struct mse_torch_pickle {
    mse_pickle pickle;
    const mse_job *job;
    /* One more than its number; 0: it was not put yet. */
    uint32_t words[W_COUNT], category_words[MS_CATEGORY_COUNT];
    uint32_t categories[MS_CATEGORY_COUNT], phases[MS_OPTIMIZER + 1], devices[MS_MAX_DEVICES];
    uint32_t *modules; /* by path */
    uint32_t module_count;
    mse_index frames; /* lists of them */
} mse_torch_pickle;

/* False when memory runs out; it must be closed in any case. */
bool mse_torch_open(mse_torch_pickle *torch, const mse_job *job);
void mse_torch_close(mse_torch_pickle *torch);

void mse_torch_put(mse_torch_pickle *torch, enum mse_torch_word word);
/* A key and its number. */
void mse_torch_field(mse_torch_pickle *torch, enum mse_torch_word word, uint64_t number);
void mse_torch_category(mse_torch_pickle *torch, uint8_t category);
/* The frames of blocks of a kind, innermost first as torch has them: the category, the module, those that called it,
 * the phase, the device. MS_ENOMEM. */
int mse_torch_frames(mse_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category, uint8_t phase);

#endif
