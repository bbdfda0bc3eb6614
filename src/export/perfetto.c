/* perfetto.c - a capture as Perfetto's trace.
 *
 * Of each device a counter for each category, for all that is held and for what is reserved; of each thread the
 * modules it is in as slices of their phase's category, and its phases; steps, peaks, failures. All is written as it
 * happens: nothing is kept but where each thread is and what each counter said last. */
#include "export/packet.h"
#include "export/play.h"

#include <stdlib.h>

/* Counters of a device: its categories, then these. */
enum { HELD = MS_CATEGORY_COUNT, RESERVED, COUNTERS };
/* Tracks. Of device i 16 from DEVICES + 16 i on: its own, then its counters; of thread i 2 from THREADS + 2 i on: its
 * modules and its phases. */
enum { PROCESS = 1, STEPS, PEAKS, NOTES, DEVICES = 16, THREADS = DEVICES + 16 * MS_MAX_DEVICES };
/* Names and categories of slices. */
enum { NAME_PHASES = 1, NAME_MODULES = NAME_PHASES + MS_OPTIMIZER + 1 };
enum { CATEGORY_PHASES = 1, CATEGORY_PHASE = CATEGORY_PHASES + MS_OPTIMIZER + 1 };
enum { DEEPEST = 512 }; /* modules around one; what is deeper takes the place of the deepest */

struct place {
    ms_path up; /* the module around it that is shown */
    uint16_t depth;
    bool named;
};

struct thread {
    uint32_t number;
    ms_path path;
    uint8_t phase;
    bool there; /* at the last key frame */
};

struct writer {
    const mse_job *job;
    mse_packets packets;
    ms_survey survey;
    struct place *places; /* by path */
    uint32_t place_count;
    struct thread *threads;
    size_t thread_count, thread_room;
    mse_index by_number;
    uint64_t micros;                /* the time, without nanoseconds */
    uint32_t named[MS_MAX_DEVICES]; /* bit i: counter i has a track */
    int64_t value[MS_MAX_DEVICES][COUNTERS];
    bool in_step;
};

static mse_name name_of(const char *a, mse_text b, const char *c)
{
    return (mse_name){mse_word(a), b, mse_word(c)};
}

/* ---- counters ---- */
static uint64_t track_of_device(uint32_t device)
{
    return DEVICES + 16 * (uint64_t)device;
}

static uint64_t track_of_counter(uint32_t device, uint32_t counter)
{
    return track_of_device(device) + 1 + counter;
}

/* Held and reserved come before the categories. */
static void name_counter(struct writer *writer, uint32_t device, uint32_t counter)
{
    mse_text name = mse_device(writer->job, device);
    if (!writer->named[device])
        mse_track(&writer->packets, track_of_device(device), PROCESS, name, DEVICES + device);
    writer->named[device] |= UINT32_C(1) << counter;
    const char *word = counter == HELD ? "held" : counter == RESERVED ? "reserved" : mse_categories[counter];
    uint64_t rank = counter < MS_CATEGORY_COUNT ? counter + 2 : counter - MS_CATEGORY_COUNT;
    mse_track_bytes(&writer->packets, track_of_counter(device, counter), track_of_device(device),
                    (mse_name){name, mse_word(" "), mse_word(word)}, rank);
}

/* Whether it has changed. */
static bool set_counter(struct writer *writer, uint32_t device, uint32_t counter, int64_t value)
{
    if (writer->value[device][counter] == value)
        return false;
    writer->value[device][counter] = value;
    if (!(writer->named[device] >> counter & 1))
        name_counter(writer, device, counter);
    return true;
}

/* Tell what has changed. All that is held goes along with the first category that has. */
static void count_held(struct writer *writer, const ms_cursor *cursor, uint32_t device)
{
    ms_sums sums = ms_cursor_now(cursor, device);
    int64_t held = 0;
    for (uint32_t i = 0; i < MS_CATEGORY_COUNT; i++)
        held += sums.of[i];
    uint64_t along = set_counter(writer, device, HELD, held) ? track_of_counter(device, HELD) : 0;
    for (uint32_t i = 0; i < MS_CATEGORY_COUNT; i++)
        if (set_counter(writer, device, i, sums.of[i])) {
            mse_count(&writer->packets, track_of_counter(device, i), sums.of[i], along, held);
            along = 0;
        }
}

