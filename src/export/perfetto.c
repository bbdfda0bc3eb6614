/* perfetto.c - writes a capture as a Perfetto trace.
 *
 * Each device has counters (perfetto_counters.c), tracks with its largest blocks (perfetto_blocks.c), and a heap
 * profile of its peak (perfetto_profile.c). Each thread has a track with a slice for each module call (the slice's
 * category is the phase), and a track with its phases. The process has tracks for steps, peaks, notes and collectives.
 * Everything is written as it happens: only the position of each thread, the last value of each counter, and which of
 * the chosen blocks are held are kept. */
#include "export/perfetto_packets.h"
#include "export/walk.h"

#include <stdlib.h>

/* Track numbers: those of devices and their counters, then those of blocks, then
 *     THREADS + 2 i        the modules of thread i
 *     THREADS + 2 i + 1    its phases */
enum { PROCESS = 1, STEPS, PEAKS, NOTES, COLLECTIVES, DEVICES = 16 };
enum { BLOCKS = DEVICES + MS_EXPORT_DEVICE_TRACKS * MS_MAX_DEVICES };
enum { THREADS = BLOCKS + MS_EXPORT_MOST_BLOCKS * MS_MAX_DEVICES };
/* Ids of interned names and categories. */
enum { NAME_PHASES = 1, NAME_MODULES = NAME_PHASES + MS_PHASE_COUNT };
enum { CATEGORY_PHASES = 1, CATEGORY_PHASE = CATEGORY_PHASES + MS_PHASE_COUNT };
enum { MAX_DEPTH = 512 }; /* of a slice: a deeper module is shown beside its parent, not inside it */
/* A thread that jumps between deep modules begins and ends many slices with one event of two bytes. On average a
 * position may write SLICES_PER_POSITION beginnings and ends; programs write two to four. Where that and
 * SLICES_IN_ADVANCE are used up, a module is shown without the modules around it. */
enum { SLICES_PER_POSITION = 8, SLICES_IN_ADVANCE = 65536 };
enum { MAX_NAME_IN_INSTANT = 128 }; /* bytes */

struct module_node {
    ms_path parent; /* the module whose slice contains its slice */
    uint16_t depth;
    bool named;
};

struct thread {
    uint32_t number;
    ms_path path;
    uint8_t phase;
    bool in_key_frame; /* the last key frame contains it */
    bool is_alone;     /* only the slice of `path` is open, and not those of the modules around it */
};

struct writer {
    const ms_export_job *job;
    ms__export_packets packets;
    ms__export_counters *counters;
    ms__export_block_tracks *blocks;
    ms__export_peak_profiles *profiles;
    ms__export_collective_track *collectives;
    ms_survey survey;
    struct module_node *modules; /* by path */
    uint32_t module_count;
    struct thread *threads;
    size_t thread_count, thread_room;
    struct ms__map by_number;
    uint64_t micros;      /* the time of the last event, in microseconds */
    uint64_t slices_left; /* beginnings and ends that may still be written, see SLICES_PER_POSITION */
    bool in_step, left_out_slices;
};

static ms__export_name name_of(const char *a, ms_export_text b, const char *c)
{
    return (ms__export_name){ms__export_text_of(a), b, ms__export_text_of(c)};
}

static void put_instant(struct writer *writer, uint64_t track, const char *name)
{
    ms__export_open_instant(&writer->packets, track, name_of(name, ms__export_text_of(""), ""));
    ms__export_close_event(&writer->packets);
}

/* ---- positions of threads ---- */
static uint64_t track_of_thread(const struct writer *writer, const struct thread *thread)
{
    return THREADS + 2 * (uint64_t)(thread - writer->threads);
}

