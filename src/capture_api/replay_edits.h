/* replay_edits.h - edits of a replay from Python. */
#ifndef MS_READING_REPLAY_EDITS_H
#define MS_READING_REPLAY_EDITS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope_replay.h"

/* From a tuple (categories, phases, device or None, root, min_bytes). False: an exception is raised. */
bool msr_selection_of(PyObject *item, ms_replay_selection *selection);
/* The numbers of a list with one item for each path; None becomes MS_REPLAY_NONE. The caller frees them with
 * PyMem_Free. NULL: an exception is raised. */
uint32_t *msr_numbers_of_paths(PyObject *list, uint32_t path_count);
/* From an iterable of tuples, each the name of an edit and its arguments. `match`: of the stream, for the edit "batch".
 * *count, which may be NULL, gets how many blocks and calls they change. NULL: an exception is raised. */
ms_replay_edit *msr_edit_of(const ms_replay_stream *stream, const ms_replay_match *match, PyObject *edits,
                            uint64_t *count);

#endif
