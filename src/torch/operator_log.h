/* operator_log.h - the operators that ran, and how much memory was in use after each of them. */
#ifndef MST_OPERATOR_LOG_H
#define MST_OPERATOR_LOG_H

#include "torch/hash_map.h"
#include "torch/state.h"

enum mst_figure { MST_ALLOCATED, MST_ACTIVE, MST_RESERVED, MST_FIGURE_COUNT };

struct mst_operator_record {
    uint32_t position; /* index into positions */
    uint32_t name;     /* index into names */
    uint32_t nth;      /* how many operators with this name ran before it */
    int64_t figures[MST_FIGURE_COUNT];
};

typedef struct mst_operator_log {
    PyObject_HEAD
    PyObject *root;      /* a weak reference to the module whose calls are marked */
    PyObject *name_in;   /* (module or None, fqn) -> the module's name inside the root module */
    PyObject *stats;     /* (device) -> the allocator's statistics, nested dicts; None: the ledger is read */
    PyObject *device;    /* the argument of `stats`; the ledger's number if that is None */
    PyObject *ignored;   /* the operator that is not recorded */
    PyObject *positions; /* a list of str */
    PyObject *names;     /* a list of str */
    PyObject *operators; /* a list: keeps the operators alive whose addresses are keys of by_operator */
    PyObject *markers;   /* a dict: str -> the number of records at that moment */
    uint32_t ledger_device;
    struct mst_map by_position; /* (path + 1, phase) -> index into positions */
    struct mst_map by_operator; /* an operator's address -> index into names */
    uint32_t *counts;           /* by index into names */
    size_t counts_room;
    struct mst_operator_record *records;
    size_t count, room;
    uint64_t lost; /* how many operators were not recorded because memory ran out */
    bool recording;
} mst_operator_log;

/* Run an operator, and record it if the log is recording. What the operator raises is passed on; nothing else is. */
PyObject *mst_operator_run(mst_operator_log *log, PyObject *op, PyObject *args, PyObject *named);
/* The root module's forward begins or ends: note under `marker` how many records there are. A recompute is ignored. */
void mst_operator_mark(mst_operator_log *log, PyObject *module, const char *marker);
/* Index into positions, of where this thread is; -1 with an error set. */
Py_ssize_t mst_operator_position(mst_operator_log *log);
/* How much memory is in use now, in bytes. -1 with an error set. */
int mst_operator_figures(mst_operator_log *log, int64_t *figures);

#endif
