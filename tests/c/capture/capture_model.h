/* capture_model.h - a random run: it writes a file, and remembers every event. What was held at a
 * moment is found by applying all events again from the start. */
#ifndef MS_TEST_CAPTURE_MODEL_H
#define MS_TEST_CAPTURE_MODEL_H

#include "capture_file.h"
#include "modscope_capture.h"

enum {
    MODEL_SLOTS = 24,
    MODEL_THREADS = 4,
    MODEL_DEVICES = 4,
    MODEL_PATHS = 9,
    MODEL_EVENTS = 4000,
    MODEL_CHUNKS = 400
};

struct model_event { /* an event of the run, in the file or lost */
    ms_op op;
    uint64_t number; /* its own. A lost event without a number has that of the next event */
    uint64_t time;
    uint64_t bytes;   /* or the number of a step, the id of a thread */
    int slot, thread; /* indices */
    uint32_t device, path;
    uint8_t category, phase;
    bool outside, explicit, from_now_on, new;
    bool lost; /* not in the file */
    int chunk; /* the chunk that contains it */
};

struct model_block {
    ms_captured_block block;
    int since; /* index in `events` of its since_event; -1: the slot is empty */
};

/* What is so at one moment. */
struct model_state {
    struct model_block blocks[MODEL_SLOTS];
    struct {
        bool known;
        uint64_t id;
        uint8_t phase;
        uint32_t path;
    } threads[MODEL_THREADS];
    uint64_t reserved[MODEL_DEVICES];
    uint64_t step, optimizer_steps, time;
};

struct model {
    struct file file;
    struct model_event events[MODEL_EVENTS];
    int count;
    struct { /* chunks of events, and key frames */
        size_t at, end;
        uint64_t event;
        uint32_t events;
        bool key, damaged;
    } chunks[MODEL_CHUNKS];
    int chunk_count;
    struct model_state now;
    int thread; /* to which the file's events belong now */
    uint64_t random, lost;
    bool numbered; /* lost events have numbers of their own */
};

/* Make a run of `events` events, the first of which has the number `first`. */
void model_run(struct model *model, uint64_t seed, int events, uint64_t first, bool with_losses, bool numbered);
void model_free(struct model *model);
/* Flip a bit of a chunk. */
void model_damage(struct model *model, int chunk, uint64_t random);
/* Whether what was held at this moment can be known from the file. */
bool model_knows(const struct model *model, uint64_t moment);
/* The state at a moment; `later_claims`: with the claims after it. */
void model_at(const struct model *model, uint64_t moment, bool later_claims, struct model_state *state);
/* The slot's and the thread's number in the file. */
uint32_t model_slot(int index);
uint32_t model_thread(int index);

#endif
