/* torch_frames.c - strings and stack frames of torch's memory snapshot, each written once. */
#include "export/torch_snapshot.h"

#include <stdlib.h>

enum { MAX_FRAMES = 128 }; /* of modules, for one block */

bool ms__export_torch_open(ms__export_torch_pickle *torch, const ms_export_job *job)
{
    *torch = (ms__export_torch_pickle){
        .job = job, .module_count = ms_reader_paths(job->reader), .stack_count = ms_reader_stacks(job->reader)};
    torch->modules = calloc((size_t)torch->module_count + 1, sizeof *torch->modules);
    torch->stacks = calloc((size_t)torch->stack_count + 1, sizeof *torch->stacks);
    torch->operators = calloc((size_t)torch->stack_count + 1, sizeof *torch->operators);
    bool ready = torch->modules && torch->stacks && torch->operators;
    return ms__export_output_open(&torch->pickle.output, job) && ready;
}

void ms__export_torch_close(ms__export_torch_pickle *torch)
{
    ms__export_output_close(&torch->pickle.output);
    ms__map_clear(&torch->frames);
    free(torch->modules);
    free(torch->stacks);
    free(torch->operators);
}

/* ---- strings ---- */
static void put_memoized(ms__export_torch_pickle *torch, uint32_t *memo, const char *string)
{
    if (*memo) {
        ms__export_pickle_get(&torch->pickle, *memo - 1);
        return;
    }
    ms__export_pickle_text(&torch->pickle, ms__export_text_of(string));
    *memo = ms__export_pickle_memoize(&torch->pickle) + 1;
}

void ms__export_torch_put_string(ms__export_torch_pickle *torch, enum ms__export_torch_string string)
{
    static const char *const strings[] = {
#define X(string) #string,
        STRINGS(X)
#undef X
    };
    put_memoized(torch, &torch->strings[string], strings[string]);
}

void ms__export_torch_put_field(ms__export_torch_pickle *torch, enum ms__export_torch_string string, uint64_t number)
{
    ms__export_torch_put_string(torch, string);
    ms__export_pickle_number(&torch->pickle, number);
}

void ms__export_torch_put_category(ms__export_torch_pickle *torch, uint8_t category)
{
    put_memoized(torch, &torch->category_strings[category], ms_category_name(category));
}

/* ---- frames ---- */
static void put_frame(ms__export_torch_pickle *torch, uint32_t *memo, enum ms__export_torch_string file_name,
                      ms_export_text name, uint64_t line)
{
    ms__export_pickle *pickle = &torch->pickle;
    if (*memo) {
        ms__export_pickle_get(pickle, *memo - 1);
        return;
    }
    ms__export_pickle_op(pickle, MS_EXPORT_DICT);
    *memo = ms__export_pickle_memoize(pickle) + 1;
    ms__export_pickle_op(pickle, MS_EXPORT_MARK);
    ms__export_torch_put_string(torch, S_filename);
    ms__export_torch_put_string(torch, file_name);
    ms__export_torch_put_field(torch, S_line, line);
    ms__export_torch_put_string(torch, S_name);
    ms__export_pickle_text(pickle, name);
    ms__export_pickle_op(pickle, MS_EXPORT_ITEMS);
}

static void put_module_frames(ms__export_torch_pickle *torch, ms_path path)
{
    for (int i = 0; i < MAX_FRAMES && path != MS_GLOBAL && path < torch->module_count; i++) {
        ms_path parent;
        uint32_t nth;
        ms_reader_path(torch->job->reader, path, &parent, &nth);
        put_frame(torch, &torch->modules[path], S_module, ms__export_module(torch->job, path), nth);
        path = parent < path ? parent : MS_GLOBAL;
    }
}

/* A text of the file, which may be no UTF-8 in a file that was forged. */
static void put_ascii_or_utf8(ms__export_torch_pickle *torch, const char *text)
{
    char ascii[256];
    if (ms__export_is_utf8(text)) {
        ms__export_pickle_text(&torch->pickle, ms__export_text_of(text));
        return;
    }
    size_t size = 0;
    for (; size < sizeof ascii && text[size]; size++)
        ascii[size] = (unsigned char)text[size] < 0x80 ? text[size] : '?';
    ms__export_pickle_text(&torch->pickle, (ms_export_text){ascii, size});
}

