/* oom_report.c - the out-of-memory report: which allocation failed, and which modules hold the memory. Memory has just
 * run out, so the text goes into the caller's buffer and nothing is allocated. */
#include "core/capture/write/encoder.h"
#include "core/ledger/kinds.h"
#include "core/ledger/oom_lines.h"
#include "core/ledger/peaks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { OWNERS_SHOWN = 6, OWNERS_KEPT = 32, LINES_SHOWN = 4, CALLERS_SHOWN = 7, INPUT_TEXT = 160 };

struct text {
    char *buffer;
    size_t room;
    size_t length; /* of the whole text; what is beyond `room` is cut off */
};

static void __attribute__((format(printf, 2, 3))) append(struct text *text, const char *format, ...)
{
    size_t room = text->length < text->room ? text->room - text->length : 0;
    char *end = room ? text->buffer + text->length : NULL;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(end, room, format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): it is not */
    va_end(args);
    text->length += length > 0 ? (size_t)length : 0;
}

int ms_size_text(int64_t bytes, int width, char *text, size_t room)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double amount = (double)bytes;
    size_t unit = 0;
    for (; amount >= 1024 && unit < 5; unit++)
        amount /= 1024;
    const char *padding = width && !unit ? "  " : ""; /* "B" is two letters shorter than "KiB" */
    return snprintf(text, room, "%*.*f %s%s", width, unit ? 2 : 0, amount, units[unit], padding);
}

static void append_bytes(struct text *text, int width, int64_t bytes)
{
    char size[48];
    ms_size_text(bytes, width, size, sizeof size);
    append(text, "%s", size);
}

static void append_step(struct text *text, uint64_t step, bool evaluation)
{
    if (step)
        append(text, evaluation ? "in evaluation after step %llu" : "in step %llu", (unsigned long long)step);
    else
        append(text, "%s", evaluation ? "in evaluation" : "before the first step");
}

/* The words of describe_moment in the Python package. */
static void append_position(struct text *text, const ms_ledger *ledger, uint64_t step, ms_phase phase, ms_path path)
{
    const char *name = path == MS_GLOBAL ? NULL : ms_path_shown(ledger->watch, path);
    append_step(text, step, phase == MS_EVALUATION);
    if (phase == MS_OPTIMIZER)
        append(text, ", in the optimizer's step%s%s", name ? " in " : "", name ? name : "");
    else if (phase == MS_IDLE || phase == MS_EVALUATION)
        append(text, ", %s%s", name ? "in " : "outside any module", name ? name : "");
    else
        append(text, ", %s %s%s", ms_phase_name(phase), name ? "of " : "outside any module", name ? name : "");
}

static void append_device(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    const char *name = ledger->watch->device_names[device];
    if (name[0])
        append(text, "%s", name);
    else
        append(text, "device %u", device);
}

struct owner {
    ms_path path;
    ms_sums sums;
    int64_t total;
};

/* Insert an owner into the list of the largest ones, which is sorted, largest first. */
static void keep_if_large(struct owner *owners, uint32_t *count, const struct owner *owner)
{
    uint32_t at = *count;
    if (at == OWNERS_KEPT && owners[at - 1].total >= owner->total)
        return;
    at = at == OWNERS_KEPT ? at - 1 : (*count)++;
    for (; at && owners[at - 1].total < owner->total; at--)
        owners[at] = owners[at - 1];
    owners[at] = *owner;
}

static uint32_t find_owners(const ms_ledger *ledger, uint32_t device, struct owner *owners)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < totals->room; chunk++)
        for (uint32_t row = 0; totals->chunks[chunk] && row < MS__PATHS_PER_CHUNK; row++) {
            struct owner owner = {.path = chunk * MS__PATHS_PER_CHUNK + row};
            memcpy(&owner.sums, &totals->chunks[chunk]->bytes[ms__total_index(row, 0)], sizeof owner.sums);
            owner.total = ms__sums_total(&owner.sums);
            if (owner.total)
                keep_if_large(owners, &count, &owner);
        }
    return count;
}

