/* event_rows.c - writes one row for each event: CSV with a heading, or JSON with one object per line. docs/export.md
 * lists the columns. */
#include "export/walk.h"

#include <string.h>

struct rows {
    const ms_export_job *job;
    const ms_cursor *cursor;
    const ms_event *event; /* NULL at a key frame */
    ms__export_output output;
    ms__export_held held;
    bool json;
    bool is_lower_bound;
    bool at_first_column;
};

struct row {
    const char *kind;
    const ms__export_block *block; /* or NULL */
    const uint64_t *bytes, *step;  /* or NULL */
    uint32_t device, phase;        /* or MS_EXPORT_NONE */
    ms_path path;                  /* or MS_EXPORT_NONE */
    bool begins;                   /* the first row of the block: it says where the block was made */
};

/* ---- columns ---- */
static void begin_column(struct rows *rows, const char *name)
{
    ms__export_output *output = &rows->output;
    if (!rows->at_first_column || rows->json)
        ms__export_put_byte(output, rows->at_first_column ? '{' : ',');
    rows->at_first_column = false;
    if (!rows->json)
        return;
    ms__export_put_byte(output, '"');
    ms__export_put_string(output, name);
    ms__export_put(output, "\":", 2);
}

static void put_null(struct rows *rows)
{
    if (rows->json)
        ms__export_put_string(&rows->output, "null");
}

static void put_number_column(struct rows *rows, const char *name, const uint64_t *number)
{
    begin_column(rows, name);
    if (number)
        ms__export_put_number(&rows->output, *number);
    else
        put_null(rows);
}

static void put_string_column(struct rows *rows, const char *name, const char *string)
{
    begin_column(rows, name);
    if (!string) {
        put_null(rows);
        return;
    }
    if (rows->json)
        ms__export_put_byte(&rows->output, '"');
    ms__export_put_string(&rows->output, string);
    if (rows->json)
        ms__export_put_byte(&rows->output, '"');
}

/* Seconds with six decimals, which is exact. */
static void put_time_column(struct rows *rows, uint64_t time)
{
    begin_column(rows, "time");
    uint8_t *to = ms__export_digits(ms__export_output_reserve(&rows->output), time / 1000000), *last = to + 6;
    *to = '.';
    for (uint64_t rest = time % 1000000; last > to; rest /= 10)
        *last-- = (uint8_t)('0' + rest % 10);
    rows->output.at = to + 7;
}

/* A text that is written as the format needs it; NULL: there is none. */
static void put_text_column(struct rows *rows, const char *name, ms_export_text text)
{
    begin_column(rows, name);
    if (text.bytes)
        ms__export_put_text(&rows->output, text);
    else
        put_null(rows);
}

static void put_device_column(struct rows *rows, uint32_t device)
{
    put_text_column(rows, "device",
                    device == MS_EXPORT_NONE ? (ms_export_text){NULL, 0} : ms__export_device(rows->job, device));
}

static void put_module_column(struct rows *rows, ms_path path)
{
    put_text_column(rows, "module",
                    path == MS_EXPORT_NONE ? (ms_export_text){NULL, 0} : ms__export_module(rows->job, path));
}

/* NULL: the row is not the first one of a block. */
static void put_place_columns(struct rows *rows, const ms__export_block *block)
{
    ms_export_place place = ms__export_place_of(rows->job, block ? block->stack : (ms_stack)MS_STACK_NONE);
    uint64_t line = place.line;
    put_text_column(rows, "file", place.file);
    put_number_column(rows, "line", line ? &line : NULL);
    put_text_column(rows, "function", place.function);
    put_text_column(rows, "operator", place.operator_name);
}

static void put_block_column(struct rows *rows, const ms__export_block *block)
{
    begin_column(rows, "block");
    if (!block) {
        put_null(rows);
        return;
    }
    if (block->id < 0)
        ms__export_put_byte(&rows->output, '-');
    ms__export_put_number(&rows->output, (uint64_t)(block->id < 0 ? -block->id : block->id));
}

static void put_lower_bound_column(struct rows *rows)
{
    begin_column(rows, "is_lower_bound");
    ms__export_put_string(&rows->output,
                          rows->json ? (rows->is_lower_bound ? "true" : "false") : (rows->is_lower_bound ? "1" : "0"));
}