/* Number 0 is shared by all threads that modscope cannot distinguish. */
static void name_thread(struct writer *writer, const struct thread *thread)
{
    uint64_t track = track_of_thread(writer, thread);
    uint8_t name[7 + MS_EXPORT_MAX_DIGITS] = "thread ";
    ms_export_text text = {(const char *)name, (size_t)(ms__export_digits(name + 7, thread->number) - name)};
    if (thread->number)
        ms__export_track_thread(&writer->packets, track, writer->job->pid, thread->number, text);
    else
        ms__export_track(&writer->packets, track, PROCESS, ms__export_text_of("other threads"), 3);
    ms__export_track(&writer->packets, track + 1, track, ms__export_text_of("phase"), 0);
}

/* Returns NULL if memory runs out. */
static struct thread *find_thread(struct writer *writer, uint32_t number)
{
    uint32_t at = ms__map_index(&writer->by_number, number);
    if (at != MS_EXPORT_NONE)
        return &writer->threads[at];
    if (!MS__ARRAY_GROW(writer->threads, writer->thread_room, writer->thread_count + 1) ||
        !ms__map_set(&writer->by_number, number, (uint32_t)writer->thread_count))
        return NULL;
    struct thread *thread = &writer->threads[writer->thread_count++];
    *thread = (struct thread){.number = number};
    name_thread(writer, thread);
    return thread;
}

static void begin_module(struct writer *writer, uint64_t track, ms_path path, uint8_t phase)
{
    struct module_node *module = &writer->modules[path];
    if (!module->named)
        ms__export_intern_name(&writer->packets, NAME_MODULES + (uint64_t)path, ms__export_module(writer->job, path));
    module->named = true;
    ms__export_begin_slice(&writer->packets, track, NAME_MODULES + (uint64_t)path, CATEGORY_PHASES + phase);
}

/* The innermost module that is an ancestor of both, or one of them. */
static ms_path common_ancestor(const struct module_node *modules, ms_path a, ms_path b)
{
    while (a != b) {
        if (modules[a].depth >= modules[b].depth)
            a = modules[a].parent;
        else
            b = modules[b].parent;
    }
    return a;
}

/* The innermost module whose slice stays open. A slice belongs to one phase: when the phase changes, none does. */
static ms_path find_kept(const struct writer *writer, const struct thread *thread, uint8_t phase, ms_path path)
{
    if (phase != thread->phase || thread->is_alone)
        return MS_GLOBAL;
    return common_ancestor(writer->modules, thread->path, path);
}

/* Pay for the slices from below `kept` down to `path`: for their beginnings, and at once for their ends. False: they
 * are too many, and only the slice of `path` is paid for. */
static bool pay_for_slices(struct writer *writer, ms_path kept, ms_path path)
{
    uint64_t slices = (uint64_t)(writer->modules[path].depth - writer->modules[kept].depth) * 2;
    writer->slices_left += SLICES_PER_POSITION;
    bool is_affordable = slices <= writer->slices_left;
    writer->slices_left -= is_affordable ? slices : 2;
    return is_affordable;
}

/* End the slices of modules that the thread has left. */
static void end_modules(struct writer *writer, const struct thread *thread, ms_path kept)
{
    ms_path at = thread->path;
    while (at != kept) {
        ms__export_end_slice(&writer->packets, track_of_thread(writer, thread));
        at = thread->is_alone ? kept : writer->modules[at].parent;
    }
}

/* Begin the slices of modules that the thread has entered. */
static void begin_modules(struct writer *writer, const struct thread *thread, ms_path kept)
{
    ms_path entered[MAX_DEPTH];
    size_t count = 0;
    for (ms_path at = thread->path; at != kept; at = thread->is_alone ? kept : writer->modules[at].parent)
        entered[count++] = at;
    while (count)
        begin_module(writer, track_of_thread(writer, thread), entered[--count], thread->phase);
}

static void note_left_out_slices(struct writer *writer)
{
    if (!writer->left_out_slices)
        put_instant(writer, NOTES, "from here on some modules are shown without the modules around them");
    writer->left_out_slices = true;
}

