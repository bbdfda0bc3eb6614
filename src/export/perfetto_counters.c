/* perfetto_counters.c - the counters of a Perfetto trace: for each device one for each category and each kind that it
 * ever held, "held" for the sum of the categories, and "reserved". */
#include "base/map.h"
#include "export/perfetto_packets.h"

#include <stdlib.h>

/* The counters of a device: one for each category, then these, then one for each kind. */
enum { HELD = MS_CATEGORY_COUNT, RESERVED, KINDS, COUNTERS = KINDS + MS_KIND_COUNT };
_Static_assert((int)COUNTERS < (int)MS_EXPORT_DEVICE_TRACKS, "a device needs more tracks");

struct ms__export_counters {
    const ms_export_job *job;
    uint64_t parent, first;
    uint32_t named[MS_MAX_DEVICES]; /* bit i: counter i has a track */
    bool has_track[MS_MAX_DEVICES];
    int64_t value[MS_MAX_DEVICES][COUNTERS];
    int64_t kinds[MS_MAX_DEVICES][MS_KIND_COUNT]; /* bytes that are held now */
    struct ms__map kind_of_slot;                  /* of the blocks that have one */
};

int ms__export_counters_open(const ms_export_job *job, uint64_t parent, uint64_t first, ms__export_counters **out)
{
    ms__export_counters *counters = calloc(1, sizeof *counters);
    if (!counters)
        return MS_ENOMEM;
    counters->job = job;
    counters->parent = parent;
    counters->first = first;
    *out = counters;
    return MS_OK;
}

void ms__export_counters_close(ms__export_counters *counters)
{
    if (counters)
        ms__map_clear(&counters->kind_of_slot);
    free(counters);
}

/* ---- tracks ---- */
uint64_t ms__export_counters_device_track(ms__export_counters *counters, ms__export_packets *packets, uint32_t device)
{
    uint64_t track = counters->first + MS_EXPORT_DEVICE_TRACKS * (uint64_t)device;
    if (!counters->has_track[device])
        ms__export_track(packets, track, counters->parent, ms__export_device(counters->job, device),
                         counters->first + device);
    counters->has_track[device] = true;
    return track;
}

static uint64_t track_of_counter(const ms__export_counters *counters, uint32_t device, uint32_t counter)
{
    return counters->first + MS_EXPORT_DEVICE_TRACKS * (uint64_t)device + 1 + counter;
}

static const char *label_of_counter(uint32_t counter)
{
    if (counter >= KINDS)
        return ms_kind_name(counter - KINDS);
    return counter == HELD ? "held" : counter == RESERVED ? "reserved" : ms_category_name(counter);
}

/* "held" and "reserved" are shown before the categories, and these before the kinds. */
static uint64_t rank_of_counter(uint32_t counter)
{
    bool is_sum = counter == HELD || counter == RESERVED;
    return is_sum ? counter - HELD : counter < HELD ? counter + 2 : counter;
}

static void name_counter(ms__export_counters *counters, ms__export_packets *packets, uint32_t device, uint32_t counter)
{
    uint64_t parent = ms__export_counters_device_track(counters, packets, device);
    counters->named[device] |= UINT32_C(1) << counter;
    ms__export_name name = {ms__export_device(counters->job, device), ms__export_text_of(" "),
                            ms__export_text_of(label_of_counter(counter))};
    ms__export_track_counter(packets, track_of_counter(counters, device, counter), parent, name,
                             rank_of_counter(counter));
}

/* Store the counter's value. False: it has not changed. */
static bool set_counter(ms__export_counters *counters, ms__export_packets *packets, uint32_t device, uint32_t counter,
                        int64_t value)
{
    if (counters->value[device][counter] == value)
        return false;
    counters->value[device][counter] = value;
    if (!(counters->named[device] >> counter & 1))
        name_counter(counters, packets, device, counter);
    return true;
}

static void write_counter(ms__export_counters *counters, ms__export_packets *packets, uint32_t device, uint32_t counter,
                          int64_t value)
{
    if (set_counter(counters, packets, device, counter, value))
        ms__export_set_counter(packets, track_of_counter(counters, device, counter), value, 0, 0);
}

