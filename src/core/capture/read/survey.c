/* survey.c - one look at all events of a capture, or some: when each device held most, and what
 * time went by in. */
#include "core/capture/read/reader.h"

enum { PROGRESS_PARTS = 256 }; /* of the file, between two words of progress */

struct surveyor {
    ms_cursor *cursor;
    ms_survey *survey;
    ms_phase phase;       /* that time goes by in... */
    uint64_t since, time; /* ...from then to the last event */
    bool (*progress)(void *context, double done);
    void *context;
    uint64_t told; /* where in the file progress was told last */
};

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Time went by in the phase until now. It does not go back. */
static void count_time(struct surveyor *look, uint64_t until)
{
    if (until > look->since)
        look->survey->phases[look->phase].time += until - look->since;
    look->since = until;
    look->phase = ms__state_phase(&look->cursor->state);
}

static void look_at_total(const struct surveyor *look, uint32_t device, ms_phase phase, ms_path running)
{
    const ms_cursor *cursor = look->cursor;
    ms_capture_peak *peaks = &look->survey->peaks[device];
    if (cursor->state.total[device] <= peaks->bytes)
        return;
    *peaks = (ms_capture_peak){.bytes = cursor->state.total[device],
                               .moment = cursor->moment,
                               .time = cursor->time,
                               .step = cursor->state.step,
                               .phase = phase,
                               .running = running,
                               .reserved = cursor->state.reserved[device]};
}

static void look_at_reserved(const struct surveyor *look, uint32_t device)
{
    uint64_t reserved = look->cursor->state.reserved[device], *most = &look->survey->peak_reserved[device];
    *most = reserved > *most ? reserved : *most;
}

/* At a key frame, before which something is missing. It tells what is held, but not who made it most. */
static void look_at_key(struct surveyor *look, ms_path running)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        look_at_total(look, device, MS_IDLE, running);
        look_at_reserved(look, device);
    }
    count_time(look, look->time);
    look->since = look->time = look->cursor->time;
}

/* Where the thread is whose block it is; if the block was made in another phase, only the block knows. */
static ms_path running(const struct ms__state *state, const ms_event *event)
{
    ms_phase phase = state->who < state->thread_count ? (ms_phase)state->threads[state->who].phase : MS_IDLE;
    if (phase != event->phase)
        return event->path;
    return state->who < state->thread_count ? state->threads[state->who].path : MS_GLOBAL;
}

static void look_at_event(struct surveyor *look, const ms_event *event)
{
    ms_survey *survey = look->survey;
    survey->events[event->op]++;
    look->time = event->time;
    switch (event->op) {
    case MS_OP_ADD:
        survey->phases[event->phase].blocks++;
        survey->phases[event->phase].bytes = sum(survey->phases[event->phase].bytes, event->bytes);
        look_at_total(look, event->device, event->phase, running(&look->cursor->state, event));
        break;
    case MS_OP_POSITION:
    case MS_OP_THREAD:
        count_time(look, event->time);
        break;
    case MS_OP_RESERVED:
        look_at_reserved(look, event->device);
        break;
    case MS_OP_OOM:
        survey->last_oom = event->number + 1;
        survey->first_oom = survey->oom_count++ ? survey->first_oom : survey->last_oom;
        break;
    default:
        break;
    }
}

/* Whether to go on. */
static bool tell_progress(struct surveyor *look)
{
    const ms_reader *reader = look->cursor->reader;
    uint64_t at = reader->chunks[look->cursor->at - 1].at;
    if (!look->progress || at - look->told < reader->bytes / PROGRESS_PARTS)
        return true;
    look->told = at;
    return look->progress(look->context, (double)at / (double)reader->bytes);
}

static int look_at_all(struct surveyor *look)
{
    struct ms__raw raw;
    for (size_t at = look->cursor->at;;) {
        int error = ms__cursor_next(look->cursor, &raw);
        if (error == MS__AT_KEY)
            look_at_key(look, MS_UNKNOWN);
        else if (error)
            return error == MS_EEND ? MS_OK : error;
        else
            look_at_event(look, &raw.event);
        if (look->cursor->at == at)
            continue;
        at = look->cursor->at;
        if (!tell_progress(look))
            return MS_ESTOPPED;
    }
}

static void conclude(struct surveyor *look)
{
    const ms_cursor *cursor = look->cursor;
    const ms_reader *reader = cursor->reader;
    /* What came after the last event was still that phase, if nothing is missing. */
    count_time(look, cursor->stuck ? look->time : reader->duration);
    look->survey->devices = reader->devices;
    look->survey->steps = cursor->state.step;
    look->survey->optimizer_steps = cursor->state.optimizer_steps;
    look->survey->last = cursor->moment;
    look->survey->is_lower_bound = ms_cursor_is_lower_bound(cursor) || reader->damaged || reader->lost;
}

int ms_reader_survey(ms_reader *reader, ms_survey *survey, bool (*progress)(void *context, double done), void *context)
{
    memset(survey, 0, sizeof *survey);
    struct surveyor look = {.survey = survey, .progress = progress, .context = context};
    int error = ms_cursor_open(reader, &look.cursor);
    if (error)
        return error;
    survey->first = ms_cursor_moment(look.cursor);
    look.since = look.time = ms_cursor_time(look.cursor);
    look_at_key(&look, MS_GLOBAL);
    error = look_at_all(&look);
    if (!error)
        conclude(&look);
    ms_cursor_close(look.cursor);
    return error;
}

/* ---- a part of the events ---- */
static void raise(int64_t *most, int64_t total)
{
    *most = total > *most ? total : *most;
}

int ms_cursor_peaks(ms_cursor *cursor, uint64_t moment, int64_t most[MS_MAX_DEVICES])
{
    const struct ms__state *state = &cursor->state;
    if (cursor->settled)
        return MS_EINVAL;
    memcpy(most, state->total, sizeof state->total);
    while (cursor->moment < moment) {
        struct ms__raw raw;
        int error = ms__cursor_next(cursor, &raw);
        if (error < 0)
            return error == MS_EEND ? MS_OK : error;
        if (error == MS_OK && raw.event.op == MS_OP_ADD)
            raise(&most[raw.event.device], state->total[raw.event.device]);
        for (uint32_t device = 0; error == MS__AT_KEY && cursor->moment <= moment && device < MS_MAX_DEVICES; device++)
            raise(&most[device], state->total[device]);
    }
    return MS_OK;
}