static void move_thread(struct writer *writer, struct thread *thread, uint8_t phase, ms_path path)
{
    uint64_t phases = track_of_thread(writer, thread) + 1;
    path = path < writer->module_count ? path : MS_UNKNOWN;
    if (phase == thread->phase && path == thread->path)
        return;
    ms_path kept = find_kept(writer, thread, phase, path);
    bool is_alone = !pay_for_slices(writer, kept, path);
    if (is_alone) {
        note_left_out_slices(writer);
        kept = MS_GLOBAL;
    }
    end_modules(writer, thread, kept);
    if (phase != thread->phase && thread->phase != MS_IDLE)
        ms__export_end_slice(&writer->packets, phases);
    if (phase != thread->phase && phase != MS_IDLE)
        ms__export_begin_slice(&writer->packets, phases, NAME_PHASES + phase, CATEGORY_PHASE);
    thread->phase = phase;
    thread->path = path;
    thread->is_alone = is_alone;
    begin_modules(writer, thread, kept);
}

/* ---- steps, peaks and failed allocations ---- */
static void put_step(struct writer *writer, uint64_t number)
{
    uint8_t digits[MS_EXPORT_MAX_DIGITS];
    ms_export_text text = {(const char *)digits, (size_t)(ms__export_digits(digits, number) - digits)};
    if (writer->in_step)
        ms__export_end_slice(&writer->packets, STEPS);
    writer->in_step = true;
    ms__export_open_named_slice(&writer->packets, STEPS, name_of("step ", text, ""));
    ms__export_annotate(&writer->packets, "step", number);
    ms__export_close_event(&writer->packets);
}

static void put_peak(struct writer *writer, uint32_t device)
{
    ms__export_packets *packets = &writer->packets;
    const ms_capture_peak *peak = &writer->survey.peaks[device];
    const char *suffix = writer->survey.is_lower_bound ? " (at least)" : "";
    ms__export_open_instant(packets, PEAKS, name_of("peak of ", ms__export_device(writer->job, device), suffix));
    ms__export_annotate(packets, "bytes", (uint64_t)peak->bytes);
    ms__export_annotate(packets, "reserved", peak->reserved);
    ms__export_annotate(packets, "moment", peak->moment);
    ms__export_annotate(packets, "step", peak->step);
    ms__export_annotate_text(packets, "phase", ms__export_text_of(ms_phase_name(peak->phase)));
    ms__export_annotate_text(packets, "module", ms__export_module(writer->job, peak->running));
    ms__export_close_event(packets);
}

/* Put the peaks that are reached at the cursor's moment. MS_ENOMEM. */
static int put_peaks(struct writer *writer, const ms_cursor *cursor)
{
    int error = MS_OK;
    for (uint32_t device = 0; !error && device < writer->survey.devices; device++)
        if (writer->survey.peaks[device].bytes && writer->survey.peaks[device].moment == ms_cursor_moment(cursor)) {
            put_peak(writer, device);
            error = ms__export_peak_profiles_write(writer->profiles, &writer->packets, cursor, device);
        }
    return error;
}

static void put_oom_instant(struct writer *writer, const struct thread *thread, const ms_event *event)
{
    ms__export_packets *packets = &writer->packets;
    ms_export_text device = ms__export_text_cut(ms__export_device(writer->job, event->device), MAX_NAME_IN_INSTANT);
    ms_export_text module = ms__export_text_cut(ms__export_module(writer->job, event->path), MAX_NAME_IN_INSTANT);
    ms__export_open_instant(packets, track_of_thread(writer, thread), name_of("out of memory on ", device, ""));
    ms__export_annotate(packets, "requested", event->bytes);
    ms__export_annotate(packets, "allocated", event->allocated);
    ms__export_annotate(packets, "reserved", event->reserved);
    ms__export_annotate_text(packets, "device", device);
    ms__export_annotate_text(packets, "phase", ms__export_text_of(ms_phase_name(event->phase)));
    ms__export_annotate_text(packets, "module", module);
    ms__export_close_event(packets);
}

/* ---- events ---- */

/* Trace time never goes back. Events of the same microsecond get successive nanoseconds, the last of which is shared if
 * there are more than a thousand. */
