/* modscope.h - which module call is running, and which call made a backward node.
 *
 * A program tells a watch what happens on its threads: a call begins, a call ends, a
 * backward node begins, a backward node ends. The watch answers where each thread is,
 * and, for any node ever made, in which call it was made. It knows nothing of Python,
 * of tensors or of PyTorch: modules are paths, nodes are numbers.
 *
 * Numbers    Autograd numbers the nodes a thread makes: 0, 1, 2... The thread says the
 *            next number (`seq`) with every event, so a call's nodes are an interval,
 *            and finding a node's call is a search among intervals.
 * Errors     MS_OK or a negative MS_E* code. After a failure every answer is as before
 *            the call, or MS_UNKNOWN where it can no longer be known; ms_watch_lost() grows.
 *            Enter and leave stay balanced: leave what you entered even if entering failed.
 * Memory     Bounded by what the options say. The oldest finished calls are let go; a
 *            node made in one of them is MS_UNKNOWN, never somebody else's.
 * Threads    Functions that take an ms_thread are for that thread alone, except where
 *            noted. Functions that take an ms_watch are for any thread. */
#ifndef MODSCOPE_H
#define MODSCOPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MS_VERSION "0.1.0"

#define MS_ERRORS(X)                                            \
    X(OK, 0, "no error")                                        \
    X(ENOMEM, -1, "out of memory")                              \
    X(EINVAL, -2, "an argument is out of range")                \
    X(EFULL, -3, "more distinct paths than the watch may keep") \
    X(EUNBALANCED, -4, "left what was never entered")           \
    X(ENOBLOCK, -5, "the ledger knows no such block")           \
    X(EDETACHED, -6, "the ledger is not attached")              \
    X(EIO, -7, "the file cannot be read or written")            \
    X(EFORMAT, -8, "the file is not a capture")                 \
    X(ENEWER, -9, "a newer version wrote the capture")          \
    X(ENOSTEP, -10, "the capture has no such step")             \
    X(EEND, -11, "the capture has no more events")              \
    X(ESTOPPED, -12, "a callback asked to stop")

enum ms_error {
#define X(name, value, text) MS_##name = (value),
    MS_ERRORS(X)
#undef X
};

/* The text of an error code; never NULL. */
const char *ms_error_text(int error);

typedef struct ms_watch ms_watch;
typedef struct ms_thread ms_thread;

/* A module in its context: its name and the path of the call around it. */
typedef uint32_t ms_path;
#define MS_GLOBAL ((ms_path)0)  /* outside any call */
#define MS_UNKNOWN ((ms_path)1) /* too old to place, or lost */

/* A node that carries no number of its own (PyTorch's AccumulateGrad nodes). */
#define MS_NO_NUMBER UINT64_MAX

#define MS_ANY_THREAD UINT64_C(0)

typedef enum ms_phase { MS_IDLE, MS_FORWARD, MS_RECOMPUTE, MS_BACKWARD, MS_OPTIMIZER } ms_phase;

typedef struct ms_options {
    /* Both NULL for malloc and free. The memory need not be cleared. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *memory);
    void *context;
    uint32_t calls_kept;   /* finished calls kept a thread; rounded up to a power of two; 0: 131072 */
    uint32_t threads_kept; /* ended threads whose calls are kept; 0: 256 */
    uint32_t paths_kept;   /* distinct paths; 0: 4194304 */
} ms_options;

/* Open a watch. options may be NULL. NULL when memory runs out. */
ms_watch *ms_watch_open(const ms_options *options);
/* Free a watch and its threads. No thread may be using it. NULL is allowed. */
void ms_watch_close(ms_watch *watch);
/* How many events could not be recorded. Never grows while memory lasts. */
uint64_t ms_watch_lost(const ms_watch *watch);

/* Around fork(): lock before; unlock after, in the parent and in the child. */
void ms_watch_lock(ms_watch *watch);
void ms_watch_unlock(ms_watch *watch);

/* The path of `name` called inside `parent`; the same pair gives the same path.
 * The name is copied. MS_ENOMEM, MS_EFULL, MS_EINVAL leave *path alone. */
int ms_path_add(ms_watch *watch, ms_path parent, const char *name, ms_path *path);
/* The same for one of several modules of that name there, counted from 0; ms_path_add is the first. */
int ms_path_add_nth(ms_watch *watch, ms_path parent, const char *name, uint32_t nth, ms_path *path);
/* How many paths there are; they are numbered from 0, and MS_GLOBAL and MS_UNKNOWN count. */
uint32_t ms_path_count(const ms_watch *watch);
/* Names are borrowed until the watch is closed. MS_GLOBAL is "Global", MS_UNKNOWN
 * is "unknown"; both have MS_GLOBAL as parent and depth 0. */
const char *ms_path_name(const ms_watch *watch, ms_path path);
ms_path ms_path_parent(const ms_watch *watch, ms_path path);
uint32_t ms_path_depth(const ms_watch *watch, ms_path path);

/* Begin watching a thread. `id` is a number that no other thread of the process has or
 * had, neither 0 nor UINT64_MAX. NULL when memory runs out. */
ms_thread *ms_thread_open(ms_watch *watch, uint64_t id);
/* The thread has ended: its open calls are over, its finished calls stay findable. */
void ms_thread_close(ms_thread *thread);

/* A call of `path` begins, or the innermost one ends; `seq` is the number that the
 * thread's next node will get. */
int ms_call_enter(ms_thread *thread, ms_path path, uint64_t seq);
int ms_call_leave(ms_thread *thread, uint64_t seq);

/* The thread begins to run node `number` made by thread `creator`, or ends running it.
 * Nodes made meanwhile belong to the same call as this one. */
int ms_node_enter(ms_thread *thread, uint64_t creator, uint64_t number, uint64_t seq);
int ms_node_leave(ms_thread *thread, uint64_t seq);
/* The same for a node without a number whose owner is known otherwise. */
int ms_node_enter_as(ms_thread *thread, ms_path path, uint64_t seq);

/* While held, `path` counts as running in this thread, in place of the node around it. */
int ms_override_enter(ms_thread *thread, ms_path path);
int ms_override_leave(ms_thread *thread);

/* An optimizer's step begins or ends. What is entered meanwhile counts as what it is. A step
 * that ends by an error may never be left: leaving what was entered before it ends it too. */
void ms_optimizer_enter(ms_thread *thread);
void ms_optimizer_leave(ms_thread *thread);

/* In which call node `number` of thread `creator` was made. MS_ANY_THREAD where the creator is
 * not known: what the threads that made calls agree on, MS_UNKNOWN if they differ. */
ms_path ms_node_path(ms_watch *watch, uint64_t creator, uint64_t number);

/* Where the thread is. */
ms_phase ms_thread_phase(const ms_thread *thread);
/* The innermost path: a call's, the running node's, or what is held. */
ms_path ms_thread_path(const ms_thread *thread);
/* The innermost path of each context, outermost context first: a backward that runs
 * inside a call is a context of its own. Writes at most `room`, returns how many there are. */
size_t ms_thread_contexts(const ms_thread *thread, ms_path *paths, size_t room);
/* Open calls, nodes and holds. */
size_t ms_thread_depth(const ms_thread *thread);

#ifdef __cplusplus
}
#endif
#endif
