/* capture_exercise.c - open, survey, seek, apply later claims, read events and pack, and check all of it. */
#include "capture_exercise.h"

#include "modscope_collectives.h"
#include "pack_read.h"
#include "random.h"

#include <string.h>

enum { SEEKS = 6, STEPS = 40, EVENTS_CHECKED = 20000 };

/* The first check that failed; NULL: none has. */
static const char *wrong;

static void check(bool right, const char *what)
{
    if (!right && !wrong)
        wrong = what;
}

/* Running out of memory is not a failure. */
static bool done(int error)
{
    check(error == MS_OK || error == MS_EEND || error == MS_ENOSTEP || error == MS_ENOMEM, "an error that cannot be");
    return error == MS_OK;
}

static void look_at_words(const ms_reader *reader)
{
    const char *key, *value;
    for (int of_end = 0; of_end <= 1; of_end++)
        for (size_t i = 0; ms_reader_info(reader, of_end, i, &key, &value); i++)
            check(strlen(key) + strlen(value) < SIZE_MAX, "words end");
    for (ms_path path = 0; path < ms_reader_paths(reader); path++) {
        ms_path parent;
        uint32_t nth;
        check(ms_reader_path(reader, path, &parent, &nth) != NULL, "a path has a name");
        check(parent < path || path == MS_GLOBAL, "a parent has a lower number");
    }
    for (ms_stack stack = 0; stack < ms_reader_stacks(reader); stack++) {
        ms_frame frame;
        if (!ms_reader_stack(reader, stack, &frame))
            continue;
        check(frame.function && strlen(frame.function) < ms_reader_get_status(reader).bytes, "a stack has a function");
        check(!frame.file || strlen(frame.file) < ms_reader_get_status(reader).bytes,
              "a file's name is in the capture");
        check(frame.outer < stack, "the stack around a stack has a lower number");
    }
    check(ms_reader_devices(reader) <= MS_MAX_DEVICES, "there are so many devices at the most");
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++)
        check(!ms_reader_device(reader, i) || i < ms_reader_devices(reader), "devices that have names are counted");
}

static void look_at_figures(const ms_reader *reader)
{
    ms_reader_status figures = ms_reader_get_status(reader);
    check(figures.damaged <= figures.bytes, "no more is damaged than there is");
}

/* total = sum over categories = sum over blocks */
static void look_at_cursor(const ms_reader *reader, const ms_cursor *cursor)
{
    ms_sums sums[MS_MAX_DEVICES] = {{{0}}};
    uint64_t count = 0;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block); count++) {
        check(block.device < ms_reader_devices(reader), "a block's device is counted");
        check(block.path < ms_reader_paths(reader), "a block's path is there");
        check(block.stack < ms_reader_stacks(reader), "a block's stack is there");
        check(block.category < MS_CATEGORY_COUNT && block.phase < MS_PHASE_COUNT, "a block has a category and a phase");
        check(block.since_event <= ms_cursor_moment(cursor), "a block was made before now");
        if (!wrong)
            sums[block.device].of[block.category] += (int64_t)block.bytes;
    }
    check(count == ms_cursor_blocks(cursor), "all blocks are counted");
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++) {
        ms_sums now = ms_cursor_now(cursor, i);
        check(memcmp(&now, &sums[i], sizeof now) == 0, "the sums are those of the blocks");
    }
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    for (size_t i = 0; ms_cursor_thread(cursor, i, &number, &id, &phase, &path); i++)
        check(phase < MS_PHASE_COUNT && path < ms_reader_paths(reader), "a thread is somewhere");
}

static void check_next_events(const ms_reader *reader, ms_cursor *cursor, uint32_t limit)
{
    ms_event event;
    uint64_t before = ms_cursor_moment(cursor);
    while (limit-- && done(ms_cursor_next(cursor, UINT32_MAX, &event))) {
        check(event.number >= before, "events go on");
        before = event.number + 1;
        check(ms_cursor_moment(cursor) == before, "the event that is returned was applied");
        check(event.op < MS_OP_COUNT && event.device < MS_MAX_DEVICES, "an event is of a kind, and of a device");
        check(event.path < ms_reader_paths(reader), "an event's path is there");
        check(event.category < MS_CATEGORY_COUNT && event.phase < MS_PHASE_COUNT,
              "an event has a category and a phase");
    }
    look_at_cursor(reader, cursor);
}

