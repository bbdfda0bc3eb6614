/* frames.c - words and frames of torch's snapshot, each put once. */
#include "export/torch.h"

#include <stdlib.h>

enum { DEEPEST = 128 }; /* frames of modules */

bool mse_torch_open(mse_torch_pickle *torch, const mse_job *job)
{
    *torch = (mse_torch_pickle){.job = job, .module_count = ms_reader_paths(job->reader)};
    torch->modules = calloc((size_t)torch->module_count + 1, sizeof *torch->modules);
    return mse_sink_open(&torch->pickle.sink, job) && torch->modules;
}

void mse_torch_close(mse_torch_pickle *torch)
{
    mse_sink_close(&torch->pickle.sink);
    mse_index_close(&torch->frames);
    free(torch->modules);
}

/* ---- words ---- */
static void put_kept(mse_torch_pickle *torch, uint32_t *kept, const char *word)
{
    if (*kept) {
        mse_pickle_again(&torch->pickle, *kept - 1);
        return;
    }
    mse_pickle_text(&torch->pickle, mse_word(word));
    *kept = mse_pickle_keep(&torch->pickle) + 1;
}

void mse_torch_put(mse_torch_pickle *torch, enum mse_torch_word word)
{
    static const char *const words[] = {
#define X(word) #word,
        WORDS(X)
#undef X
    };
    put_kept(torch, &torch->words[word], words[word]);
}

void mse_torch_field(mse_torch_pickle *torch, enum mse_torch_word word, uint64_t number)
{
    mse_torch_put(torch, word);
    mse_pickle_number(&torch->pickle, number);
}

void mse_torch_category(mse_torch_pickle *torch, uint8_t category)
{
    put_kept(torch, &torch->category_words[category], mse_categories[category]);
}

/* ---- frames ---- */
static void put_frame(mse_torch_pickle *torch, uint32_t *kept, enum mse_torch_word what, mse_text name, uint64_t line)
{
    mse_pickle *pickle = &torch->pickle;
    if (*kept) {
        mse_pickle_again(pickle, *kept - 1);
        return;
    }
    mse_pickle_op(pickle, MSE_DICT);
    *kept = mse_pickle_keep(pickle) + 1;
    mse_pickle_op(pickle, MSE_MARK);
    mse_torch_put(torch, W_filename);
    mse_torch_put(torch, what);
    mse_torch_field(torch, W_line, line);
    mse_torch_put(torch, W_name);
    mse_pickle_text(pickle, name);
    mse_pickle_op(pickle, MSE_ITEMS);
}

static void put_modules(mse_torch_pickle *torch, ms_path path)
{
    for (int i = 0; i < DEEPEST && path != MS_GLOBAL && path < torch->module_count; i++) {
        ms_path parent;
        uint32_t nth;
        ms_reader_path(torch->job->reader, path, &parent, &nth);
        put_frame(torch, &torch->modules[path], W_module, mse_module(torch->job, path), nth);
        path = parent < path ? parent : MS_GLOBAL;
    }
}

static void put_new(mse_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category, uint8_t phase)
{
    mse_pickle_op(&torch->pickle, MSE_MARK);
    if (category != MSE_NO_CATEGORY)
        put_frame(torch, &torch->categories[category], W_category, mse_word(mse_categories[category]), 0);
    put_modules(torch, path);
    put_frame(torch, &torch->phases[phase], W_phase, mse_word(mse_phases[phase]), 0);
    put_frame(torch, &torch->devices[device], W_device, mse_device(torch->job, device), 0);
    mse_pickle_op(&torch->pickle, MSE_APPENDS);
}

int mse_torch_frames(mse_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category, uint8_t phase)
{
    uint64_t key = (uint64_t)path << 16 | (uint64_t)device << 8 | (uint64_t)category << 4 | phase;
    uint32_t kept = mse_index_get(&torch->frames, key);
    if (kept != MSE_NONE) {
        mse_pickle_again(&torch->pickle, kept);
        return MS_OK;
    }
    mse_pickle_op(&torch->pickle, MSE_LIST);
    kept = mse_pickle_keep(&torch->pickle);
    put_new(torch, device, path, category, phase);
    return mse_index_set(&torch->frames, key, kept) ? MS_OK : MS_ENOMEM;
}
