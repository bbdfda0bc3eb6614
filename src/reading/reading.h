/* reading.h - what the files of modscope._capture share: captures, read from Python. It knows
 * nothing of torch, and modscope._native need not be there.
 *
 * The GIL is let go while a file is read. A reader is for one thread at a time: `busy`, which the
 * GIL guards, says that a call is under way. */
#ifndef MS_READING_H
#define MS_READING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope_capture.h"

typedef struct msr_reader {
    PyObject_HEAD
    ms_reader *reader;
    ms_cursor *cursor; /* where it looked last, or NULL: the next look is often further on */
    PyObject *paths;   /* made once */
    int fd;            /* its own */
    bool busy;
} msr_reader;

extern PyTypeObject msr_reader_type, msr_snapshot_type, msr_walk_type;
extern PyObject *msr_format_error;
/* Interned, by ms_op, ms_phase and ms_category. */
extern PyObject *msr_ops[MS_OP_COUNT], *msr_phases[MS_OPTIMIZER + 1], *msr_categories[MS_CATEGORY_COUNT];

/* What the core returned, as an exception; errno is still the core's. NULL. */
PyObject *msr_raise(int error);
/* Around calls that read the file. False with an exception set if one is under way already. */
bool msr_take(msr_reader *reader);
void msr_give(msr_reader *reader);
/* Have reader->cursor. What ms_cursor_open returns. */
int msr_cursor(msr_reader *reader);
/* A new cursor, settled at this moment; NULL with an exception set. */
PyObject *msr_snapshot_new(msr_reader *reader, uint64_t moment);
PyObject *msr_walk_new(msr_reader *reader, uint32_t ops, uint64_t first, uint64_t last);
PyObject *msr_survey(msr_reader *reader, PyObject *progress);
/* The most each device held between two moments. */
PyObject *msr_most(msr_reader *reader, uint64_t first, uint64_t last);
/* Reader.export, as _capture.pyi has it. */
PyObject *msr_export(msr_reader *reader, PyObject *args, PyObject *named);
/* A tuple of the numbers of all categories. */
PyObject *msr_sums(const ms_sums *sums);

#endif
