/* rows.c - one row an event: CSV with a line of headings, or JSON, an object a line. The columns are in docs/export.md.
 */
#include "export/play.h"

#include <string.h>

struct rows {
    const mse_job *job;
    const ms_cursor *cursor;
    const ms_event *event; /* NULL at a key frame */
    mse_sink sink;
    mse_live live;
    bool json;
    bool is_lower_bound;
    bool first; /* column of a row */
};

struct row {
    const char *kind;
    const mse_block *block;       /* or NULL */
    const uint64_t *bytes, *step; /* or NULL */
    uint32_t device, phase;       /* or MSE_NONE */
    ms_path path;                 /* or MSE_NONE */
};

/* ---- columns: each is begun by its name, and a value or nothing follows ---- */
static void column(struct rows *rows, const char *name)
{
    mse_sink *sink = &rows->sink;
    if (!rows->first || rows->json)
        mse_put_byte(sink, rows->first ? '{' : ',');
    rows->first = false;
    if (!rows->json)
        return;
    mse_put_byte(sink, '"');
    mse_put_word(sink, name);
    mse_put(sink, "\":", 2);
}

static void nothing(struct rows *rows)
{
    if (rows->json)
        mse_put_word(&rows->sink, "null");
}

static void put_number(struct rows *rows, const char *name, const uint64_t *number)
{
    column(rows, name);
    if (number)
        mse_put_number(&rows->sink, *number);
    else
        nothing(rows);
}

static void put_word(struct rows *rows, const char *name, const char *word)
{
    column(rows, name);
    if (!word) {
        nothing(rows);
        return;
    }
    if (rows->json)
        mse_put_byte(&rows->sink, '"');
    mse_put_word(&rows->sink, word);
    if (rows->json)
        mse_put_byte(&rows->sink, '"');
}

/* Seconds, as exact as the capture. */
static void put_time(struct rows *rows, uint64_t time)
{
    column(rows, "time");
    uint8_t *to = mse_digits(mse_room(&rows->sink), time / 1000000), *last = to + 6;
    *to = '.';
    for (uint64_t rest = time % 1000000; last > to; rest /= 10)
        *last-- = (uint8_t)('0' + rest % 10);
    rows->sink.at = to + 7;
}

static void put_device(struct rows *rows, uint32_t device)
{
    column(rows, "device");
    if (device == MSE_NONE)
        nothing(rows);
    else
        mse_put_text(&rows->sink, mse_device(rows->job, device));
}

static void put_module(struct rows *rows, ms_path path)
{
    column(rows, "module");
    if (path == MSE_NONE)
        nothing(rows);
    else
        mse_put_text(&rows->sink, mse_module(rows->job, path));
}

static void put_id(struct rows *rows, const mse_block *block)
{
    column(rows, "block");
    if (!block) {
        nothing(rows);
        return;
    }
    if (block->id < 0)
        mse_put_byte(&rows->sink, '-');
    mse_put_number(&rows->sink, (uint64_t)(block->id < 0 ? -block->id : block->id));
}

static void put_unsure(struct rows *rows)
{
    column(rows, "is_lower_bound");
    mse_put_word(&rows->sink,
                 rows->json ? (rows->is_lower_bound ? "true" : "false") : (rows->is_lower_bound ? "1" : "0"));
}

/* ---- rows ---- */
static uint64_t held_on(const struct rows *rows, uint32_t device)
{
    ms_sums sums = ms_cursor_now(rows->cursor, device);
    uint64_t held = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        held += (uint64_t)sums.of[i];
    return held;
}

