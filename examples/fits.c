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
    if (error == MS_OK)
        return;
    fprintf(stderr, "fits: %s: %s\n", what, error == MS_EIO ? strerror(errno) : ms_error_text(error));
    exit(2);
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
    uint64_t peaks[2] = {0, 0};
    uint32_t found[2] = {MS_REPLAY_NONE, MS_REPLAY_NONE};
    for (uint32_t device = 0; device < stream->device_count; device++) {
        const char *name = ms_reader_device(reader, device);
        bool is_cpu = name && strcmp(name, "cpu") == 0;
        uint64_t peak = replay(NULL, device, NULL).allocated_peak;
        if (peak > peaks[is_cpu])
            peaks[is_cpu] = peak, found[is_cpu] = device;
    }
    return found[0] == MS_REPLAY_NONE ? found[1] : found[0];
}

/* Calls come in the order of their begins, and a call in a checkpointed one is refused with MS_EINVAL: of blocks in
 * blocks, the outermost ones are checkpointed. */
static ms_replay_edit *checkpoint_blocks(void)
{
    ms_replay_edit *edit = ms_replay_edit_open(stream);
    exit_on(edit ? MS_OK : MS_ENOMEM, "edit");
    for (uint32_t i = 0; i < stream->call_count; i++) {
        ms_path parent;
        uint32_t nth;
        const char *name = ms_reader_path(reader, stream->calls[i].path, &parent, &nth), *dot = strrchr(name, '.');
        if (dot && dot[1] && dot[1 + strspn(dot + 1, "0123456789")] == '\0')
            exit_on(ms_replay_edit_checkpoint(edit, i) == MS_ENOMEM ? MS_ENOMEM : MS_OK, "checkpoint");
    }
    return edit;
}

/* The size is with unlimited memory. It may fit into less, because the allocator gives free memory back before a
 * request fails. */
static bool print_row(const char *change, const ms_replay_edit *edit, uint32_t device, ms_allocator_settings settings)
{
    char size[32];
    bool fits = !replay(edit, device, &settings).failed;
    settings.capacity = MS_UNLIMITED;
    ms_size_text((int64_t)replay(edit, device, &settings).reserved_peak, 0, size, sizeof size);
    printf("%-28s %12s  %s\n", change, size, fits ? "fits" : "does not fit");
    return fits;
}

int main(int argc, char **argv)
{
    char *end = NULL, problem[256];
    double gib = argc == 3 ? strtod(argv[2], &end) : 0;
    if (argc != 3 || *end || !(gib > 0 && gib < 1e6))
        return fprintf(stderr, "usage: fits CAPTURE GIB, such as: fits run.msc 23.5\n"), 2;
    int fd = open(argv[1], O_RDONLY);
    exit_on(fd < 0 ? MS_EIO : ms_reader_open(fd, NULL, &reader), argv[1]);
    exit_on(ms_replay_stream_load(reader, &stream), argv[1]);
    uint32_t device = find_device();
    if (device == MS_REPLAY_NONE)
        return fprintf(stderr, "fits: %s has no memory in it: record a run that allocates\n", argv[1]), 2;
    ms_allocator_settings settings, expandable;
    const char *rules = info("rules"), *conf = info("allocator"); /* "rules": the torch that a prediction assumed */
    exit_on(ms_allocator_settings_default(&settings, rules ? rules : info("torch")), "the capture's version of torch");
    if (conf && ms_allocator_settings_apply(&settings, conf, problem, sizeof problem) != MS_OK)
        return fprintf(stderr, "fits: the capture's PYTORCH_CUDA_ALLOC_CONF: %s\n", problem), 2;
    settings.capacity = (uint64_t)(gib * 1024 * 1024 * 1024);
    expandable = settings;
    expandable.expandable_segments = true;
    ms_replay_edit *edit = checkpoint_blocks();
    bool fits = print_row("as it ran", NULL, device, settings);
    fits |= print_row("with expandable segments", NULL, device, expandable);
    fits |= print_row("with checkpointed blocks", edit, device, settings);
    fits |= print_row("with both", edit, device, expandable);
    ms_replay_edit_close(edit);
    ms_replay_stream_free(stream);
    ms_reader_close(reader);
    return !fits;
}