static void count_reserved(struct writer *writer, const ms_cursor *cursor, uint32_t device)
{
    int64_t reserved = (int64_t)ms_cursor_reserved(cursor, device);
    if (set_counter(writer, device, RESERVED, reserved))
        mse_count(&writer->packets, track_of_counter(device, RESERVED), reserved, 0, 0);
}

/* ---- threads and where they are ---- */
static uint64_t track_of(const struct writer *writer, const struct thread *thread)
{
    return THREADS + 2 * (uint64_t)(thread - writer->threads);
}

/* Thread 0 is all that modscope does not know apart. */
static void name_thread(struct writer *writer, const struct thread *thread)
{
    uint64_t track = track_of(writer, thread);
    uint8_t name[7 + MSE_DIGITS] = "thread ";
    mse_text text = {(const char *)name, (size_t)(mse_digits(name + 7, thread->number) - name)};
    if (thread->number)
        mse_track_thread(&writer->packets, track, writer->job->pid, thread->number, text);
    else
        mse_track(&writer->packets, track, PROCESS, mse_word("other threads"), 3);
    mse_track(&writer->packets, track + 1, track, mse_word("phase"), 0);
}

/* NULL when memory runs out. */
static struct thread *find_thread(struct writer *writer, uint32_t number)
{
    uint32_t at = mse_index_get(&writer->by_number, number);
    if (at != MSE_NONE)
        return &writer->threads[at];
    if (!mse_grow((void **)&writer->threads, &writer->thread_room, writer->thread_count + 1, sizeof *writer->threads) ||
        !mse_index_set(&writer->by_number, number, (uint32_t)writer->thread_count))
        return NULL;
    struct thread *thread = &writer->threads[writer->thread_count++];
    *thread = (struct thread){.number = number};
    name_thread(writer, thread);
    return thread;
}

static void begin_module(struct writer *writer, uint64_t track, ms_path path, uint8_t phase)
{
    struct place *place = &writer->places[path];
    if (!place->named)
        mse_intern_name(&writer->packets, NAME_MODULES + (uint64_t)path, mse_module(writer->job, path));
    place->named = true;
    mse_begin(&writer->packets, track, NAME_MODULES + (uint64_t)path, CATEGORY_PHASES + phase);
}

/* The innermost that is around both, or is one of them. */
static ms_path common(const struct place *places, ms_path a, ms_path b)
{
    while (a != b) {
        if (places[a].depth >= places[b].depth)
            a = places[a].up;
        else
            b = places[b].up;
    }
    return a;
}

/* Close the modules that are left, and open those that are entered. In another phase all are. */
static void go(struct writer *writer, struct thread *thread, uint8_t phase, ms_path path)
{
    const struct place *places = writer->places;
    uint64_t track = track_of(writer, thread);
    path = path < writer->place_count ? path : MS_UNKNOWN;
    bool other = phase != thread->phase;
    ms_path stays = other ? MS_GLOBAL : common(places, thread->path, path), entered[DEEPEST];
    for (ms_path at = thread->path; at != stays; at = places[at].up)
        mse_end(&writer->packets, track);
    if (other && thread->phase != MS_IDLE)
        mse_end(&writer->packets, track + 1);
    if (other && phase != MS_IDLE)
        mse_begin(&writer->packets, track + 1, NAME_PHASES + phase, CATEGORY_PHASE);
    size_t count = 0;
    for (ms_path at = path; at != stays; at = places[at].up)
        entered[count++] = at;
    while (count)
        begin_module(writer, track, entered[--count], phase);
    thread->phase = phase;
    thread->path = path;
}

/* ---- marks ---- */
static void put_step(struct writer *writer, uint64_t number)
{
    uint8_t digits[MSE_DIGITS];
    mse_text text = {(const char *)digits, (size_t)(mse_digits(digits, number) - digits)};
    if (writer->in_step)
        mse_end(&writer->packets, STEPS);
    writer->in_step = true;
    mse_open_slice(&writer->packets, STEPS, name_of("step ", text, ""));
    mse_note(&writer->packets, "step", number);
    mse_close(&writer->packets);
}