/* A module that is called in several places has several paths: add up those that have the same name. */
static uint32_t merge_same_names(const ms_ledger *ledger, struct owner *owners, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct owner owner = owners[i];
        const char *name = ms_path_shown(ledger->watch, owner.path);
        uint32_t same = 0;
        while (same < kept && strcmp(ms_path_shown(ledger->watch, owners[same].path), name) != 0)
            same++;
        if (same == kept) {
            owners[kept++] = owner;
            continue;
        }
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            owners[same].sums.of[category] += owner.sums.of[category];
        owners[same].total += owner.total;
    }
    return kept;
}

static void sort_owners(struct owner *owners, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t at = i; at && owners[at - 1].total < owners[at].total; at--) {
            struct owner swapped = owners[at];
            owners[at] = owners[at - 1];
            owners[at - 1] = swapped;
        }
}

/* For example "Activation 8.00 GiB, Parameter 2.00 GiB": the largest comes first. */
static void append_categories(struct text *text, const ms_sums *sums)
{
    bool done[MS_CATEGORY_COUNT] = {false};
    for (int rank = 0; rank < MS_CATEGORY_COUNT; rank++) {
        int largest = -1;
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            if (!done[category] && sums->of[category] && (largest < 0 || sums->of[category] > sums->of[largest]))
                largest = category;
        if (largest < 0)
            break;
        done[largest] = true;
        append(text, "%s%s ", rank ? ", " : "", ms_category_name((ms_category)largest));
        append_bytes(text, 0, sums->of[largest]);
    }
}

/* The kinds that hold something, for example "  of it: Unsharded Param 2.00 GiB, All Gather 1.00 GiB". */
static void append_kinds(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    ms_kind_sums kinds = ms__kinds_sum(ledger, device);
    bool any = false;
    for (int kind = 1; kind < MS_KIND_COUNT; kind++) {
        if (!kinds.of[kind])
            continue;
        append(text, "%s%s ", any ? ", " : "  of it: ", ms_kind_name((ms_kind)kind));
        append_bytes(text, 0, kinds.of[kind]);
        any = true;
    }
    append(text, any ? "\n" : "");
}

static void append_owners(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    struct owner owners[OWNERS_KEPT] = {{.path = MS_GLOBAL}};
    uint32_t count = merge_same_names(ledger, owners, find_owners(ledger, device, owners));
    sort_owners(owners, count);
    if (count)
        append(text, "  largest owners, by their own bytes:\n");
    for (uint32_t i = 0; i < count && i < OWNERS_SHOWN; i++) {
        ms_path path = owners[i].path;
        append(text, "    ");
        append_bytes(text, 9, owners[i].total);
        append(text, "  %s: ", path == MS_GLOBAL ? "outside any module" : ms_path_shown(ledger->watch, path));
        append_categories(text, &owners[i].sums);
        append(text, "\n");
    }
}

static void append_frame(struct text *text, const char *before, const ms_frame *frame)
{
    append(text, "%s%s:%u in %s", before, frame->file, frame->line, frame->function);
}

/* The frames around the one that requested the memory, from the inside out. Nodes among them are left out. */
static void append_callers(struct text *text, const ms_ledger *ledger, ms_stack stack)
{
    ms_frame frame;
    uint32_t callers = 0;
    for (; ms_stack_frame(ledger->watch, stack, &frame); stack = frame.outer) {
        if (!frame.file)
            continue;
        if (callers++ < CALLERS_SHOWN) {
            append_frame(text, "    called from ", &frame);
            append(text, "\n");
        }
    }
    if (callers > CALLERS_SHOWN)
        append(text, "    (%u more of the frames that were kept)\n", callers - CALLERS_SHOWN);
}

/* The lines that requested the memory; an operator, and in backward the node and the line of the forward. */
static void append_stack(struct text *text, const ms_ledger *ledger, ms_stack stack)
{
    ms_frame frame, forward = {0};
    if (!ms_stack_frame(ledger->watch, stack, &frame))
        return;
    const char *operator= frame.file ? NULL : frame.function;
    while (frame.function && !frame.file) {
        if (frame.forward && !ms_stack_frame(ledger->watch, frame.forward, &forward))
            forward = (ms_frame){0};
        if (!ms_stack_frame(ledger->watch, frame.outer, &frame))
            frame = (ms_frame){0};
    }
    append(text, "  requested by ");
    if (frame.file)
        append_frame(text, "", &frame);
    if (operator)
        append(text, "%s%s", frame.file ? ", by " : "", operator);
    if (forward.file)
        append_frame(text, ", forward at ", &forward);
    append(text, "\n");
    if (frame.file)
        append_callers(text, ledger, frame.outer);
}

