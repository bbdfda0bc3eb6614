/* native.h - what the files of the extension share.
 *
 * The extension stands where torch runs modules and backward nodes, tells the core what
 * it sees, and answers Python's questions. Everything here needs the GIL, except what
 * nodes.c does inside a backward node and where it is said otherwise. */
#ifndef MS_NATIVE_H
#define MS_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope.h"

#ifdef Py_GIL_DISABLED
#error "modscope needs a Python with the GIL: its tables of modules are guarded by it"
#endif

#include <stdatomic.h>
#include <stdbool.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Two words a thread, read at every call and node: worth a place in the static block. */
#if defined(__linux__)
#define MST_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define MST_THREAD_LOCAL _Thread_local
#endif

/* ---- torchapi.c: what is used of torch, looked up once and kept ---- */
struct mst_torch {
    PyTypeObject *module, *tensor, *parameter, *ordered_dict, *function_base, *graph_module;
    PyObject *call_impl; /* the Python function nn.Module._call_impl */
    PyCodeObject *call_code, *optimizer_code, *backward_code;
    PyObject *graph_task_id, *current_node, *will_execute, *queue_callback, *grad_enabled;
    PyObject *set_eval_frame, *disable_torch_function, *function_modes;
    PyObject *pytree_nodes; /* type -> how to flatten it */
    PyObject *strided;      /* the layout of tensors that have a storage */
    uint64_t (*peek)(void); /* the number of this thread's next node */
    uint64_t (*thread_id)(void);
};
extern struct mst_torch mst_torch;

/* Interned words. */
/* clang-format off */
#define MST_WORDS(X)           \
    X(_modules)                \
    X(_parameters)             \
    X(_buffers)                \
    X(__tensor_flatten__)      \
    X(untyped_storage)         \
    X(device)                  \
    X(state)                   \
    X(grad)                    \
    X(_backward_hooks)         \
    X(_register_hook_dict)     \
    X(grad_fn)                 \
    X(requires_grad)           \
    X(variable)                \
    X(_sequence_nr)            \
    X(compile_subgraph_reason) \
    X(__dataclass_fields__)    \
    X(flatten_fn)              \
    X(kwargs)                  \
    X(Global)                  \
    X(__enter__)               \
    X(__exit__)
/* clang-format on */
struct mst_words {
#define X(word) PyObject *word;
    MST_WORDS(X)
#undef X
};
extern struct mst_words mst_words;

/* Import torch and look everything up. -1 with an ImportError that says what to install. */
int mst_torch_load(void);
/* The id of the running graph task; -1 outside backward. Never raises. */
long long mst_graph_task(void);
/* An error in Python of ours is not the program's; but a Ctrl-C that came there is: it comes again. */
void mst_forget_error(void);
/* The node this thread is running: a new reference or NULL. Never raises. */
PyObject *mst_current_node(void);

/* ---- threads.c: the watch and this thread in it ---- */
extern ms_watch *mst_watch;
extern MST_THREAD_LOCAL ms_thread *mst_mine;
int mst_threads_init(void);
ms_thread *mst_thread_open(void); /* no GIL needed */
/* This thread in the watch; NULL when memory ran out. No GIL needed. */
static inline ms_thread *mst_here(void)
{
    return LIKELY(mst_mine != NULL) ? mst_mine : mst_thread_open();
}

/* ---- names.c: what a module is called ---- */
typedef struct mst_book mst_book;
struct mst_module {
    PyObject *module; /* borrowed: alive while ref says so */
    PyObject *ref;    /* weak */
    PyObject **refs;  /* where the module keeps its weak references; ref is the first of them */
    uint64_t context; /* where it was called last... */
    ms_path path;     /* ...and what it is there */
    bool called, hidden, walked;
    bool shared;               /* more than one module was seen to hold it */
    size_t step;               /* where it stands in the trace, or stood */
    PyObject *fqn;             /* what it ran under, or was found under; NULL: not named yet */
    struct mst_module *holder; /* the module it was found in */
};
extern mst_book *mst_names; /* of the trackers active now, or last */

/* The calls in the order they came. Programs repeat themselves, so the next call is mostly
 * the one that came after the last time, and its path is here, two to a line of the cache. */
struct mst_step {
    PyObject *module, *ref; /* as in struct mst_module */
    uint64_t context;
    int32_t refs_at; /* bytes from the module to its weak references */
    ms_path path;
};
struct mst_trace {
    struct mst_step *steps;
    size_t count, room, next;
};
extern struct mst_trace mst_trace; /* of mst_names */

mst_book *mst_book_new(void);
mst_book *mst_book_ref(mst_book *book);
void mst_book_unref(mst_book *book);
/* Make `book` the one in use, with what `other` knows added; other may be NULL. */
void mst_book_use(mst_book *book, const mst_book *other);
/* The name of a module: what it runs under in this thread, else what it is known as. Borrowed, or NULL. */
PyObject *mst_book_fqn(mst_book *book, PyObject *module);
/* What book knows of a module: borrowed, or NULL. Never raises. */
struct mst_module *mst_book_find(mst_book *book, PyObject *module);
/* Name a module as a call from outside any other would: borrowed, or NULL with an error set. */
PyObject *mst_book_name(mst_book *book, PyObject *module);
PyObject *mst_book_modules(mst_book *book); /* a new dict fqn -> module */

/* The path of calling `module` in `context`; MS_GLOBAL if the call is not to be shown.
 * `context` is the path around it, with MST_IN_NODE if a backward node is between. */