static void set_trace_time(struct writer *writer, uint64_t micros)
{
    uint64_t *time = &writer->packets.time;
    micros = micros > UINT64_MAX / 2000 ? UINT64_MAX / 2000 : micros;
    ms__export_collective_track_write(writer->collectives, &writer->packets, writer->job, micros * 1000);
    if (micros > writer->micros) {
        writer->micros = micros;
        *time = micros * 1000;
    } else if (*time < writer->micros * 1000 + 999) {
        ++*time;
    }
}

static int move_all_threads(struct writer *writer, const ms_cursor *cursor)
{
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    for (size_t i = 0; i < writer->thread_count; i++)
        writer->threads[i].in_key_frame = false;
    for (size_t i = 0; ms_cursor_thread(cursor, i, &number, &id, &phase, &path); i++) {
        bool is_idle = phase == MS_IDLE && path == MS_GLOBAL;
        if (is_idle && !ms__map_has(&writer->by_number, number))
            continue;
        struct thread *thread = find_thread(writer, number);
        if (!thread)
            return MS_ENOMEM;
        thread->in_key_frame = true;
        move_thread(writer, thread, (uint8_t)phase, path);
    }
    for (size_t i = 0; i < writer->thread_count; i++)
        if (!writer->threads[i].in_key_frame)
            move_thread(writer, &writer->threads[i], MS_IDLE, MS_GLOBAL);
    return MS_OK;
}

static int perfetto_on_key_frame(void *self, const ms_cursor *cursor, bool first)
{
    struct writer *writer = self;
    set_trace_time(writer, ms_cursor_time(cursor));
    int error = ms__export_counters_load_key_frame(writer->counters, &writer->packets, cursor);
    if (!error)
        error = ms__export_block_tracks_load_key_frame(writer->blocks, &writer->packets, cursor);
    if (error)
        return error;
    if (!first || ms_cursor_is_lower_bound(cursor))
        put_instant(writer, NOTES, "events are missing before this: figures are at least");
    if (ms_cursor_step(cursor))
        put_step(writer, ms_cursor_step(cursor));
    error = put_peaks(writer, cursor);
    return error ? error : move_all_threads(writer, cursor);
}

static int on_thread_event(struct writer *writer, const ms_event *event)
{
    struct thread *thread = find_thread(writer, event->thread);
    if (!thread)
        return MS_ENOMEM;
    if (event->op == MS_OP_POSITION)
        move_thread(writer, thread, event->phase, event->path);
    else
        put_oom_instant(writer, thread, event);
    return MS_OK;
}

static int on_block_event(struct writer *writer, const ms_cursor *cursor, const ms_event *event)
{
    int error = ms__export_counters_apply(writer->counters, &writer->packets, cursor, event);
    if (!error)
        error = ms__export_block_tracks_apply(writer->blocks, &writer->packets, event);
    return error || event->op != MS_OP_ADD ? error : put_peaks(writer, cursor);
}

static int perfetto_on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct writer *writer = self;
    set_trace_time(writer, event->time);
    switch (event->op) {
    case MS_OP_ADD:
    case MS_OP_DROP:
    case MS_OP_CLAIM:
        return on_block_event(writer, cursor, event);
    case MS_OP_POSITION:
    case MS_OP_OOM:
        return on_thread_event(writer, event);
    case MS_OP_STEP:
        put_step(writer, event->bytes);
        break;
    case MS_OP_OPTIMIZER_STEP:
        put_instant(writer, STEPS, "optimizer step ended");
        break;
    case MS_OP_RESERVED:
        ms__export_counters_set_reserved(writer->counters, &writer->packets, cursor, event->device);
        break;
    default:
        break;
    }
    return MS_OK;
}

