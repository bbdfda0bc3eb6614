/* live.c - what a capture that is still being written says: totals by owner and by line, which follow the events, and
 * what each was at the peak. Each call continues where the one before ended.
 *
 *     row    now | peak, of the device's peak number `peak_of` | ends: now at the last ends of steps
 *
 * A row's value at the latest peak is its present one unless it changed since: the first change after a peak keeps the
 * old value. So a new peak costs nothing for each row. */
#include "core/capture/read/reader.h"
#include "core/capture/read/slot_map.h"

enum { ENDS = MS_LIVE_STEPS + 1 };

struct live_row {
    int64_t now, peak;
    uint64_t peak_of;
    int64_t ends[ENDS];
    bool is_used;
};

struct live_table {
    struct live_row *rows;
    size_t count, room;
};

struct live_device {
    ms_live_device seen;
    uint64_t peaks;              /* how many new peaks there were */
    uint64_t peak_event;         /* of the latest one */
    struct live_table tables[2]; /* by ms_live_kind. A module's row: path * MS_CATEGORY_COUNT + category */
};

struct live_line {
    const char *file, *function;
    uint32_t line;
    ms_stack stack;
    uint32_t next; /* the next line with the same hash; 0: none */
};

struct ms_live {
    ms_reader *reader;
    ms_cursor *cursor;
    struct live_device devices[MS_MAX_DEVICES];
    struct live_line *lines; /* line 0: not known */
    size_t line_count, line_room;
    struct ms__slot_map by_hash; /* -> the first line with that hash */
    uint32_t *line_of;           /* by stack: a line plus 1; 0: not looked up yet */
    size_t stack_count, stack_room;
    uint64_t ends;         /* how many steps have ended */
    uint64_t begins[ENDS]; /* when the latest steps began */
    uint64_t begin_count;  /* how many have */
    uint64_t oom_count;
};

/* ---- lines ---- */

/* As the out-of-memory report names them: the innermost frame, in backward that of the forward if it is known. */
static const ms_frame *innermost_frame(const ms_reader *reader, ms_stack stack)
{
    const ms_frame *frame = NULL;
    while (stack && stack < reader->stack_count) {
        frame = &reader->stacks[stack];
        if (!frame->function || frame->file)
            break;
        ms_stack next = frame->forward ? frame->forward : frame->outer;
        stack = next < stack ? next : (ms_stack)MS_STACK_NONE;
        frame = NULL;
    }
    return frame && frame->file ? frame : NULL;
}

static int add_line(ms_live *live, const ms_frame *frame, ms_stack stack, uint32_t hash, uint32_t first)
{
    const ms_reader *reader = live->reader;
    struct live_line *lines =
        ms__reader_grow(reader, live->lines, &live->line_room, live->line_count + 1, sizeof *lines);
    if (!lines)
        return MS_ENOMEM;
    live->lines = lines;
    if (!ms__slot_map_reserve(reader, &live->by_hash, live->by_hash.count + 1))
        return MS_ENOMEM;
    lines[live->line_count] = (struct live_line){frame->file, frame->function, frame->line, stack, first};
    ms__slot_map_set(&live->by_hash, hash, (uint32_t)live->line_count);
    live->line_count++;
    return MS_OK;
}

/* The line of a frame. The texts of frames are kept once, so their addresses identify them. */
static int find_line(ms_live *live, const ms_frame *frame, ms_stack stack, uint32_t *found)
{
    uint64_t mixed = ((uintptr_t)frame->file ^ (uintptr_t)frame->function << 20 ^ (uint64_t)frame->line << 40) *
                     UINT64_C(0x9E3779B97F4A7C15);
    uint32_t hash = (uint32_t)(mixed >> 32);
    uint32_t first = ms__slot_map_get(&live->by_hash, hash);
    first = first == MS__SLOT_MAP_NONE ? 0 : first;
    for (*found = first; *found; *found = live->lines[*found].next) {
        const struct live_line *line = &live->lines[*found];
        if (line->file == frame->file && line->function == frame->function && line->line == frame->line)
            return MS_OK;
    }
    int error = add_line(live, frame, stack, hash, first);
    *found = (uint32_t)live->line_count - 1;
    return error;
}

static int line_of_stack(ms_live *live, ms_stack stack, uint32_t *line)
{
    *line = 0;
    if (stack < live->stack_count && live->line_of[stack]) {
        *line = live->line_of[stack] - 1;
        return MS_OK;
    }
    const ms_frame *frame = innermost_frame(live->reader, stack);
    if (!frame)
        return MS_OK;
    uint32_t *grown = stack < live->stack_count ? live->line_of
                                                : ms__reader_grow(live->reader, live->line_of, &live->stack_room,
                                                                  (size_t)stack + 1, sizeof *grown);
    if (!grown)
        return MS_ENOMEM;
    live->line_of = grown;
    while (live->stack_count <= stack)
        live->line_of[live->stack_count++] = 0;
    int error = find_line(live, frame, stack, line);
    if (!error)
        live->line_of[stack] = *line + 1;
    return error;
}