static void seek(ms_reader *reader, ms_cursor *cursor, uint64_t *random)
{
    uint64_t events = ms_reader_get_status(reader).events,
             moment = random_below(random, events < 1000 ? events + 2 : 1000);
    if (events >= 1000 && random_below(random, 2))
        moment = random_below(random, events);
    if (!done(ms_cursor_seek(cursor, moment)))
        return;
    uint64_t there = ms_cursor_moment(cursor), blocks = ms_cursor_blocks(cursor);
    look_at_cursor(reader, cursor);
    if (random_below(random, 3) && done(ms_cursor_apply_later_claims(cursor))) {
        ms_event event;
        look_at_cursor(reader, cursor);
        check(ms_cursor_moment(cursor) == there && ms_cursor_blocks(cursor) == blocks,
              "later claims do not move the cursor");
        check(ms_cursor_next(cursor, 1, &event) == MS_EINVAL, "a cursor with later claims applied does not go on");
        return;
    }
    check_next_events(reader, cursor, (uint32_t)random_below(random, STEPS));
}

static void look_at_series(const ms_reader *reader, ms_cursor *cursor, uint64_t *random)
{
    enum { COLUMNS = 4 };
    uint64_t bounds[COLUMNS + 1], latest = ms_reader_get_status(reader).duration;
    for (int i = 0; i <= COLUMNS; i++)
        bounds[i] = latest / COLUMNS * (uint64_t)i + (i == COLUMNS ? random_below(random, 100) : 0);
    ms_sums most[COLUMNS];
    size_t begun;
    if (!done(ms_cursor_load_later_claims(cursor)) || !done(ms_cursor_seek(cursor, 0)) ||
        !done(ms_cursor_series(cursor, 0, bounds, COLUMNS, most, &begun)))
        return;
    check(begun <= COLUMNS, "a series has as many columns as were asked for");
    for (size_t i = 0; i < begun; i++)
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            check(most[i].of[category] >= 0, "no category held less than nothing");
}

static void seek_otherwise(const ms_reader *reader, ms_cursor *cursor, uint64_t *random)
{
    if (done(ms_cursor_seek_time(cursor, random_below(random, ms_reader_get_status(reader).duration % 10000 + 2))))
        look_at_cursor(reader, cursor);
    uint64_t step = random_below(random, 6);
    if (done(ms_cursor_seek_step(cursor, step)))
        check(ms_cursor_step(cursor) == step, "a step that is found is the step");
    look_at_cursor(reader, cursor);
    int64_t peaks[MS_MAX_DEVICES];
    if (done(ms_cursor_seek(cursor, 0)) && done(ms_cursor_peaks(cursor, random_below(random, 100), peaks)))
        for (uint32_t i = 0; i < MS_MAX_DEVICES; i++)
            check(peaks[i] >= 0, "nobody held less than nothing");
    look_at_series(reader, cursor, random);
}

static void survey(ms_reader *reader)
{
    static ms_survey found;
    if (!done(ms_reader_survey(reader, &found, NULL, NULL)))
        return;
    check(found.devices == ms_reader_devices(reader), "a survey meets all devices");
    check(found.first <= found.last, "the last moment is not before the first");
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++) {
        const ms_capture_peak *peaks = &found.peaks[i];
        check(peaks->bytes >= 0 && (!peaks->bytes || i < found.devices), "a device that held something is counted");
        check(!peaks->bytes || (peaks->moment >= found.first && peaks->moment <= found.last), "it held most between");
        check(peaks->running < ms_reader_paths(reader), "somebody ran then");
    }
    look_at_figures(reader);
}

static void look_at_pack(ms_reader *reader, uint64_t random)
{
    ms_pack raw;
    struct pack pack;
    uint64_t events = ms_reader_get_status(reader).events;
    uint64_t first = random_below(&random, 3) ? 0 : random_below(&random, events < 1000 ? events + 2 : events);
    if (!done(ms_reader_pack(reader, first, first + random_below(&random, EVENTS_CHECKED), &raw)))
        return;
    const char *not_so = pack_read(&pack, raw);
    check(!not_so, not_so);
    pack_free(&pack);
    ms_pack_free(reader, &raw);
}

