/* modscope.h - which module call is running on each thread, and in which call a backward node was created.
 *
 * A program reports to a watch what happens on its threads: a call begins or ends, a backward node begins
 * or ends. The watch then answers where each thread is, and in which call any node was created. It knows
 * nothing about Python, tensors or PyTorch: a module is a path, and a node is a number.
 *
 * Nodes      Autograd numbers the nodes that a thread creates: 0, 1, 2, ... With each event the thread
 *            reports `next_number`, the number that its next node will get. The nodes created in a call are
 *            therefore an interval of numbers, and finding a node's call is a search among intervals.
 * Errors     Functions return MS_OK or a negative MS_E* code. After a failure every answer is the same as
 *            before the call, or MS_UNKNOWN if it can no longer be known. ms_watch_lost() counts what could
 *            not be recorded. Each enter needs its leave, even when the enter failed.
 * Memory     The options limit it. The oldest finished calls are overwritten; a node created in one of them
 *            is MS_UNKNOWN, and is never attributed to another call.
 * Threads    A function that takes an ms_thread may be called only on that thread, unless its comment says
 *            otherwise. A function that takes an ms_watch may be called on any thread. */
#ifndef MODSCOPE_H
#define MODSCOPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MS_VERSION "0.1.0"

#define MS_ERRORS(X)                                                    \
    X(OK, 0, "no error")                                                \
    X(ENOMEM, -1, "out of memory")                                      \
    X(EINVAL, -2, "an argument is out of range")                        \
    X(EFULL, -3, "there are more distinct paths than the watch allows") \
    X(EUNBALANCED, -4, "a leave has no matching enter")                 \
    X(ENOBLOCK, -5, "the ledger knows no such block")                   \
    X(EDETACHED, -6, "the ledger is not attached")                      \
    X(EIO, -7, "the file cannot be read or written")                    \
    X(EFORMAT, -8, "the file is not a capture")                         \
    X(ENEWER, -9, "the capture was written by a newer version")         \
    X(ENOSTEP, -10, "the capture has no such step")                     \
    X(EEND, -11, "the capture has no more events")                      \
    X(ESTOPPED, -12, "a callback asked to stop")                        \
    X(EDEVICE, -13, "the device is out of memory")

enum ms_error {
#define X(name, value, text) MS_##name = (value),
    MS_ERRORS(X)
#undef X
};

/* The text of an error code. It is never NULL. */
const char *ms_error_text(int error);

typedef struct ms_watch ms_watch;
typedef struct ms_thread ms_thread;

/* A module in its context: its name, and the path of the call around it. */
typedef uint32_t ms_path;
#define MS_GLOBAL ((ms_path)0)  /* outside any call */
#define MS_UNKNOWN ((ms_path)1) /* the call's record was overwritten, or could not be written */

/* The number of a node that has none (PyTorch's AccumulateGrad nodes). */
#define MS_NO_NUMBER UINT64_MAX

/* The creator of a node where it is not known. */
#define MS_ANY_THREAD UINT64_C(0)

/* MS_EVALUATION: a call inside a root call that began with grad mode off and outside a step (ms_ledger_step). */
#define MS_PHASES(X)          \
    X(IDLE, "idle")           \
    X(FORWARD, "forward")     \
    X(RECOMPUTE, "recompute") \
    X(BACKWARD, "backward")   \
    X(OPTIMIZER, "optimizer") \
    X(EVALUATION, "evaluation")

typedef enum ms_phase {
#define X(name, text) MS_##name,
    MS_PHASES(X)
#undef X
        MS_PHASE_COUNT
} ms_phase;

/* The phase's name, such as "forward"; never NULL. */
const char *ms_phase_name(ms_phase phase);

typedef struct ms_options {
    /* Set both, or leave both NULL for malloc and free. `alloc` need not clear the memory. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *memory);
    void *context;
    uint32_t calls_kept;   /* finished calls to keep for each thread, rounded up to a power of two; 0: 131072 */
    uint32_t threads_kept; /* ended threads whose calls to keep; 0: 256 */
    uint32_t paths_kept;   /* distinct paths to allow; 0: 4194304 */
} ms_options;

/* Open a watch. `options` may be NULL. Returns NULL if memory runs out, or if only one of alloc and free is set. */
ms_watch *ms_watch_open(const ms_options *options);
/* Free a watch and its threads. No thread may use it any more. `watch` may be NULL. */
void ms_watch_close(ms_watch *watch);
/* The number of events, paths and threads that could not be recorded. It stays 0 while memory and the options'
 * limits suffice. */
uint64_t ms_watch_lost(const ms_watch *watch);

/* Around fork(): lock before it; unlock after it, in the parent and in the child. */
void ms_watch_lock(ms_watch *watch);
void ms_watch_unlock(ms_watch *watch);

/* Store in *path the path of module `name` called inside `parent`. Equal arguments always give the same path.
 * The name is copied. On MS_ENOMEM, MS_EFULL and MS_EINVAL *path is unchanged. */