/* ---- rows ---- */

/* NULL: out of memory. */
static struct live_row *row_at(const ms_live *live, struct live_table *table, size_t index)
{
    struct live_row *rows = index < table->count
                                ? table->rows
                                : ms__reader_grow(live->reader, table->rows, &table->room, index + 1, sizeof *rows);
    if (!rows)
        return NULL;
    table->rows = rows;
    for (; table->count <= index; table->count++)
        rows[table->count] = (struct live_row){0};
    return &rows[index];
}

static void change_row(const struct live_device *device, struct live_row *row, int64_t bytes, bool at_peak)
{
    if (row->peak_of != device->peaks) {
        row->peak_of = device->peaks;
        row->peak = row->now;
    }
    row->now += bytes;
    row->peak += at_peak ? bytes : 0;
    row->is_used = true;
}

static int change_module(ms_live *live, uint32_t device, ms_path path, uint8_t category, int64_t bytes, bool at_peak)
{
    struct live_device *at = &live->devices[device];
    struct live_row *row = row_at(live, &at->tables[MS_LIVE_MODULES], (size_t)path * MS_CATEGORY_COUNT + category);
    if (!row)
        return MS_ENOMEM;
    change_row(at, row, bytes, at_peak);
    return MS_OK;
}

/* A block comes, or goes with negative bytes. */
static int change_block(ms_live *live, const ms_event *event, int64_t bytes)
{
    struct live_device *at = &live->devices[event->device];
    uint32_t line;
    int error = line_of_stack(live, event->stack, &line);
    struct live_row *row = error ? NULL : row_at(live, &at->tables[MS_LIVE_LINES], line);
    if (!row)
        return MS_ENOMEM;
    change_row(at, row, bytes, false);
    at->seen.now += bytes;
    return change_module(live, event->device, event->path, event->category, bytes, false);
}

static void note_peak(ms_live *live, uint32_t device)
{
    struct live_device *at = &live->devices[device];
    if (at->seen.now <= at->seen.peak)
        return;
    at->seen.peak = at->seen.now;
    at->seen.peak_step = live->cursor->state.step;
    at->peak_event = live->cursor->moment;
    at->peaks++;
}

static int claim_block(ms_live *live, const ms_event *event)
{
    const struct live_device *at = &live->devices[event->device];
    bool at_peak = !event->from_now_on && event->since_event < at->peak_event;
    int error =
        change_module(live, event->device, event->path_before, event->category_before, -(int64_t)event->bytes, at_peak);
    return error ? error
                 : change_module(live, event->device, event->path, event->category, (int64_t)event->bytes, at_peak);
}

/* Events were lost: what is held is in the cursor's state, which a key frame has filled. */
static int restart_from_state(ms_live *live)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct live_device *at = &live->devices[device];
        for (int kind = 0; kind < 2; kind++)
            for (size_t i = 0; i < at->tables[kind].count; i++)
                change_row(at, &at->tables[kind].rows[i], -at->tables[kind].rows[i].now, false);
        at->seen.now = 0;
        uint64_t reserved = live->cursor->state.reserved[device];
        at->seen.peak_reserved = reserved > at->seen.peak_reserved ? reserved : at->seen.peak_reserved;
    }
    ms_captured_block block;
    for (uint32_t i = 0; ms_cursor_block(live->cursor, &i, &block);) {
        ms_event event = {.device = block.device, .path = block.path, .category = block.category, .stack = block.stack};
        int error = change_block(live, &event, (int64_t)block.bytes);
        if (error)
            return error;
    }
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        note_peak(live, device);
    return MS_OK;
}

/* ---- steps ---- */

/* A step begins. What is before the first one is no step. */
static void begin_step(ms_live *live, const ms_event *event)
{
    live->begins[live->begin_count++ % ENDS] = event->time;
    if (event->bytes <= 1)
        return;
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        for (int kind = 0; kind < 2; kind++) {
            struct live_table *table = &live->devices[device].tables[kind];
            for (size_t i = 0; i < table->count; i++)
                table->rows[i].ends[live->ends % ENDS] = table->rows[i].now;
        }
    live->ends++;
}

static uint32_t steps_between_ends(const ms_live *live)
{
    uint64_t steps = live->ends ? live->ends - 1 : 0;
    return (uint32_t)(steps < MS_LIVE_STEPS ? steps : MS_LIVE_STEPS);
}

