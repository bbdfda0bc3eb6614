/* survey.c - one pass over all events of a capture: peaks, time by phase, totals. And passes over some
 * of them: the peaks between two moments, and the time by module and phase. */
#include "core/capture/read/reader.h"

enum { PROGRESS_PARTS = 256 }; /* progress is reported at most so many times */

struct survey_pass {
    ms_cursor *cursor;
    ms_survey *survey;
    ms_phase phase;       /* the phase that counts... */
    uint64_t phase_begin; /* ...since this time */
    uint64_t latest_time; /* of the latest event */
    bool (*progress)(void *context, double done);
    void *context;
    uint64_t reported; /* the position in the file at the last report of progress */
};

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Count the time until `until` for the phase so far, and begin the phase of the cursor's moment. In a damaged file
 * time may go back; that counts as 0. */
static void count_phase_time(struct survey_pass *pass, uint64_t until)
{
    if (until > pass->phase_begin)
        pass->survey->phases[pass->phase].time += until - pass->phase_begin;
    pass->phase_begin = until;
    pass->phase = ms__state_phase(&pass->cursor->state);
}

static void update_peak(const struct survey_pass *pass, uint32_t device, ms_phase phase, ms_path running)
{
    const ms_cursor *cursor = pass->cursor;
    ms_capture_peak *peak = &pass->survey->peaks[device];
    if (cursor->state.total[device] <= peak->bytes)
        return;
    *peak = (ms_capture_peak){.bytes = cursor->state.total[device],
                              .moment = cursor->moment,
                              .time = cursor->time,
                              .step = cursor->state.step,
                              .phase = phase,
                              .running = running,
                              .reserved = cursor->state.reserved[device]};
}

static void update_peak_reserved(const struct survey_pass *pass, uint32_t device)
{
    uint64_t reserved = pass->cursor->state.reserved[device], *peak = &pass->survey->peak_reserved[device];
    *peak = reserved > *peak ? reserved : *peak;
}

/* A key frame says what is held, but not which thread added the last of it: the phase of a peak is idle, and its
 * path is `running`. */
static void survey_key_frame(struct survey_pass *pass, ms_path running)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        update_peak(pass, device, MS_IDLE, running);
        update_peak_reserved(pass, device);
    }
    count_phase_time(pass, pass->latest_time);
    pass->phase_begin = pass->latest_time = pass->cursor->time;
}

/* The position of the thread that added the block. An explicit add may state another phase than the thread is in; then
 * the block's own path is the best answer. */
static ms_path path_of_add(const struct ms__state *state, const ms_event *event)
{
    const struct ms__captured_thread *thread =
        state->selected < state->thread_count ? &state->threads[state->selected] : NULL;
    ms_phase phase = thread ? (ms_phase)thread->phase : MS_IDLE;
    if (phase != event->phase)
        return event->path;
    return thread ? thread->path : MS_GLOBAL;
}

static void survey_event(struct survey_pass *pass, const ms_event *event)
{
    ms_survey *survey = pass->survey;
    survey->events[event->op]++;
    pass->latest_time = event->time;
    switch (event->op) {
    case MS_OP_ADD:
        survey->phases[event->phase].blocks++;
        survey->phases[event->phase].bytes = add_saturating(survey->phases[event->phase].bytes, event->bytes);
        update_peak(pass, event->device, event->phase, path_of_add(&pass->cursor->state, event));
        break;
    case MS_OP_POSITION:
    case MS_OP_THREAD:
        count_phase_time(pass, event->time);
        break;
    case MS_OP_RESERVED:
        update_peak_reserved(pass, event->device);
        break;
    case MS_OP_OOM:
        survey->last_oom = event->number + 1;
        survey->first_oom = survey->oom_count++ ? survey->first_oom : survey->last_oom;
        break;
    default:
        break;
    }
}

/* False: the caller wants the survey to stop. */
static bool report_progress(struct survey_pass *pass)
{
    const ms_reader *reader = pass->cursor->reader;
    uint64_t at = reader->chunks[pass->cursor->next_chunk - 1].at;
    if (!pass->progress || at - pass->reported < reader->bytes / PROGRESS_PARTS)
        return true;
    pass->reported = at;
    return pass->progress(pass->context, (double)at / (double)reader->bytes);
}

