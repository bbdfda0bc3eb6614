/* play.c - a capture from its beginning to a moment. */
#include "export/play.h"

enum { STRIDE = 4096 }; /* events between two looks at how far it is */

static int go_on(const mse_job *job, const mse_player *player, void *self, ms_cursor *cursor, bool *at_end)
{
    ms_event event;
    int error = ms_cursor_next_or_jump(cursor, &event);
    *at_end = error == MS_EEND || (error == MS_JUMPED && ms_cursor_moment(cursor) > job->last);
    if (*at_end)
        return MS_OK;
    if (error == MS_JUMPED)
        return player->key(self, cursor, false);
    return error ? error : player->event(self, cursor, &event);
}

static int play(const mse_job *job, const mse_player *player, void *self, ms_cursor *cursor, mse_sink *sink,
                double part, double share)
{
    uint64_t events = ms_reader_get_status(job->reader).events;
    double all = (double)(job->last < events ? job->last : events) + 1;
    bool at_end = false;
    int error = player->key(self, cursor, true);
    for (uint64_t i = 0; !error && !at_end && ms_cursor_moment(cursor) < job->last; i++) {
        error = go_on(job, player, self, cursor, &at_end);
        if (i % STRIDE == 0)
            sink->part = part + share * ((double)ms_cursor_moment(cursor) / all);
        if (!error && sink->failed)
            error = MS_ESTOPPED;
    }
    return error;
}

int mse_play(const mse_job *job, const mse_player *player, void *self, mse_sink *sink, double part, double share)
{
    ms_cursor *cursor;
    int error = ms_cursor_open(job->reader, &cursor);
    if (error)
        return error;
    error = ms_cursor_load_later_claims(cursor);
    if (!error)
        error = play(job, player, self, cursor, sink, part, share);
    ms_cursor_close(cursor);
    return error;
}