static int put_row(struct rows *rows, const struct row *row)
{
    const ms_event *event = rows->event;
    uint64_t number = event ? event->number : ms_cursor_moment(rows->cursor), step = ms_cursor_step(rows->cursor);
    uint64_t thread = event ? event->thread : 0, held = 0, reserved = 0;
    bool on_device = row->device != MSE_NONE;
    if (on_device) {
        held = held_on(rows, row->device);
        reserved = ms_cursor_reserved(rows->cursor, row->device);
    }
    rows->first = true;
    put_number(rows, "event", &number);
    put_time(rows, event ? event->time : ms_cursor_time(rows->cursor));
    put_word(rows, "kind", row->kind);
    put_number(rows, "thread", event ? &thread : NULL);
    put_device(rows, row->device);
    put_number(rows, "bytes", row->bytes);
    put_word(rows, "category", row->block ? mse_categories[row->block->category] : NULL);
    put_module(rows, row->path);
    put_word(rows, "phase", row->phase == MSE_NONE ? NULL : mse_phases[row->phase]);
    put_number(rows, "step", row->step ? row->step : &step);
    put_id(rows, row->block);
    put_number(rows, "held", on_device ? &held : NULL);
    put_number(rows, "reserved", on_device ? &reserved : NULL);
    put_unsure(rows);
    mse_put(&rows->sink, rows->json ? "}\n" : "\n", rows->json ? 2 : 1);
    return MS_OK;
}

static int put_block(struct rows *rows, const mse_block *block, const char *kind, const uint64_t *step)
{
    return put_row(rows, &(struct row){.kind = kind,
                                       .block = block,
                                       .bytes = &block->bytes,
                                       .step = step,
                                       .device = block->device,
                                       .phase = block->phase,
                                       .path = block->path});
}

static int begin(void *self, mse_block *block, mse_how how)
{
    /* What was there before was made in another step. */
    return how == MSE_SEEN ? put_block(self, block, "add", NULL) : put_block(self, block, "held", &block->step);
}

static int end(void *self, const mse_block *block, mse_how how)
{
    return put_block(self, block, how == MSE_SEEN ? "drop" : "gone", NULL);
}

static int change(void *self, const mse_block *before, mse_block *block)
{
    (void)before;
    return put_block(self, block, "claim", NULL);
}

static int put_plain(struct rows *rows, const ms_event *event)
{
    struct row row = {.device = MSE_NONE, .phase = MSE_NONE, .path = MSE_NONE};
    switch (event->op) {
    case MS_OP_STEP:
        row.kind = "step";
        break;
    case MS_OP_OPTIMIZER_STEP:
        row.kind = "optimizer_step";
        break;
    case MS_OP_POSITION:
        row.kind = "position";
        break;
    case MS_OP_RESERVED:
        row.kind = "reserved";
        break;
    case MS_OP_OOM:
        row.kind = "oom";
        break;
    default: /* what follows is another thread's: every row says whose it is */
        return MS_OK;
    }
    if (event->op == MS_OP_POSITION || event->op == MS_OP_OOM) {
        row.phase = event->phase;
        row.path = event->path;
    }
    if (event->op == MS_OP_RESERVED || event->op == MS_OP_OOM) {
        row.bytes = &event->bytes;
        row.device = event->device;
    }
    return put_row(rows, &row);
}

/* ---- the player ---- */
static int on_key(void *self, const ms_cursor *cursor, bool first)
{
    struct rows *rows = self;
    (void)first;
    rows->cursor = cursor;
    rows->event = NULL;
    rows->is_lower_bound = ms_cursor_is_lower_bound(cursor);
    return mse_live_key(&rows->live, cursor);
}

static int on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct rows *rows = self;
    rows->event = event;
    int error = mse_live_event(&rows->live, cursor, event);
    return error ? error : put_plain(rows, event);
}

static int write_rows(const mse_job *job, bool json)
{
    static const mse_watcher watcher = {begin, end, change};
    static const mse_player player = {on_key, on_event};
    struct rows rows = {.job = job, .json = json};
    rows.live = (mse_live){.watcher = &watcher, .self = &rows, .devices = UINT64_MAX};
    if (!mse_sink_open(&rows.sink, job))
        return MS_ENOMEM;
    if (!json)
        mse_put_word(&rows.sink, "event,time,kind,thread,device,bytes,category,module,phase,step,block,held,reserved,"
                                 "is_lower_bound\n");
    int error = mse_play(job, &player, &rows, &rows.sink, 0, 1);
    mse_sink_flush(&rows.sink);
    if (!error && rows.sink.failed)
        error = MS_ESTOPPED;
    mse_sink_close(&rows.sink);
    mse_live_close(&rows.live);
    return error;
}

int mse_csv(const mse_job *job)
{
    return write_rows(job, false);
}

int mse_json(const mse_job *job)
{
    return write_rows(job, true);
}