static int survey_events(struct survey_pass *pass)
{
    struct ms__decoded_event decoded;
    for (size_t chunk = pass->cursor->next_chunk;;) {
        int error = ms__cursor_next(pass->cursor, &decoded);
        if (error == MS_JUMPED)
            survey_key_frame(pass, MS_UNKNOWN);
        else if (error)
            return error == MS_EEND ? MS_OK : error;
        else
            survey_event(pass, &decoded.event);
        if (pass->cursor->next_chunk == chunk)
            continue;
        chunk = pass->cursor->next_chunk;
        if (!report_progress(pass))
            return MS_ESTOPPED;
    }
}

/* After the last event the phase lasted until the end of the capture, unless events are missing there. */
static void finish_survey(struct survey_pass *pass)
{
    const ms_cursor *cursor = pass->cursor;
    const ms_reader *reader = cursor->reader;
    count_phase_time(pass, cursor->at_gap ? pass->latest_time : reader->duration);
    pass->survey->devices = reader->devices;
    pass->survey->steps = cursor->state.step;
    pass->survey->optimizer_steps = cursor->state.optimizer_steps;
    pass->survey->last = cursor->moment;
    pass->survey->is_lower_bound = ms_cursor_is_lower_bound(cursor) || reader->damaged || reader->lost;
}

int ms_reader_survey(ms_reader *reader, ms_survey *survey, bool (*progress)(void *context, double done), void *context)
{
    memset(survey, 0, sizeof *survey);
    struct survey_pass pass = {.survey = survey, .progress = progress, .context = context};
    int error = ms_cursor_open(reader, &pass.cursor);
    if (error)
        return error;
    survey->first = ms_cursor_moment(pass.cursor);
    pass.phase_begin = pass.latest_time = ms_cursor_time(pass.cursor);
    survey_key_frame(&pass, MS_GLOBAL);
    error = survey_events(&pass);
    if (!error)
        finish_survey(&pass);
    ms_cursor_close(pass.cursor);
    return error;
}

/* ---- the peaks between two moments ---- */
static void raise_to(int64_t *peak, int64_t total)
{
    *peak = total > *peak ? total : *peak;
}

int ms_cursor_peaks(ms_cursor *cursor, uint64_t moment, int64_t peaks[MS_MAX_DEVICES])
{
    const struct ms__state *state = &cursor->state;
    if (cursor->claims_applied)
        return MS_EINVAL;
    memcpy(peaks, state->total, sizeof state->total);
    while (cursor->moment < moment) {
        struct ms__decoded_event decoded;
        int error = ms__cursor_next(cursor, &decoded);
        if (error < 0)
            return error == MS_EEND ? MS_OK : error;
        if (error == MS_OK && decoded.event.op == MS_OP_ADD)
            raise_to(&peaks[decoded.event.device], state->total[decoded.event.device]);
        for (uint32_t device = 0; error == MS_JUMPED && cursor->moment <= moment && device < MS_MAX_DEVICES; device++)
            raise_to(&peaks[device], state->total[device]);
    }
    return MS_OK;
}

/* ---- the time between two moments, by path and phase ---- */
int ms_cursor_times(ms_cursor *cursor, uint64_t moment, uint64_t *times, uint32_t paths)
{
    const struct ms__state *state = &cursor->state;
    uint64_t begin = cursor->time;
    if (cursor->claims_applied)
        return MS_EINVAL;
    while (cursor->moment < moment) {
        ms_phase phase = ms__state_phase(state);
        ms_path path = ms__state_path(state, phase);
        struct ms__decoded_event decoded;
        int error = ms__cursor_next(cursor, &decoded);
        if (error < 0 && error != MS_EEND)
            return error;
        uint64_t now = error == MS_EEND && !cursor->at_gap ? cursor->reader->duration : cursor->time;
        if (error != MS_JUMPED && now > begin && path < paths)
            times[(size_t)path * MS_PHASE_COUNT + phase] += now - begin;
        begin = now;
        if (error == MS_EEND)
            return MS_OK;
    }
    return MS_OK;
}