/* ---- what is held ---- */

/* Write the counters that have changed. "held" is written in the same event as the first changed category. */
static void write_held(ms__export_counters *counters, ms__export_packets *packets, const ms_cursor *cursor,
                       uint32_t device)
{
    ms_sums sums = ms_cursor_now(cursor, device);
    int64_t held = 0;
    for (uint32_t i = 0; i < MS_CATEGORY_COUNT; i++)
        held += sums.of[i];
    bool has_changed = set_counter(counters, packets, device, HELD, held);
    uint64_t held_track = has_changed ? track_of_counter(counters, device, HELD) : 0;
    for (uint32_t i = 0; i < MS_CATEGORY_COUNT; i++)
        if (set_counter(counters, packets, device, i, sums.of[i])) {
            ms__export_set_counter(packets, track_of_counter(counters, device, i), sums.of[i], held_track, held);
            held_track = 0;
        }
}

void ms__export_counters_set_reserved(ms__export_counters *counters, ms__export_packets *packets,
                                      const ms_cursor *cursor, uint32_t device)
{
    write_counter(counters, packets, device, RESERVED, (int64_t)ms_cursor_reserved(cursor, device));
}

/* ---- kinds: most captures have none ---- */
static int set_kind(ms__export_counters *counters, uint32_t slot, uint8_t kind)
{
    if (kind)
        return ms__map_set(&counters->kind_of_slot, slot, kind) ? MS_OK : MS_ENOMEM;
    ms__map_remove(&counters->kind_of_slot, slot);
    return MS_OK;
}

static void write_kind(ms__export_counters *counters, ms__export_packets *packets, uint32_t device, uint32_t kind)
{
    write_counter(counters, packets, device, KINDS + kind, counters->kinds[device][kind]);
}

static int load_kinds(ms__export_counters *counters, ms__export_packets *packets, const ms_cursor *cursor)
{
    ms_captured_block block;
    int error = MS_OK;
    ms__map_clear(&counters->kind_of_slot);
    memset(counters->kinds, 0, sizeof counters->kinds);
    for (uint32_t at = 0; !error && ms_cursor_block(cursor, &at, &block);)
        if (block.kind) {
            counters->kinds[block.device][block.kind] += (int64_t)block.bytes;
            error = set_kind(counters, block.slot, block.kind);
        }
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        for (uint32_t kind = 1; kind < MS_KIND_COUNT; kind++)
            write_kind(counters, packets, device, kind);
    return error;
}

static int apply_kind(ms__export_counters *counters, ms__export_packets *packets, const ms_event *event)
{
    uint32_t known =
        counters->kind_of_slot.count ? ms__map_index(&counters->kind_of_slot, event->slot) : MS_EXPORT_NONE;
    uint8_t before = known == MS_EXPORT_NONE || event->op == MS_OP_ADD ? MS_KIND_NONE : (uint8_t)known;
    uint8_t after = event->op == MS_OP_DROP ? MS_KIND_NONE : event->kind;
    if (before == after)
        return MS_OK;
    counters->kinds[event->device][before] -= (int64_t)event->bytes;
    counters->kinds[event->device][after] += (int64_t)event->bytes;
    if (before)
        write_kind(counters, packets, event->device, before);
    if (after)
        write_kind(counters, packets, event->device, after);
    return set_kind(counters, event->slot, after);
}

/* ---- events ---- */
int ms__export_counters_load_key_frame(ms__export_counters *counters, ms__export_packets *packets,
                                       const ms_cursor *cursor)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        write_held(counters, packets, cursor, device);
        ms__export_counters_set_reserved(counters, packets, cursor, device);
    }
    return load_kinds(counters, packets, cursor);
}

int ms__export_counters_apply(ms__export_counters *counters, ms__export_packets *packets, const ms_cursor *cursor,
                              const ms_event *event)
{
    write_held(counters, packets, cursor, event->device);
    return apply_kind(counters, packets, event);
}
