/* fits.c - would the program of a capture fit a GPU: as it ran, with expandable segments, with its blocks checkpointed?
 *
 *     cc fits.c $(pkg-config --cflags --libs modscope) -o fits && ./fits run.msc 23.5
 *
 * The second argument is how many GiB the GPU has for the program; its context takes about 0.5 GiB of its memory.
 * Blocks are modules whose names end with a number, such as GPT.blocks.3. Exits with 0 if a row of the answer fits,
 * with 1 if none does, and with 2 after an error. */
#include <modscope_replay.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ms_reader *reader;
static ms_replay_stream *stream;

static void exit_on(int error, const char *what)
{
    if (error != MS_OK) {
        fprintf(stderr, "fits: %s: %s\n", what, error == MS_EIO ? strerror(errno) : ms_error_text(error));
        exit(2);
    }
}

static const char *info(const char *wanted)
{
    const char *key, *value;
    for (size_t i = 0; ms_reader_info(reader, false, i, &key, &value); i++)
        if (strcmp(key, wanted) == 0)
            return value;
    return NULL;
}

static ms_replay_result replay(const ms_replay_edit *edit, uint32_t device, const ms_allocator_settings *settings)
{
    ms_replay_result result;
    exit_on(ms_replay_run(stream, edit, device, settings, NULL, &result), "replay");
    return result;
}

/* The accelerator with the highest peak, or else the CPU. */
static uint32_t find_device(void)
{
    uint32_t found = MS_REPLAY_NONE;
    uint64_t most = 0;
    for (uint32_t device = 0; device < stream->device_count; device++) {
        const char *name = ms_reader_device(reader, device);
        uint64_t peak = replay(NULL, device, NULL).allocated_peak;
        uint64_t rank = !peak ? 0 : name && strcmp(name, "cpu") == 0 ? 1 : 1 + peak;
        if (rank > most)
            most = rank, found = device;
    }
    return found;
}

/* Calls come in the order of their begins, and a call in a checkpointed one is refused with MS_EINVAL: of blocks in
 * blocks, the outermost ones are checkpointed. */
static ms_replay_edit *checkpoint_blocks(void)
{
    ms_replay_edit *edit = ms_replay_edit_open(stream);
    exit_on(edit ? MS_OK : MS_ENOMEM, "edit");
    for (uint32_t i = 0; i < stream->call_count; i++) {
        const char *name = ms_reader_path(reader, stream->calls[i].path, &(ms_path){0}, &(uint32_t){0});
        const char *dot = strrchr(name, '.');
        if (dot && dot[1] && dot[1 + strspn(dot + 1, "0123456789")] == '\0')
            exit_on(ms_replay_edit_checkpoint(edit, i) == MS_ENOMEM ? MS_ENOMEM : MS_OK, "checkpoint");
    }
    return edit;
}

int main(int argc, char **argv)
{
    static const char *const rows[] = {"as it ran", "with expandable segments", "with checkpointed blocks",
                                       "with both"};
    char *end = NULL, text[256];
    double gib = argc == 3 ? strtod(argv[2], &end) : 0;
    if (argc != 3 || *end || !(gib > 0 && gib < 1e6))
        return fprintf(stderr, "usage: fits CAPTURE GIB, such as: fits run.msc 23.5\n"), 2;
    int fd = open(argv[1], O_RDONLY);
    exit_on(fd < 0 ? MS_EIO : ms_reader_open(fd, NULL, &reader), argv[1]);
    exit_on(ms_replay_stream_load(reader, &stream), argv[1]);
    uint32_t device = find_device();
    if (device == MS_REPLAY_NONE)
        return fprintf(stderr, "fits: %s has no memory in it: record a run that allocates\n", argv[1]), 2;
    ms_allocator_settings settings;
    const char *rules = info("rules"), *conf = info("allocator"); /* "rules": the torch that a prediction assumed */
    exit_on(ms_allocator_settings_default(&settings, rules ? rules : info("torch")), "the capture's version of torch");
    if (conf && ms_allocator_settings_apply(&settings, conf, text, sizeof text) != MS_OK)
        return fprintf(stderr, "fits: the capture's PYTORCH_CUDA_ALLOC_CONF: %s\n", text), 2;
    ms_replay_edit *edit = checkpoint_blocks();
    bool any_fits = false;
    for (int row = 0; row < 4; row++) {
        const ms_replay_edit *change = row & 2 ? edit : NULL;
        ms_allocator_settings changed = settings;
        changed.expandable_segments |= row & 1;
        changed.capacity = (uint64_t)(gib * 1024 * 1024 * 1024);
        bool fits = !replay(change, device, &changed).failed;
        changed.capacity = MS_UNLIMITED; /* it may fit into less: free memory is given back before a request fails */
        ms_size_text((int64_t)replay(change, device, &changed).reserved_peak, 0, text, sizeof text);
        printf("%-28s %12s  %s\n", rows[row], text, fits ? "fits" : "does not fit");
        any_fits |= fits;
    }
    ms_replay_edit_close(edit);
    ms_replay_stream_free(stream);
    ms_reader_close(reader);
    return !any_fits;
}
