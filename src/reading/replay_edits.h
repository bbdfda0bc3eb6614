/* replay_edits.h - edits of a replay from Python. */
#ifndef MS_READING_REPLAY_EDITS_H
#define MS_READING_REPLAY_EDITS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "replay/replay.h"

/* From a tuple (categories, phases, device or None, root, min_bytes). False: an exception is raised. */
bool msr_selection_of(PyObject *item, msp_selection *selection);
/* From an iterable of tuples, each the name of an edit and its arguments. `match`: of the stream, for the edit "batch".
 * NULL: an exception is raised. */
msp_edit *msr_edit_of(const msp_stream *stream, const msp_match *match, PyObject *edits);

#endif
