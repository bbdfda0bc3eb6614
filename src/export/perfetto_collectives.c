/* perfetto_collectives.c - the tracks of a Perfetto trace with the collectives of a capture: slices where it is known
 * how long they took, else instants. Slices of one track must not overlap, but collectives may: there are as many
 * tracks as run at a time, up to MOST_TRACKS, with one name, so that Perfetto's page shows them as one. */
#include "export/perfetto_packets.h"
#include "modscope_collectives.h"

#include <stdlib.h>

enum { MOST_TRACKS = 8 };
static const uint64_t LATEST = UINT64_MAX / 4; /* a time that no run reaches */

/* The begin or the end of a collective. */
struct edge {
    uint64_t time; /* nanoseconds */
    uint32_t index;
    uint8_t track;
    bool is_end;
};

struct ms__export_collective_track {
    ms_reader *reader;
    ms_collectives found;
    struct edge *edges; /* by time */
    size_t edge_count, next;
    uint64_t uuid; /* the first track's number; the others have the next ones */
    uint8_t tracks;
};

static const ms_collective_group *find_group(const ms_collectives *found, uint32_t number)
{
    for (size_t i = 0; i < found->group_count; i++)
        if (found->groups[i].number == number)
            return &found->groups[i];
    return NULL;
}

static void annotate_collective(ms__export_packets *packets, const ms_export_job *job, const ms_collectives *found,
                                const ms_collective *one)
{
    const ms_collective_group *group = find_group(found, one->group);
    ms__export_annotate(packets, "bytes", one->bytes);
    ms__export_annotate_text(packets, "module", ms__export_module(job, one->path));
    ms__export_annotate_text(packets, "phase", ms__export_text_of(ms_phase_name(one->phase)));
    ms__export_annotate(packets, "step", one->step);
    if (one->timing != MS_COLLECTIVE_NOT_TIMED)
        ms__export_annotate_text(packets, "timing", ms__export_text_of(ms_collective_timing_name(one->timing)));
    if (group) {
        ms__export_annotate_text(packets, "group", ms__export_text_of(group->name));
        ms__export_annotate_text(packets, "backend", ms__export_text_of(group->backend));
        ms__export_annotate_text(packets, "ranks", ms__export_text_of(group->ranks));
        ms__export_annotate(packets, "group size", group->size);
    }
}

/* Begin the slice of a collective, or put its instant. */
static void begin_collective(ms__export_collective_track *track, ms__export_packets *packets, const ms_export_job *job,
                             const struct edge *edge)
{
    const ms_collective *one = &track->found.at[edge->index];
    ms__export_name name = {ms__export_text_of(ms_collective_name(one->kind)), ms__export_text_of(""),
                            ms__export_text_of("")};
    if (one->nanoseconds)
        ms__export_open_named_slice(packets, track->uuid + edge->track, name);
    else
        ms__export_open_instant(packets, track->uuid + edge->track, name);
    annotate_collective(packets, job, &track->found, one);
    ms__export_close_event(packets);
}

/* ---- which track each is on ---- */

/* By time; at one time ends come before begins, and begins in the order of the launches. */
static int by_time(const void *a, const void *b)
{
    const struct edge *first = a, *second = b;
    if (first->time != second->time)
        return first->time < second->time ? -1 : 1;
    if (first->is_end != second->is_end)
        return first->is_end ? -1 : 1;
    return first->index < second->index ? -1 : first->index > second->index;
}

static void add_edge(ms__export_collective_track *track, uint64_t time, uint32_t index, uint8_t on, bool is_end)
{
    track->edges[track->edge_count++] = (struct edge){time, index, on, is_end};
}

/* The first track that is free then, else the one that is free first. */
static uint8_t free_track(const uint64_t *busy, uint64_t time)
{
    uint8_t best = 0;
    for (uint8_t n = 0; n < MOST_TRACKS && busy[best] > time; n++)
        if (busy[n] <= time || busy[n] < busy[best])
            best = n;
    return best;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

/* MS_ENOMEM. Where too many run at a time, one begins later than it did: when another one has ended. */
static int find_tracks(ms__export_collective_track *track)
{
    uint64_t busy[MOST_TRACKS] = {0}; /* until when each track is */
    size_t count = track->found.count;
    if (!count)
        return MS_OK;
    track->edges = calloc(count, 2 * sizeof *track->edges);
    if (!track->edges || count > UINT32_MAX)
        return MS_ENOMEM;
    for (size_t i = 0; i < count; i++)
        add_edge(track, at_most(track->found.at[i].time, LATEST / 1000) * 1000, (uint32_t)i, 0, false);
    qsort(track->edges, count, sizeof *track->edges, by_time);
    for (size_t i = 0; i < count; i++) {
        struct edge *edge = &track->edges[i];
        uint64_t taken = at_most(track->found.at[edge->index].nanoseconds, LATEST);
        edge->track = free_track(busy, edge->time);
        if (edge->time < busy[edge->track])
            edge->time = busy[edge->track];
        if (edge->track >= track->tracks)
            track->tracks = (uint8_t)(edge->track + 1);
        if (!taken)
            continue;
        busy[edge->track] = edge->time + taken;
        add_edge(track, busy[edge->track], edge->index, edge->track, true);
    }
    qsort(track->edges, track->edge_count, sizeof *track->edges, by_time);
    return MS_OK;
}

int ms__export_collective_track_open(const ms_export_job *job, uint64_t uuid, ms__export_collective_track **out)
{
    ms__export_collective_track *track = calloc(1, sizeof *track);
    if (!track)
        return MS_ENOMEM;
    track->reader = job->reader;
    track->uuid = uuid;
    int error = ms_collectives_read(job->reader, &track->found);
    if (!error)
        error = find_tracks(track);
    if (error) {
        ms__export_collective_track_close(track);
        return error;
    }
    *out = track;
    return MS_OK;
}

void ms__export_collective_track_close(ms__export_collective_track *track)
{
    if (!track)
        return;
    ms_collectives_free(track->reader, &track->found);
    free(track->edges);
    free(track);
}

void ms__export_collective_track_begin(ms__export_collective_track *track, ms__export_packets *packets, uint64_t parent)
{
    for (uint8_t n = 0; n < track->tracks; n++)
        ms__export_track(packets, track->uuid + n, parent, ms__export_text_of("collectives"), 3);
}

void ms__export_collective_track_write(ms__export_collective_track *track, ms__export_packets *packets,
                                       const ms_export_job *job, uint64_t until)
{
    for (; track->next < track->edge_count; track->next++) {
        const struct edge *edge = &track->edges[track->next];
        if (edge->time > until)
            return;
        if (packets->time < edge->time)
            packets->time = edge->time;
        if (edge->is_end)
            ms__export_end_slice(packets, track->uuid + edge->track);
        else
            begin_collective(track, packets, job, edge);
    }
}