static void look_at_operators(ms_reader *reader)
{
    ms_operators found;
    if (!done(ms_operators_read(reader, &found)))
        return;
    for (size_t i = 0; i < found.count; i++)
        check(found.runs[i].name < found.name_count && found.runs[i].begin <= found.runs[i].end,
              "an operator has a name, and ends after it began");
    ms_operators_free(reader, &found);
}

static void look_at_inputs(ms_reader *reader)
{
    ms_root_inputs found;
    if (!done(ms_root_inputs_read(reader, &found)))
        return;
    for (size_t i = 0; i < found.count; i++)
        check(found.calls[i].count <= MS_INPUTS && found.calls[i].first + found.calls[i].count <= found.input_count,
              "a root call's inputs are there");
    ms_root_inputs_free(reader, &found);
}

static void look_at_collectives(ms_reader *reader)
{
    ms_collectives found;
    if (!done(ms_collectives_read(reader, &found)))
        return;
    for (size_t i = 0; i < found.count; i++) {
        const ms_collective *one = &found.at[i];
        check(one->kind < MS_COLLECTIVE_COUNT && one->phase < MS_PHASE_COUNT, "a collective has a kind and a phase");
        check(one->path < ms_reader_paths(reader), "it belongs to a path");
    }
    for (size_t i = 1; i < found.group_count; i++)
        check(found.groups[i - 1].number < found.groups[i].number, "each group is there once");
    ms_collectives_free(reader, &found);
}

/* Read a capture as one that is still being written; of one that is whole it says what the survey says. */
static void follow(int fd, const ms_options *options, uint64_t part)
{
    ms_reader *reader;
    ms_live *live;
    ms_survey found;
    if (ms_reader_open(fd, options, &reader) != MS_OK)
        return;
    if (done(ms_live_open(reader, &live))) {
        bool more = true, reads = true;
        while (more && reads)
            reads = done(ms_live_update(live, part, &more));
        bool is_whole = reads && done(ms_reader_survey(reader, &found, NULL, NULL)) && !found.is_lower_bound;
        for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
            ms_live_device at = ms_live_get_device(live, device);
            check(!is_whole || at.peak == found.peaks[device].bytes, "what was followed has the peaks of the survey");
            check(!is_whole || at.peak_reserved == found.peak_reserved[device], "and what was reserved");
            for (ms_live_kind kind = MS_LIVE_MODULES; kind <= MS_LIVE_LINES; kind++) {
                ms_live_row row;
                int64_t now = 0, peak = 0;
                for (size_t i = 0; ms_live_next_row(live, kind, device, &i, &row);) {
                    now += row.now;
                    peak += row.peak;
                }
                check(!reads || now == at.now, "the rows have all that is held");
                check(!is_whole || peak == at.peak, "the rows have all that was held at the peak");
            }
        }
        ms_live_close(live);
    }
    ms_reader_close(reader);
}

static void everything(ms_reader *reader, uint64_t random)
{
    look_at_words(reader);
    look_at_figures(reader);
    if (random_below(&random, 2))
        survey(reader);
    ms_cursor *cursor;
    if (!done(ms_cursor_open(reader, &cursor)))
        return;
    look_at_cursor(reader, cursor);
    check_next_events(reader, cursor, EVENTS_CHECKED);
    for (int i = 0; i < SEEKS && !wrong; i++)
        seek(reader, cursor, &random);
    seek_otherwise(reader, cursor, &random);
    ms_cursor_close(cursor);
    survey(reader);
    look_at_pack(reader, random);
    look_at_collectives(reader);
    look_at_operators(reader);
    look_at_inputs(reader);
}

const char *capture_exercise(int fd, uint64_t seed, struct heap *heap)
{
    ms_options options = heap_options(heap);
    ms_reader *reader;
    wrong = NULL;
    int error = ms_reader_open(fd, &options, &reader);
    if (!error) {
        everything(reader, seed);
        ms_reader_close(reader);
        follow(fd, &options, 1 + seed % 500);
    }
    check(!error || error == MS_EFORMAT || error == MS_ENEWER || error == MS_ENOMEM, "an error that opening has not");
    check(heap->refused || error != MS_ENOMEM, "memory did not run out");
    check(!heap->live, "memory leaked");
    return wrong;
}