/* ---- rows ---- */
static uint64_t bytes_held_on(const struct rows *rows, uint32_t device)
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
    bool on_device = row->device != MS_EXPORT_NONE;
    if (on_device) {
        held = bytes_held_on(rows, row->device);
        reserved = ms_cursor_reserved(rows->cursor, row->device);
    }
    rows->at_first_column = true;
    put_number_column(rows, "event", &number);
    put_time_column(rows, event ? event->time : ms_cursor_time(rows->cursor));
    put_string_column(rows, "kind", row->kind);
    put_number_column(rows, "thread", event ? &thread : NULL);
    put_device_column(rows, row->device);
    put_number_column(rows, "bytes", row->bytes);
    put_string_column(rows, "category", row->block ? ms_category_name(row->block->category) : NULL);
    put_module_column(rows, row->path);
    put_string_column(rows, "phase", row->phase == MS_EXPORT_NONE ? NULL : ms_phase_name(row->phase));
    put_number_column(rows, "step", row->step ? row->step : &step);
    put_block_column(rows, row->block);
    put_number_column(rows, "held", on_device ? &held : NULL);
    put_number_column(rows, "reserved", on_device ? &reserved : NULL);
    put_lower_bound_column(rows);
    put_string_column(rows, "block_kind", row->block && row->block->kind ? ms_kind_name(row->block->kind) : NULL);
    put_place_columns(rows, row->begins ? row->block : NULL);
    ms__export_put(&rows->output, rows->json ? "}\n" : "\n", rows->json ? 2 : 1);
    return MS_OK;
}

static int put_block_row(struct rows *rows, const ms__export_block *block, const char *kind, const uint64_t *step,
                         bool begins)
{
    return put_row(rows, &(struct row){.kind = kind,
                                       .begins = begins,
                                       .block = block,
                                       .bytes = &block->bytes,
                                       .step = step,
                                       .device = block->device,
                                       .phase = block->phase,
                                       .path = block->path});
}

static int row_begin(void *self, ms__export_block *block, ms__export_cause cause)
{
    /* A block that a key frame made known was added in an earlier step. */
    return cause == MS_EXPORT_BY_EVENT ? put_block_row(self, block, "add", NULL, true)
                                       : put_block_row(self, block, "held", &block->step, true);
}

static int row_end(void *self, const ms__export_block *block, ms__export_cause cause)
{
    return put_block_row(self, block, cause == MS_EXPORT_BY_EVENT ? "drop" : "gone", NULL, false);
}

static int row_change(void *self, const ms__export_block *before, ms__export_block *block)
{
    (void)before;
    return put_block_row(self, block, "claim", NULL, false);
}

static int put_other_row(struct rows *rows, const ms_event *event)
{
    struct row row = {.device = MS_EXPORT_NONE, .phase = MS_EXPORT_NONE, .path = MS_EXPORT_NONE};
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
    default: /* a thread event has no row: every row has a column for the thread */
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

/* ---- events ---- */
static int rows_on_key_frame(void *self, const ms_cursor *cursor, bool first)
{
    struct rows *rows = self;
    (void)first;
    rows->cursor = cursor;
    rows->event = NULL;
    rows->is_lower_bound = ms_cursor_is_lower_bound(cursor);
    return ms__export_held_load_key_frame(&rows->held, cursor);
}

static int rows_on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct rows *rows = self;
    rows->event = event;
    int error = ms__export_held_apply_event(&rows->held, cursor, event);
    return error ? error : put_other_row(rows, event);
}

static int write_rows(const ms_export_job *job, bool json)
{
    static const ms__export_block_handler block_handler = {row_begin, row_end, row_change};
    static const ms__export_walk_handler walk_handler = {rows_on_key_frame, rows_on_event};
    struct rows rows = {.job = job, .json = json};
    rows.held = (ms__export_held){.handler = &block_handler, .self = &rows, .devices = UINT64_MAX};
    if (!ms__export_output_open(&rows.output, job))
        return MS_ENOMEM;
    if (!json)
        ms__export_put_string(&rows.output,
                              "event,time,kind,thread,device,bytes,category,module,phase,step,block,held,reserved,"
                              "is_lower_bound,block_kind,file,line,function,operator\n");
    int error = ms__export_walk(job, &walk_handler, &rows, &rows.output, 0, 1);
    ms__export_output_flush(&rows.output);
    if (!error && rows.output.failed)
        error = MS_ESTOPPED;
    ms__export_output_close(&rows.output);
    ms__export_held_close(&rows.held);
    return error;
}

int ms_export_csv(const ms_export_job *job)
{
    return write_rows(job, false);
}

int ms_export_json(const ms_export_job *job)
{
    return write_rows(job, true);
}