static void put_python_frame(ms__export_torch_pickle *torch, ms_stack stack, const ms_frame *frame)
{
    ms__export_pickle *pickle = &torch->pickle;
    if (torch->stacks[stack]) {
        ms__export_pickle_get(pickle, torch->stacks[stack] - 1);
        return;
    }
    ms__export_pickle_op(pickle, MS_EXPORT_DICT);
    torch->stacks[stack] = ms__export_pickle_memoize(pickle) + 1;
    ms__export_pickle_op(pickle, MS_EXPORT_MARK);
    ms__export_torch_put_string(torch, S_filename);
    ms_export_text file =
        ms__export_place_of(torch->job, stack).file; /* a cell of a notebook has another name than its file */
    if (frame->file && file.bytes)
        ms__export_pickle_text(&torch->pickle, file);
    else if (frame->file)
        put_ascii_or_utf8(torch, frame->file);
    else
        ms__export_torch_put_string(torch, S_operator);
    ms__export_torch_put_field(torch, S_line, frame->line);
    ms__export_torch_put_string(torch, S_name);
    put_ascii_or_utf8(torch, frame->function);
    ms__export_pickle_op(pickle, MS_EXPORT_ITEMS);
}

/* Around a backward node come the frames of the forward that created it, then those that run backward. */
static void put_python_frames(ms__export_torch_pickle *torch, ms_stack stack)
{
    ms_frame frame;
    ms_stack outer = MS_STACK_NONE; /* behind the frames of the forward */
    ms_export_text operator_name = ms__export_place_of(torch->job, stack).operator_name;
    if (operator_name.bytes && ms_reader_stack(torch->job->reader, stack, &frame) && frame.file)
        put_frame(torch, &torch->operators[stack], S_operator, operator_name, 0);
    for (int i = 0; i < MAX_FRAMES && ms_reader_stack(torch->job->reader, stack, &frame); i++) {
        put_python_frame(torch, stack, &frame);
        bool is_node = frame.forward && frame.forward < stack && !outer;
        if (is_node)
            outer = frame.outer;
        ms_stack next = is_node ? frame.forward : frame.outer;
        stack = next < stack ? next : (ms_stack)MS_STACK_NONE;
        if (!stack && outer) {
            stack = outer;
            outer = MS_STACK_NONE;
        }
    }
}

static void put_new_frames(ms__export_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category,
                           uint8_t kind, uint8_t phase, ms_stack stack)
{
    ms__export_pickle_op(&torch->pickle, MS_EXPORT_MARK);
    if (category != MS_EXPORT_NO_CATEGORY)
        put_frame(torch, &torch->categories[category], S_category, ms__export_text_of(ms_category_name(category)), 0);
    if (kind)
        put_frame(torch, &torch->kinds[kind], S_kind, ms__export_text_of(ms_kind_name(kind)), 0);
    put_python_frames(torch, stack);
    put_module_frames(torch, path);
    put_frame(torch, &torch->phases[phase], S_phase, ms__export_text_of(ms_phase_name(phase)), 0);
    put_frame(torch, &torch->devices[device], S_device, ms__export_device(torch->job, device), 0);
    ms__export_pickle_op(&torch->pickle, MS_EXPORT_APPENDS);
}

int ms__export_torch_put_frames(ms__export_torch_pickle *torch, uint32_t device, ms_path path, uint8_t category,
                                uint8_t kind, uint8_t phase, ms_stack stack)
{
    /* A capture has fewer than 2^25 paths, 2^18 stacks and 2^4 kinds. */
    uint64_t key = (uint64_t)kind << 60 | (uint64_t)stack << 42 | (uint64_t)path << 16 | (uint64_t)device << 8 |
                   (uint64_t)category << 4 | phase;
    uint32_t memo = ms__map_index(&torch->frames, key);
    if (memo != MS_EXPORT_NONE) {
        ms__export_pickle_get(&torch->pickle, memo);
        return MS_OK;
    }
    ms__export_pickle_op(&torch->pickle, MS_EXPORT_LIST);
    memo = ms__export_pickle_memoize(&torch->pickle);
    put_new_frames(torch, device, path, category, kind, phase, stack);
    return ms__map_set(&torch->frames, key, memo) ? MS_OK : MS_ENOMEM;
}