static uint64_t mean_step_time(const ms_live *live)
{
    uint64_t steps = live->begin_count ? live->begin_count - 1 : 0;
    steps = steps < MS_LIVE_STEPS ? steps : MS_LIVE_STEPS;
    if (!steps)
        return 0;
    uint64_t last = live->begins[(live->begin_count - 1) % ENDS];
    uint64_t first = live->begins[(live->begin_count - 1 - steps) % ENDS];
    return last > first ? (last - first) / steps : 0;
}

/* ---- going on ---- */

static int follow_event(ms_live *live, const ms_event *event)
{
    int error = MS_OK;
    switch (event->op) {
    case MS_OP_ADD:
        error = change_block(live, event, (int64_t)event->bytes);
        note_peak(live, event->device);
        return error;
    case MS_OP_DROP:
        return change_block(live, event, -(int64_t)event->bytes);
    case MS_OP_CLAIM:
        return claim_block(live, event);
    case MS_OP_STEP:
        begin_step(live, event);
        return MS_OK;
    case MS_OP_RESERVED: {
        ms_live_device *seen = &live->devices[event->device].seen;
        seen->peak_reserved = event->bytes > seen->peak_reserved ? event->bytes : seen->peak_reserved;
        return MS_OK;
    }
    case MS_OP_OOM:
        live->oom_count++;
        return MS_OK;
    default:
        return MS_OK;
    }
}

int ms_live_update(ms_live *live, uint64_t events, bool *more)
{
    *more = false;
    int error = ms_reader_refresh(live->reader);
    for (uint64_t i = 0; !error && i < events; i++) {
        struct ms__decoded_event decoded;
        error = ms__cursor_next(live->cursor, &decoded);
        if (error == MS_EEND)
            return MS_OK;
        error = error == MS_JUMPED ? restart_from_state(live) : error ? error : follow_event(live, &decoded.event);
    }
    *more = !error;
    return error;
}

int ms_live_open(ms_reader *reader, ms_live **out)
{
    ms_live *live = ms__reader_alloc(reader, sizeof *live);
    if (!live)
        return MS_ENOMEM;
    *live = (ms_live){.reader = reader};
    live->by_hash.seed = reader->seed;
    int error = add_line(live, &(ms_frame){0}, MS_STACK_NONE, 0, 0);
    if (!error)
        error = ms_cursor_open(reader, &live->cursor);
    if (!error)
        error = restart_from_state(live);
    if (error) {
        ms_live_close(live);
        return error;
    }
    *out = live;
    return MS_OK;
}

void ms_live_close(ms_live *live)
{
    if (!live)
        return;
    const ms_reader *reader = live->reader;
    ms_cursor_close(live->cursor);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        for (int kind = 0; kind < 2; kind++)
            ms__reader_free(reader, live->devices[device].tables[kind].rows);
    ms__reader_free(reader, live->lines);
    ms__reader_free(reader, live->line_of);
    ms__reader_free(reader, live->by_hash.buckets);
    ms__reader_free(reader, live);
}

/* ---- answers ---- */

ms_live_status ms_live_get_status(const ms_live *live)
{
    const struct ms__state *state = &live->cursor->state;
    ms_phase phase = ms__state_phase(state);
    return (ms_live_status){.time = live->cursor->time,
                            .step = state->step,
                            .events = live->cursor->moment,
                            .oom_count = live->oom_count,
                            .step_time = mean_step_time(live),
                            .phase = phase,
                            .running = ms__state_path(state, phase)};
}

ms_live_device ms_live_get_device(const ms_live *live, uint32_t device)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_live_device){0};
    ms_live_device seen = live->devices[device].seen;
    seen.reserved = live->cursor->state.reserved[device];
    seen.growth_steps = steps_between_ends(live);
    return seen;
}

bool ms_live_next_row(const ms_live *live, ms_live_kind kind, uint32_t device, size_t *at, ms_live_row *row)
{
    const struct live_device *of = &live->devices[device < MS_MAX_DEVICES ? device : 0];
    const struct live_table *table = &of->tables[kind];
    while (*at < table->count && !table->rows[*at].is_used)
        ++*at;
    if (device >= MS_MAX_DEVICES || *at >= table->count)
        return false;
    const struct live_row *found = &table->rows[*at];
    uint32_t steps = steps_between_ends(live);
    *row = (ms_live_row){.now = found->now, .peak = found->peak_of == of->peaks ? found->peak : found->now};
    if (steps)
        row->growth = found->ends[(live->ends - 1) % ENDS] - found->ends[(live->ends - 1 - steps) % ENDS];
    if (kind == MS_LIVE_MODULES) {
        row->path = (ms_path)(*at / MS_CATEGORY_COUNT);
        row->category = (uint8_t)(*at % MS_CATEGORY_COUNT);
    } else {
        row->stack = live->lines[*at].stack;
    }
    ++*at;
    return true;
}
