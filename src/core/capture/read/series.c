/* series.c - what a device held over time, in columns: of each column, the moment at which it held most. */
#include "core/capture/read/reader.h"

struct series {
    const ms_cursor *cursor;
    uint32_t device;
    const uint64_t *bounds;
    size_t columns;
    ms_sums *most;
    size_t begun;   /* how many columns have begun */
    int64_t total;  /* held now, by the device... */
    int64_t column; /* ...and the most in the latest column */
    ms_sums held;   /* now, by category */
};

static void take_state(struct series *series)
{
    series->total = series->cursor->state.total[series->device];
    series->held = series->cursor->state.now[series->device];
}

static void raise_column(struct series *series)
{
    if (series->begun && series->total > series->column) {
        series->column = series->total;
        series->most[series->begun - 1] = series->held;
    }
}

/* Begin the columns up to `time`: at first each has what is held already. */
static void begin_columns(struct series *series, uint64_t time)
{
    while (series->begun < series->columns && series->bounds[series->begun] <= time) {
        series->most[series->begun++] = series->held;
        series->column = series->total;
    }
}

static bool concerns_device(const struct series *series, const ms_event *event)
{
    return (event->op == MS_OP_ADD || event->op == MS_OP_DROP || event->op == MS_OP_CLAIM) &&
           event->device == series->device;
}

int ms_cursor_series(ms_cursor *cursor, uint32_t device, const uint64_t *bounds, size_t columns, ms_sums *most,
                     size_t *begun)
{
    if (cursor->claims_applied || device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    struct series series = {
        .cursor = cursor, .device = device, .bounds = bounds, .columns = columns, .most = most, .begun = 0};
    int error = MS_OK;
    take_state(&series);
    begin_columns(&series, cursor->time);
    while (cursor->time <= bounds[columns]) {
        struct ms__decoded_event decoded;
        error = ms__cursor_next(cursor, &decoded);
        if (error < 0)
            break;
        begin_columns(&series, cursor->time < bounds[columns] ? cursor->time : bounds[columns]);
        if (cursor->time > bounds[columns])
            break;
        if (error == MS_JUMPED || concerns_device(&series, &decoded.event)) {
            take_state(&series);
            raise_column(&series);
        }
    }
    if (error == MS_EEND && !cursor->at_gap)
        begin_columns(&series, cursor->reader->duration);
    *begun = series.begun;
    return error == MS_EEND || error == MS_JUMPED ? MS_OK : error;
}
