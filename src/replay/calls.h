/* calls.h - which calls are open while a stream is loaded: known from the positions of threads. */
#ifndef MS_REPLAY_CALLS_H
#define MS_REPLAY_CALLS_H

#include "base/array.h"
#include "base/map.h"
#include "modscope_replay.h"

#include <string.h>

/* One level of a thread's position: the path, and the call or the event that began it. */
typedef struct ms__replay_level {
    ms_path path;
    uint32_t since; /* forward: a call. backward: the event with which the thread entered this path's nodes */
} ms__replay_level;

typedef struct ms__replay_levels {
    ms__replay_level *at; /* from the outermost path to the innermost */
    uint32_t count;
    size_t room;
} ms__replay_levels;

/* A thread while the stream is loaded. A position outside any module ends its calls. A backward inside of a forward
 * does not, nor does an idle moment between two nodes end the run of nodes of a module. A forward of any thread does.
 */
typedef struct ms__replay_loading_thread {
    ms_path path;
    uint8_t phase;
    ms__replay_levels calls; /* that are open */
    ms__replay_levels nodes; /* of the latest backward node */
    uint32_t node_event;     /* with which the thread entered it */
} ms__replay_loading_thread;

typedef struct ms__replay_loader {
    ms_replay_stream *stream;
    size_t event_room, block_room, call_room, use_room, step_room, thread_room;
    ms__replay_loading_thread *threads; /* by index */
    struct ms__map by_number;           /* a thread's number in the capture -> its index */
    struct ms__map by_slot;             /* slot -> index of the live block */
    ms_notes *notes;
    ms_note note;                     /* the next one */
    bool has_note;                    /* there is a next one */
    uint64_t streams[MS_MAX_DEVICES]; /* of the latest block of each device */
    uint32_t thread;                  /* of the latest event */
    uint32_t cpu;                     /* the device, or MS_REPLAY_NONE */
    uint64_t step;
    uint32_t forward_event; /* the latest position of any thread in forward */
    ms_call_time *times;    /* in the order of their events */
    size_t time_count, next_time;
    uint64_t decreases;     /* how often reserved became less */
    ms_operators operators; /* of the capture */
    size_t next_operator, operator_room;
} ms__replay_loader;

/* The thread's position changes with the event `event`. MS_ENOMEM. */
int ms__replay_loader_move(ms__replay_loader *loader, uint32_t thread, uint32_t event, ms_phase phase, ms_path path);
/* The innermost open call of the thread if it is in forward, else MS_REPLAY_NONE. */
uint32_t ms__replay_loader_call(const ms__replay_loader *loader, uint32_t thread);
/* The thread of the latest event uses the block: the innermost call that it runs takes it or returns it, or autograd
 * saves it there. MS_ENOMEM. */
int ms__replay_loader_note_use(ms__replay_loader *loader, uint32_t block, ms_replay_use_kind kind);
/* The thread drops the block. In backward this tells when the backward of the block's calls began. */
void ms__replay_loader_note_drop(ms__replay_loader *loader, uint32_t thread, const ms_replay_block *block);

/* ---- call_times.c ---- */
int ms__replay_loader_open_times(ms__replay_loader *loader, ms_reader *reader); /* MS_ENOMEM, MS_EIO */
/* Give the calls that are open before event `number` their times. */
void ms__replay_loader_apply_times(ms__replay_loader *loader, uint64_t number);
/* The events before this one are lost, and with them which calls were open. */
void ms__replay_loader_skip_times(ms__replay_loader *loader, uint64_t number);
/* After the last event: set the times of all calls. Those that the GPU did not measure have the mean of their module's
 * calls. MS_ENOMEM. */
int ms__replay_loader_complete_times(ms__replay_loader *loader);

/* ---- operators.c ---- */
int ms__replay_loader_open_operators(ms__replay_loader *loader, ms_reader *reader); /* MS_ENOMEM, MS_EIO */
/* Add the operators that ended before event `number`. MS_ENOMEM. */
int ms__replay_loader_apply_operators(ms__replay_loader *loader, uint64_t number);

#endif