int ms_path_add(ms_watch *watch, ms_path parent, const char *name, ms_path *path);
/* Add the path of one of several modules that have the same name and parent. `nth` counts from 0, and
 * ms_path_add gives the one with nth 0. */
int ms_path_add_nth(ms_watch *watch, ms_path parent, const char *name, uint32_t nth, ms_path *path);
/* The number of paths, MS_GLOBAL and MS_UNKNOWN included. Paths are numbered from 0 without gaps. */
uint32_t ms_path_count(const ms_watch *watch);
/* `path` is one that the watch returned, MS_GLOBAL or MS_UNKNOWN. A name is valid until the watch is closed.
 * MS_GLOBAL is "Global" and MS_UNKNOWN is "unknown"; both have the parent MS_GLOBAL and depth 0. */
const char *ms_path_name(const ms_watch *watch, ms_path path);
ms_path ms_path_parent(const ms_watch *watch, ms_path path);
/* Show a path by another name in figures: in out-of-memory reports from now on, and in captures that are being
 * written at all their moments. ms_path_name and ms_path_add still use the name that it was added by. Returns
 * MS_ENOMEM, and changes nothing, if memory runs out; MS_EINVAL for MS_GLOBAL and MS_UNKNOWN. */
int ms_path_show_as(ms_watch *watch, ms_path path, const char *name);
/* The name by which a path is shown: that of the latest ms_path_show_as, else ms_path_name. It is valid until the
 * watch is closed. */
const char *ms_path_shown(const ms_watch *watch, ms_path path);
uint32_t ms_path_depth(const ms_watch *watch, ms_path path);

/* Begin to watch a thread. No other thread of the process may have or have had the same `id`; 0 and UINT64_MAX
 * are not allowed. Returns NULL if memory runs out or the id is not allowed. */
ms_thread *ms_thread_open(ms_watch *watch, uint64_t id);
/* The thread has ended. This also ends its open calls. Its nodes can still be looked up. */
void ms_thread_close(ms_thread *thread);

/* A call of `path` begins, or the innermost call ends. `next_number` is the number that the thread's next node
 * will get. This and every other leave returns MS_EUNBALANCED, and changes nothing, if what was entered last and
 * not yet left is of another kind, or if nothing is open. After an enter that failed, its leave may be of any kind. */
int ms_call_enter(ms_thread *thread, ms_path path, uint64_t next_number);
int ms_call_leave(ms_thread *thread, uint64_t next_number);
/* As ms_call_enter, for a call that begins while autograd's grad mode is off. It makes a difference for a root
 * call while a ledger is attached: outside a step, the phase of the root call and of the calls in it is MS_EVALUATION.
 */
int ms_call_enter_without_grad(ms_thread *thread, ms_path path, uint64_t next_number);

/* The thread begins to run node `number`, which thread `creator` created, or ends running it. A node that is
 * created while another runs belongs to the same call as the running one. A node with MS_NO_NUMBER belongs to
 * MS_GLOBAL. */
int ms_node_enter(ms_thread *thread, uint64_t creator, uint64_t number, uint64_t next_number);
int ms_node_leave(ms_thread *thread, uint64_t next_number);
/* As ms_node_enter, for a node that has no number, but whose path the caller knows. ms_node_leave leaves it too. */
int ms_node_enter_as(ms_thread *thread, ms_path path, uint64_t next_number);

/* Until the override is left, `path` is the thread's path instead of that of the node around it. */
int ms_override_enter(ms_thread *thread, ms_path path);
int ms_override_leave(ms_thread *thread);

/* An optimizer step begins or ends. Calls and nodes inside it have their own phases. A step that an exception
 * ends need not be left: it ends when the call, node or override around it is left. */
void ms_optimizer_enter(ms_thread *thread);
void ms_optimizer_leave(ms_thread *thread);
/* The same; `optimizer` is a number by which it is known (ms_ledger_expect_optimizers), 0: none. */
void ms_optimizer_leave_as(ms_thread *thread, uint64_t optimizer);

/* The path of the call in which thread `creator` created node `number`. With MS_ANY_THREAD as creator: the path
 * on which all threads that recorded calls agree, MS_UNKNOWN if they disagree. */
ms_path ms_node_path(ms_watch *watch, uint64_t creator, uint64_t number);

/* What the thread is doing. */
ms_phase ms_thread_phase(const ms_thread *thread);
/* The path of the innermost open call, node or override; MS_GLOBAL if none is open. */
ms_path ms_thread_path(const ms_thread *thread);
/* The innermost path of each context, the outermost context first. Each backward that runs inside a call is a
 * context of its own. Writes at most `capacity` paths, and returns how many contexts there are. */
size_t ms_thread_contexts(const ms_thread *thread, ms_path *paths, size_t capacity);
/* The number of open calls, nodes and overrides, those included whose enter failed. */
size_t ms_thread_depth(const ms_thread *thread);

#ifdef __cplusplus
}
#endif
#endif
