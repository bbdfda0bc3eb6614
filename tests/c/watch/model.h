/* model.h - a slow and simple model of a watch.
 *
 * The model stores the owner of every node ever created. Each event goes to the
 * core and to the model. Each answer of the core must be the model's, or MS_UNKNOWN
 * where the model allows that the core no longer knows. The first answer that is
 * neither is described in `wrong`, and nothing is checked after it.
 *
 * Threads are logical: one OS thread drives them all. */
#ifndef MS_TEST_MODEL_H
#define MS_TEST_MODEL_H

#include "modscope.h"

#include <stdbool.h>

enum model_kind { MODEL_CALL, MODEL_NODE, MODEL_OVERRIDE };

struct model_frame {
    enum model_kind kind;
    ms_path path;
    bool refused;     /* the core said MS_ENOMEM */
    bool unknown;     /* a node for which the core answered MS_UNKNOWN */
    uint64_t entered; /* the thread's `enters` when this was entered */
};

struct model_node {
    ms_path owner;
    bool unknown;
    uint64_t entered; /* `entered` of the frame that owns it; the thread's `enters` if none does */
};

struct model_thread {
    uint64_t id;
    uint64_t first;  /* its first node's number */
    ms_thread *core; /* NULL: closed, or the core would not open it */
    struct model_frame *frames;
    uint32_t depth, frame_room;
    struct model_node *nodes;
    uint64_t made, node_room;
    uint64_t enters;
    uint64_t flooded; /* `enters` when the stack was last too deep for the ring; 0: not, or over */
    uint32_t refused; /* open frames that the core refused */
};

struct model {
    ms_watch *watch;
    uint32_t calls_kept, threads_kept;
    struct model_thread *threads; /* every thread there ever was */
    uint32_t thread_count, thread_room;
    uint32_t closed;
    bool discarded;    /* more threads have ended than the options keep */
    uint64_t known;    /* answers that were the model's */
    uint64_t unknowns; /* answers that were MS_UNKNOWN for a known owner */
    uint64_t errors;   /* events that the core refused because memory ran out */
    bool failed;
    char wrong[256];
};

/* Opens a watch with these options. False when the core could not. */
bool model_open(struct model *model, const ms_options *options);
void model_close(struct model *model);

/* Returns the new thread's index in `threads`. Its nodes are numbered from `first`. */
uint32_t model_thread_open(struct model *model, uint64_t first);
void model_thread_close(struct model *model, uint32_t thread);

void model_call_enter(struct model *model, uint32_t thread, ms_path path);
void model_node_enter(struct model *model, uint32_t thread, uint32_t creator, uint64_t number);
void model_override_enter(struct model *model, uint32_t thread, ms_path path);
/* Leaves the innermost call, node or override; with none open, checks that there is nothing to leave. */
void model_leave(struct model *model, uint32_t thread);
/* The thread makes `count` nodes. */
void model_make(struct model *model, uint32_t thread, uint64_t count);

/* The number of the thread's node that was made `age` nodes before the last one. */
uint64_t model_number(const struct model *model, uint32_t thread, uint64_t age);

void model_check_node(struct model *model, uint32_t creator, uint64_t number);
/* Where the thread is: phase, path, contexts, depth, and the core's own invariants. */
void model_check_thread(struct model *model, uint32_t thread);
/* Every node ever made, and every thread. */
void model_check_all(struct model *model);

#endif