#define MST_IN_NODE (UINT64_C(1) << 32)
ms_path mst_path_of_call(PyObject *module, uint64_t context);
/* The path under which a known module holds things: where it is called, or would be. */
ms_path mst_path_of_holding(const struct mst_module *known);
/* The path of the module that owns a parameter; MS_GLOBAL if none does. */
ms_path mst_path_of_parameter(PyObject *tensor);
/* The Python string of a path's name: borrowed, never NULL after mst_path_of_*. */
PyObject *mst_fqn(ms_path path);

static inline bool mst_alive(const struct mst_module *known)
{
    return ((PyWeakReference *)known->ref)->wr_object == known->module;
}

/* The same for a module that is there: whether it is the one meant, and not another at the
 * same address. Spares the look at the weak reference itself. */
static inline bool mst_same(const struct mst_module *known)
{
    return *known->refs == known->ref;
}

/* ---- calls.c: the place of module calls, and the fallback's hooks ---- */
extern bool mst_awake;
extern bool mst_calls_place, mst_nodes_place; /* proved and in use; else the fallback is */
extern PyMethodDef mst_calls_methods[];
int mst_calls_on(void);
void mst_calls_off(void);

/* One open call, as its place knows it. */
struct mst_call {
    struct mst_call *outer; /* the open call around it in this thread */
    ms_thread *thread;
    PyObject *module; /* borrowed: whoever calls it holds it */
    ms_path path;
    long long task; /* the graph task it began in, or -1; only where nodes are not seen */
    bool in_node;   /* a node was entered for it, that nobody else saw */
};
extern MST_THREAD_LOCAL struct mst_call *mst_open;
bool mst_call_enter(struct mst_call *call, PyObject *module);
void mst_call_leave(struct mst_call *call);

/* ---- fallback.c: global module hooks that are C functions ---- */
int mst_fallback_on(void);
void mst_fallback_off(void);
/* Leave the calls that ended without their hook being called. */
void mst_fallback_heal(void);

/* ---- nodes.c: the place of backward nodes ---- */
extern PyMethodDef mst_nodes_methods[];
int mst_nodes_on(void);
void mst_nodes_off(void);
/* In which call a node was made, from its Python object. */
ms_path mst_path_of_node(PyObject *node);
/* Whether this thread made the node, as far as can be known. */
bool mst_node_is_mine(PyObject *node);

/* ---- read.c: where this thread is; nowhere if not `active` ---- */
PyObject *mst_read_parents(bool active);
PyObject *mst_read_stack(bool active);
PyObject *mst_read_current(bool active);
PyObject *mst_read_phase(bool active);
/* What a call would begin in. */
uint64_t mst_read_context(ms_thread *thread);
/* What this thread is doing, asking autograd where nodes are not seen. */
ms_path mst_read_where(ms_phase *phase);
/* Whether an optimizer's step runs, by the frames. */
bool mst_in_optimizer(void);

/* ---- tensors.c: the tensors in what a module takes and gives ---- */
/* Call `visit` for each tensor in `object`, however nested. 0, or -1 with an error set. */
typedef int mst_visit(PyObject *tensor, void *context);
int mst_tensors_visit(PyObject *object, mst_visit *visit, void *context);
/* The same for lists, tuples and dicts only; runs no Python. */
int mst_tensors_visit_plainly(PyObject *object, mst_visit *visit, void *context);
/* Append the tensors that require grad in `object` to a list. 0, or -1 with an error set. */
int mst_tensors_in(PyObject *object, PyObject *list);
/* While torch functions are off, attributes of tensors are read without running Python. */
struct mst_quiet {
    PyObject *guard;
};
int mst_quiet_enter(struct mst_quiet *quiet);
void mst_quiet_leave(struct mst_quiet *quiet);

/* ---- hooks.c, graph.c, walk.c: the user's hooks ---- */
enum mst_hook { MST_PRE_FW, MST_POST_FW, MST_PRE_BW, MST_POST_BW, MST_HOOKS };
extern unsigned mst_hooks_wanted; /* bit i: an active tracker has hook i */
/* Call hook `which` of every active tracker. -1 with an error set: the first that raised. */
int mst_hooks_call(enum mst_hook which, PyObject *const *args, size_t count);
/* Run the call with its hooks around it, leaving it open. `next` runs the module itself. */
PyObject *mst_hooks_around(struct mst_call *call, PyObject *func, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames, vectorcallfunc next);
/* Run dynamo's frame evaluation off. Returns what to give to dynamo_on. */
PyObject *mst_dynamo_off(void);
void mst_dynamo_on(PyObject *callback);

/* A call whose backward is to be told: made at its beginning, hung on its outputs at its end.
 * NULL where there is nothing to tell. Neither raises. */
int mst_graph_init(void);
PyObject *mst_graph_begin(struct mst_call *call, PyObject *args, PyObject *kwargs);
void mst_graph_end(PyObject *graph_call, PyObject *output);

/* ---- tracker.c ---- */
extern PyTypeObject mst_tracker_type;
int mst_tracker_init(void);
/* The active trackers: a borrowed tuple, in the order they were entered. */
PyObject *mst_active_trackers(void);
PyObject *mst_tracker_hook(PyObject *tracker, enum mst_hook which); /* borrowed, or NULL */
mst_book *mst_tracker_book(PyObject *tracker);                      /* borrowed, or NULL */
void mst_tracker_forked(void);                                      /* in the child */
void mst_sleep(void); /* at the end of the interpreter: put everything back */

#endif
