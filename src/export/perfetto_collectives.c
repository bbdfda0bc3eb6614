/* perfetto_collectives.c - the track of a Perfetto trace with the collectives of a capture: slices where it is known
 * how long they took, else instants. */
#include "export/perfetto_packets.h"
#include "modscope_collectives.h"

#include <stdlib.h>

struct mse_collective_track {
    ms_reader *reader;
    ms_collectives found;
    size_t next;   /* the next one to write */
    uint64_t end;  /* of the slice that is open, in nanoseconds; 0: none is */
    uint64_t uuid; /* the track's number */
};

static const ms_collective_group *find_group(const ms_collectives *found, uint32_t number)
{
    for (size_t i = 0; i < found->group_count; i++)
        if (found->groups[i].number == number)
            return &found->groups[i];
    return NULL;
}

static void annotate_collective(mse_packets *packets, const mse_job *job, const ms_collectives *found,
                                const ms_collective *one)
{
    const ms_collective_group *group = find_group(found, one->group);
    mse_annotate(packets, "bytes", one->bytes);
    mse_annotate_text(packets, "module", mse_module(job, one->path));
    mse_annotate_text(packets, "phase", mse_text_of(mse_phases[one->phase]));
    mse_annotate(packets, "step", one->step);
    if (group) {
        mse_annotate_text(packets, "group", mse_text_of(group->name));
        mse_annotate_text(packets, "backend", mse_text_of(group->backend));
        mse_annotate_text(packets, "ranks", mse_text_of(group->ranks));
        mse_annotate(packets, "group size", group->size);
    }
}

/* Begin the slice of a collective, or put its instant. Slices of one track must not overlap: the one before has ended.
 */
static void begin_collective(mse_collective_track *track, mse_packets *packets, const mse_job *job,
                             const ms_collective *one)
{
    mse_name name = {mse_text_of(ms_collective_name(one->kind)), mse_text_of(""), mse_text_of("")};
    if (one->nanoseconds)
        mse_open_named_slice(packets, track->uuid, name);
    else
        mse_open_instant(packets, track->uuid, name);
    annotate_collective(packets, job, &track->found, one);
    mse_close_event(packets);
    if (one->nanoseconds)
        track->end = packets->time + (one->nanoseconds < UINT64_MAX / 4 ? one->nanoseconds : UINT64_MAX / 4);
}

int mse_collective_track_open(const mse_job *job, uint64_t uuid, mse_collective_track **out)
{
    mse_collective_track *track = calloc(1, sizeof *track);
    if (!track)
        return MS_ENOMEM;
    track->reader = job->reader;
    track->uuid = uuid;
    int error = ms_collectives_read(job->reader, &track->found);
    if (error) {
        free(track);
        return error;
    }
    *out = track;
    return MS_OK;
}

void mse_collective_track_close(mse_collective_track *track)
{
    if (!track)
        return;
    ms_collectives_free(track->reader, &track->found);
    free(track);
}

void mse_collective_track_begin(mse_collective_track *track, mse_packets *packets, uint64_t parent)
{
    if (track->found.count)
        mse_track(packets, track->uuid, parent, mse_text_of("collectives"), 3);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void mse_collective_track_write(mse_collective_track *track, mse_packets *packets, const mse_job *job, uint64_t until)
{
    for (;;) {
        if (track->end) {
            if (track->end > until)
                return;
            packets->time = later(packets->time, track->end);
            mse_end_slice(packets, track->uuid);
            track->end = 0;
        }
        if (track->next == track->found.count)
            return;
        const ms_collective *one = &track->found.at[track->next];
        if (one->time > until / 1000)
            return;
        packets->time = later(packets->time, one->time * 1000);
        begin_collective(track, packets, job, one);
        track->next++;
    }
}