static void append_lines(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    struct ms__oom_line lines[LINES_SHOWN];
    uint32_t count = ms__oom_find_lines(ledger, device, lines, LINES_SHOWN);
    if (count)
        append(text, "  lines that made most of it:\n");
    for (uint32_t i = 0; i < count; i++) {
        append(text, "    ");
        append_bytes(text, 9, lines[i].bytes);
        append(text, "  %s:%u in %s\n", lines[i].file, lines[i].line, lines[i].function);
    }
}

static void append_peak(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    const ms_peak *highest = NULL;
    for (const ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next)
        if (!highest || tracker->devices[device].peak.bytes > highest->bytes)
            highest = &tracker->devices[device].peak;
    if (!highest || !highest->bytes)
        return;
    append(text, "  peak so far: ");
    append_bytes(text, 0, highest->bytes);
    append(text, " ");
    append_position(text, ledger, highest->step, highest->phase, highest->running);
    append(text, "\n");
}

/* The shape that the step began with, where it is known and another one came before. */
static void append_inputs(struct text *text, const ms_ledger *ledger, const ms_thread *thread)
{
    const struct ms__noted_inputs *inputs = &ledger->inputs;
    char now[INPUT_TEXT], before[INPUT_TEXT];
    if (!inputs->step || inputs->step != ledger->step || !inputs->before.dim_count ||
        (thread && ms__phase(thread) == MS_EVALUATION))
        return;
    bool same_unit =
        inputs->largest.element == inputs->before.element && inputs->largest.dim_count == inputs->before.dim_count;
    ms_input_text(&inputs->largest, true, now, sizeof now);
    ms_input_text(&inputs->before, true, before, sizeof before);
    if (strcmp(now, before) == 0)
        return;
    ms_input_text(&inputs->before, !same_unit, before, sizeof before);
    append(text, "  step %llu had %s; the largest before was %s\n", (unsigned long long)inputs->step, now, before);
}

/* Only where the allocator reports what it has reserved. */
static void append_reserved(struct text *text, const ms_oom *oom)
{
    if (!oom->reserved)
        return;
    append(text, "  reserved by the allocator: ");
    append_bytes(text, 0, (int64_t)oom->reserved);
    append(text, ", of which ");
    append_bytes(text, 0, oom->reserved > oom->allocated ? (int64_t)(oom->reserved - oom->allocated) : 0);
    append(text, " is free\n");
}

size_t ms_ledger_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom, char *report, size_t room)
{
    struct text text = {.buffer = report, .room = room};
    uint32_t device = oom->device < MS_MAX_DEVICES ? oom->device : 0;
    ms__lock(&ledger->lock);
    if (ms__captured(ledger))
        ms__capture_oom(ledger, thread, oom);
    const struct ms__device_totals *totals = &ledger->totals[device];
    append(&text, "[modscope] out of memory: an allocation of ");
    append_bytes(&text, 0, (int64_t)oom->requested);
    append(&text, " on ");
    append_device(&text, ledger, device);
    append(&text, " failed, ");
    append_position(&text, ledger, ledger->step, thread ? ms__phase(thread) : MS_IDLE,
                    thread ? ms__path_of(thread) : MS_GLOBAL);
    append(&text, "\n");
    append_inputs(&text, ledger, thread);
    append_stack(&text, ledger, oom->stack);
    append(&text, "  allocated on ");
    append_device(&text, ledger, device);
    append(&text, ": %s", ms_ledger_lost(ledger) ? "at least " : "");
    append_bytes(&text, 0, totals->total);
    append(&text, totals->total ? " (" : "");
    append_categories(&text, &totals->now);
    append(&text, totals->total ? ")\n" : "\n");
    append_kinds(&text, ledger, device);
    append_reserved(&text, oom);
    append_peak(&text, ledger, device);
    append_owners(&text, ledger, device);
    append_lines(&text, ledger, device);
    ms__unlock(&ledger->lock);
    return text.length < room ? text.length : room ? room - 1 : 0;
}