/* ---- beginning and end ---- */
static bool load_modules(struct writer *writer)
{
    const ms_reader *reader = writer->job->reader;
    uint32_t count = ms_reader_paths(reader);
    writer->module_count = count > MS_UNKNOWN ? count : MS_UNKNOWN + 1;
    writer->modules = calloc(writer->module_count, sizeof *writer->modules);
    if (!writer->modules)
        return false;
    writer->modules[MS_UNKNOWN].depth = 1;
    for (uint32_t i = MS_UNKNOWN + 1; i < count; i++) {
        ms_path parent;
        uint32_t nth;
        ms_reader_path(reader, i, &parent, &nth);
        parent = parent < i ? parent : MS_GLOBAL;
        parent = writer->modules[parent].depth < MAX_DEPTH ? parent : writer->modules[parent].parent;
        writer->modules[i] = (struct module_node){.parent = parent, .depth = writer->modules[parent].depth + 1};
    }
    return true;
}

static void put_trace_head(struct writer *writer)
{
    ms__export_packets *packets = &writer->packets;
    ms__export_packets_begin(packets, writer->job->began);
    ms__export_track_process(packets, PROCESS, writer->job->pid, writer->job->title);
    ms__export_track(packets, STEPS, PROCESS, ms__export_text_of("steps"), 0);
    ms__export_track(packets, PEAKS, PROCESS, ms__export_text_of("peaks"), 1);
    ms__export_track(packets, NOTES, PROCESS, ms__export_text_of("notes"), 2);
    ms__export_collective_track_begin(writer->collectives, packets, PROCESS);
    for (uint32_t i = 0; i < MS_PHASE_COUNT; i++) {
        ms__export_intern_name(packets, NAME_PHASES + i, ms__export_text_of(ms_phase_name(i)));
        ms__export_intern_category(packets, CATEGORY_PHASES + i, ms__export_text_of(ms_phase_name(i)));
    }
    ms__export_intern_category(packets, CATEGORY_PHASE, ms__export_text_of("phase"));
}

static void put_trace_tail(struct writer *writer)
{
    set_trace_time(writer, ms_reader_get_status(writer->job->reader).duration);
    for (size_t i = 0; i < writer->thread_count; i++)
        move_thread(writer, &writer->threads[i], MS_IDLE, MS_GLOBAL);
    ms__export_block_tracks_end(writer->blocks, &writer->packets);
    if (writer->in_step)
        ms__export_end_slice(&writer->packets, STEPS);
    ms__export_collective_track_write(writer->collectives, &writer->packets, writer->job, UINT64_MAX / 2);
}

static int write_trace(struct writer *writer)
{
    static const ms__export_walk_handler handler = {perfetto_on_key_frame, perfetto_on_event};
    int error = ms_reader_survey(writer->job->reader, &writer->survey, NULL, NULL);
    if (!error)
        error = ms__export_collective_track_open(writer->job, COLLECTIVES, &writer->collectives);
    if (!error)
        error = ms__export_counters_open(writer->job, PROCESS, DEVICES, &writer->counters);
    if (!error)
        error = ms__export_block_tracks_open(writer->job, &writer->survey, writer->counters, BLOCKS, &writer->blocks);
    if (!error)
        error = ms__export_peak_profiles_open(writer->job, &writer->profiles);
    if (error)
        return error;
    put_trace_head(writer);
    error = ms__export_walk(writer->job, &handler, writer, &writer->packets.output, 0, 1);
    if (!error)
        put_trace_tail(writer);
    return error && error != MS_ESTOPPED ? error : ms__export_packets_end(&writer->packets);
}

int ms_export_perfetto(const ms_export_job *job)
{
    struct writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return MS_ENOMEM;
    writer->job = job;
    writer->slices_left = SLICES_IN_ADVANCE;
    bool ready = ms__export_packets_open(&writer->packets, job) && load_modules(writer);
    int error = ready ? write_trace(writer) : MS_ENOMEM;
    ms__export_packets_close(&writer->packets);
    ms__export_block_tracks_close(writer->blocks);
    ms__export_peak_profiles_close(writer->profiles);
    ms__export_counters_close(writer->counters);
    ms__export_collective_track_close(writer->collectives);
    ms__map_clear(&writer->by_number);
    free(writer->threads);
    free(writer->modules);
    free(writer);
    return error;
}