static void put_mark(struct writer *writer, uint64_t track, const char *name)
{
    mse_open_mark(&writer->packets, track, name_of(name, mse_word(""), ""));
    mse_close(&writer->packets);
}

static void put_peak(struct writer *writer, uint32_t device)
{
    mse_packets *packets = &writer->packets;
    const ms_capture_peak *peaks = &writer->survey.peaks[device];
    const char *doubt = writer->survey.is_lower_bound ? " (at least)" : "";
    mse_open_mark(packets, PEAKS, name_of("peak of ", mse_device(writer->job, device), doubt));
    mse_note(packets, "bytes", (uint64_t)peaks->bytes);
    mse_note(packets, "reserved", peaks->reserved);
    mse_note(packets, "moment", peaks->moment);
    mse_note(packets, "step", peaks->step);
    mse_note_text(packets, "phase", mse_word(mse_phases[peaks->phase]));
    mse_note_text(packets, "module", mse_module(writer->job, peaks->running));
    mse_close(packets);
}

/* Those that were just reached. */
static void put_peaks(struct writer *writer, const ms_cursor *cursor)
{
    for (uint32_t device = 0; device < writer->survey.devices; device++)
        if (writer->survey.peaks[device].bytes && writer->survey.peaks[device].moment == ms_cursor_moment(cursor))
            put_peak(writer, device);
}

static void put_oom(struct writer *writer, const struct thread *thread, const ms_event *event)
{
    mse_packets *packets = &writer->packets;
    mse_text device = mse_device(writer->job, event->device);
    mse_open_mark(packets, track_of(writer, thread), name_of("out of memory on ", device, ""));
    mse_note(packets, "asked", event->bytes);
    mse_note(packets, "allocated", event->allocated);
    mse_note(packets, "reserved", event->reserved);
    mse_note_text(packets, "device", device);
    mse_note_text(packets, "phase", mse_word(mse_phases[event->phase]));
    mse_note_text(packets, "module", mse_module(writer->job, event->path));
    mse_close(packets);
}

/* ---- the player ---- */

/* Time does not go back, and no two events of a microsecond have one nanosecond, unless there are a thousand. */
static void see_time(struct writer *writer, uint64_t micros)
{
    uint64_t *time = &writer->packets.time;
    micros = micros > UINT64_MAX / 2000 ? UINT64_MAX / 2000 : micros;
    if (micros > writer->micros) {
        writer->micros = micros;
        *time = micros * 1000;
    } else if (*time < writer->micros * 1000 + 999) {
        ++*time;
    }
}

static int see_threads(struct writer *writer, const ms_cursor *cursor)
{
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    for (size_t i = 0; i < writer->thread_count; i++)
        writer->threads[i].there = false;
    for (size_t i = 0; ms_cursor_thread(cursor, i, &number, &id, &phase, &path); i++) {
        bool nowhere = phase == MS_IDLE && path == MS_GLOBAL;
        if (nowhere && mse_index_get(&writer->by_number, number) == MSE_NONE)
            continue;
        struct thread *thread = find_thread(writer, number);
        if (!thread)
            return MS_ENOMEM;
        thread->there = true;
        go(writer, thread, (uint8_t)phase, path);
    }
    for (size_t i = 0; i < writer->thread_count; i++)
        if (!writer->threads[i].there)
            go(writer, &writer->threads[i], MS_IDLE, MS_GLOBAL);
    return MS_OK;
}

static int on_key(void *self, const ms_cursor *cursor, bool first)
{
    struct writer *writer = self;
    see_time(writer, ms_cursor_time(cursor));
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        count_held(writer, cursor, device);
        count_reserved(writer, cursor, device);
    }
    if (!first || ms_cursor_is_lower_bound(cursor))
        put_mark(writer, NOTES, "events are missing before this: figures are at least");
    if (ms_cursor_step(cursor))
        put_step(writer, ms_cursor_step(cursor));
    put_peaks(writer, cursor);
    return see_threads(writer, cursor);
}

