/* walk.c - goes through a capture from its beginning to a moment. */
#include "export/walk.h"

enum { PROGRESS_EVENTS = 4096 }; /* events between two updates of the progress */

static int walk_event(const ms_export_job *job, const ms__export_walk_handler *handler, void *self, ms_cursor *cursor,
                      bool *at_end)
{
    ms_event event;
    int error = ms_cursor_next_or_jump(cursor, &event);
    *at_end = error == MS_EEND || (error == MS_JUMPED && ms_cursor_moment(cursor) > job->last);
    if (*at_end)
        return MS_OK;
    if (error == MS_JUMPED)
        return handler->key_frame(self, cursor, false);
    return error ? error : handler->event(self, cursor, &event);
}

static int walk_events(const ms_export_job *job, const ms__export_walk_handler *handler, void *self, ms_cursor *cursor,
                       ms__export_output *output, double part, double share)
{
    uint64_t events = ms_reader_get_status(job->reader).events;
    double all = (double)(job->last < events ? job->last : events) + 1;
    bool at_end = false;
    int error = handler->key_frame(self, cursor, true);
    for (uint64_t i = 0; !error && !at_end && ms_cursor_moment(cursor) < job->last; i++) {
        error = walk_event(job, handler, self, cursor, &at_end);
        if (i % PROGRESS_EVENTS == 0)
            output->part = part + share * ((double)ms_cursor_moment(cursor) / all);
        if (!error && output->failed)
            error = MS_ESTOPPED;
    }
    return error;
}

int ms__export_walk(const ms_export_job *job, const ms__export_walk_handler *handler, void *self,
                    ms__export_output *output, double part, double share)
{
    ms_cursor *cursor;
    int error = ms_cursor_open(job->reader, &cursor);
    if (error)
        return error;
    error = ms_cursor_load_later_claims(cursor);
    if (!error)
        error = walk_events(job, handler, self, cursor, output, part, share);
    ms_cursor_close(cursor);
    return error;
}
