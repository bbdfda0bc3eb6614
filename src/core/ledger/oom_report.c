/* oom_report.c - what stood in the way of an allocation, in a dozen lines. Written where memory has
 * just run out: into the caller's buffer, allocating nothing. */
#include "core/ledger/peaks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 6, LOOKED_AT = 32 }; /* modules */

struct text {
    char *at;
    size_t room, used; /* used may go beyond: what does not fit is cut off */
};

static void __attribute__((format(printf, 2, 3))) say(struct text *text, const char *format, ...)
{
    size_t left = text->used < text->room ? text->room - text->used : 0;
    char *at = left ? text->at + text->used : NULL;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(at, left, format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): it is not */
    va_end(args);
    text->used += length > 0 ? (size_t)length : 0;
}

static void say_bytes(struct text *text, int width, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double amount = (double)bytes;
    size_t unit = 0;
    for (; amount >= 1024 && unit < 5; unit++)
        amount /= 1024;
    say(text, "%*.*f %s", width, unit ? 2 : 0, amount, units[unit]);
    if (width && !unit)
        say(text, "  "); /* as wide as the others */
}

static void say_where(struct text *text, const ms_ledger *ledger, uint64_t step, ms_phase phase, ms_path path)
{
    static const char *const phases[] = {"outside any module", "forward", "recompute", "backward", "optimizer"};
    if (step)
        say(text, "in step %llu, %s", (unsigned long long)step, phases[phase]);
    else
        say(text, "before the first step, %s", phases[phase]);
    if (path != MS_GLOBAL)
        say(text, " of %s", ms_path_name(ledger->watch, path));
}

/* ---- devices ---- */
void ms_device_set_name(ms_watch *watch, uint32_t device, const char *name)
{
    if (device >= MS_MAX_DEVICES)
        return;
    pthread_mutex_lock(&watch->lock);
    snprintf(watch->device_names[device], MS__DEVICE_NAME, "%s", name);
    pthread_mutex_unlock(&watch->lock);
}

static void say_device(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    const char *name = ledger->watch->device_names[device];
    if (name[0])
        say(text, "%s", name);
    else
        say(text, "device %u", device);
}

/* ---- who holds what ---- */
struct holder {
    ms_path path;
    ms_sums sums;
    int64_t total;
};

/* Keep the largest, largest first. */
static void keep(struct holder *holders, uint32_t *count, const struct holder *holder)
{
    uint32_t at = *count;
    if (at == LOOKED_AT && holders[at - 1].total >= holder->total)
        return;
    at = at == LOOKED_AT ? at - 1 : (*count)++;
    for (; at && holders[at - 1].total < holder->total; at--)
        holders[at] = holders[at - 1];
    holders[at] = *holder;
}

static uint32_t find_holders(const ms_ledger *ledger, uint32_t device, struct holder *holders)
{
    const struct ms__device *on = &ledger->devices[device];
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < on->room; chunk++)
        for (uint32_t row = 0; on->cells[chunk] && row < MS__CELL_PATHS; row++) {
            struct holder holder = {.path = chunk * MS__CELL_PATHS + row};
            memcpy(&holder.sums, &on->cells[chunk]->now[ms__cell_at(row, 0)], sizeof holder.sums);
            holder.total = ms__total_of(&holder.sums);
            if (holder.total)
                keep(holders, &count, &holder);
        }
    return count;
}

/* A module that is called in several places has several paths: the first of its name takes the others in. */
static uint32_t merge_same_names(const ms_ledger *ledger, struct holder *holders, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct holder holder = holders[i];
        const char *name = ms_path_name(ledger->watch, holder.path);
        uint32_t same = 0;
        while (same < kept && strcmp(ms_path_name(ledger->watch, holders[same].path), name) != 0)
            same++;
        if (same == kept) {
            holders[kept++] = holder;
            continue;
        }
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            holders[same].sums.of[category] += holder.sums.of[category];
        holders[same].total += holder.total;
    }
    return kept;
}