static int on_thread(struct writer *writer, const ms_event *event)
{
    struct thread *thread = find_thread(writer, event->thread);
    if (!thread)
        return MS_ENOMEM;
    if (event->op == MS_OP_POSITION)
        go(writer, thread, event->phase, event->path);
    else
        put_oom(writer, thread, event);
    return MS_OK;
}

static int on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct writer *writer = self;
    see_time(writer, event->time);
    switch (event->op) {
    case MS_OP_ADD:
        count_held(writer, cursor, event->device);
        put_peaks(writer, cursor);
        break;
    case MS_OP_DROP:
    case MS_OP_CLAIM:
        count_held(writer, cursor, event->device);
        break;
    case MS_OP_POSITION:
    case MS_OP_OOM:
        return on_thread(writer, event);
    case MS_OP_STEP:
        put_step(writer, event->bytes);
        break;
    case MS_OP_OPTIMIZER_STEP:
        put_mark(writer, STEPS, "optimizer step ended");
        break;
    case MS_OP_RESERVED:
        count_reserved(writer, cursor, event->device);
        break;
    default:
        break;
    }
    return MS_OK;
}

/* ---- beginning and end ---- */
static bool find_places(struct writer *writer)
{
    const ms_reader *reader = writer->job->reader;
    uint32_t count = ms_reader_paths(reader);
    writer->place_count = count > MS_UNKNOWN ? count : MS_UNKNOWN + 1;
    writer->places = calloc(writer->place_count, sizeof *writer->places);
    if (!writer->places)
        return false;
    writer->places[MS_UNKNOWN].depth = 1;
    for (uint32_t i = MS_UNKNOWN + 1; i < count; i++) {
        ms_path parent;
        uint32_t nth;
        ms_reader_path(reader, i, &parent, &nth);
        parent = parent < i ? parent : MS_GLOBAL;
        parent = writer->places[parent].depth < DEEPEST ? parent : writer->places[parent].up;
        writer->places[i] = (struct place){.up = parent, .depth = writer->places[parent].depth + 1};
    }
    return true;
}

static void put_head(struct writer *writer)
{
    mse_packets *packets = &writer->packets;
    mse_packets_begin(packets, writer->job->began);
    mse_track_process(packets, PROCESS, writer->job->pid, writer->job->title);
    mse_track(packets, STEPS, PROCESS, mse_word("steps"), 0);
    mse_track(packets, PEAKS, PROCESS, mse_word("peaks"), 1);
    mse_track(packets, NOTES, PROCESS, mse_word("notes"), 2);
    for (uint32_t i = 0; i <= MS_OPTIMIZER; i++) {
        mse_intern_name(packets, NAME_PHASES + i, mse_word(mse_phases[i]));
        mse_intern_category(packets, CATEGORY_PHASES + i, mse_word(mse_phases[i]));
    }
    mse_intern_category(packets, CATEGORY_PHASE, mse_word("phase"));
}

static void put_tail(struct writer *writer)
{
    see_time(writer, ms_reader_get_status(writer->job->reader).duration);
    for (size_t i = 0; i < writer->thread_count; i++)
        go(writer, &writer->threads[i], MS_IDLE, MS_GLOBAL);
    if (writer->in_step)
        mse_end(&writer->packets, STEPS);
}

static int write_all(struct writer *writer)
{
    static const mse_player player = {on_key, on_event};
    int error = ms_reader_survey(writer->job->reader, &writer->survey, NULL, NULL);
    if (error)
        return error;
    put_head(writer);
    error = mse_play(writer->job, &player, writer, &writer->packets.sink, 0, 1);
    if (!error)
        put_tail(writer);
    return error && error != MS_ESTOPPED ? error : mse_packets_end(&writer->packets);
}

int mse_perfetto(const mse_job *job)
{
    struct writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return MS_ENOMEM;
    writer->job = job;
    bool ready = mse_packets_open(&writer->packets, job) && find_places(writer);
    int error = ready ? write_all(writer) : MS_ENOMEM;
    mse_packets_close(&writer->packets);
    mse_index_close(&writer->by_number);
    free(writer->threads);
    free(writer->places);
    free(writer);
    return error;
}