static void sort_again(struct holder *holders, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t at = i; at && holders[at - 1].total < holders[at].total; at--) {
            struct holder swapped = holders[at];
            holders[at] = holders[at - 1];
            holders[at - 1] = swapped;
        }
}

/* "Activation 8.00 GiB, Parameter 2.00 GiB": largest first. */
static void say_categories(struct text *text, const ms_sums *sums)
{
    bool said[MS_CATEGORY_COUNT] = {false};
    for (int round = 0; round < MS_CATEGORY_COUNT; round++) {
        int most = -1;
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            if (!said[category] && sums->of[category] && (most < 0 || sums->of[category] > sums->of[most]))
                most = category;
        if (most < 0)
            break;
        said[most] = true;
        say(text, "%s%s ", round ? ", " : "", ms_category_name((ms_category)most));
        say_bytes(text, 0, sums->of[most]);
    }
}

static void say_modules(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    struct holder holders[LOOKED_AT] = {{.path = MS_GLOBAL}};
    uint32_t count = merge_same_names(ledger, holders, find_holders(ledger, device, holders));
    sort_again(holders, count);
    if (count)
        say(text, "  the largest holders, by their own bytes:\n");
    for (uint32_t i = 0; i < count && i < SHOWN; i++) {
        ms_path path = holders[i].path;
        say(text, "    ");
        say_bytes(text, 9, holders[i].total);
        say(text, "  %s: ", path == MS_GLOBAL ? "outside any module" : ms_path_name(ledger->watch, path));
        say_categories(text, &holders[i].sums);
        say(text, "\n");
    }
}

static void say_peak(struct text *text, const ms_ledger *ledger, uint32_t device)
{
    const ms_peak *most = NULL;
    for (const ms_peak_tracker *viewer = ledger->viewers; viewer; viewer = viewer->next)
        if (!most || viewer->views[device].peak.bytes > most->bytes)
            most = &viewer->views[device].peak;
    if (!most || !most->bytes)
        return;
    say(text, "  most so far: ");
    say_bytes(text, 0, most->bytes);
    say(text, " ");
    say_where(text, ledger, most->step, most->phase, most->running);
    say(text, "\n");
}

/* What the allocator says, where it says it. */
static void say_reserved(struct text *text, const ms_oom *oom)
{
    if (!oom->reserved)
        return;
    say(text, "  reserved by the allocator: ");
    say_bytes(text, 0, (int64_t)oom->reserved);
    say(text, ", of it free: ");
    say_bytes(text, 0, oom->reserved > oom->allocated ? (int64_t)(oom->reserved - oom->allocated) : 0);
    say(text, "\n");
}

size_t ms_ledger_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom, char *story, size_t room)
{
    struct text text = {.at = story, .room = room};
    uint32_t device = oom->device < MS_MAX_DEVICES ? oom->device : 0;
    ms__lock(&ledger->lock);
    if (ms__captured(ledger))
        ms__capture_oom(ledger, thread, oom);
    const struct ms__device *on = &ledger->devices[device];
    say(&text, "[modscope] out of memory: ");
    say_bytes(&text, 0, (int64_t)oom->requested);
    say(&text, " asked on ");
    say_device(&text, ledger, device);
    say(&text, ", ");
    say_where(&text, ledger, ledger->step, thread ? ms__phase(thread) : MS_IDLE,
              thread ? ms__path_of(thread) : MS_GLOBAL);
    say(&text, "\n  held there: %s", ms_ledger_lost(ledger) ? "at least " : "");
    say_bytes(&text, 0, on->total);
    say(&text, on->total ? " (" : "");
    say_categories(&text, &on->now);
    say(&text, on->total ? ")\n" : "\n");
    say_reserved(&text, oom);
    say_peak(&text, ledger, device);
    say_modules(&text, ledger, device);
    ms__unlock(&ledger->lock);
    return text.used < room ? text.used : room ? room - 1 : 0;
}
