/* capture_api.h - what the files of the extension modscope._capture share. It reads captures from Python,
 * and needs neither torch nor modscope._native.
 *
 *     module.c      the module, its exception, conversions that several files need
 *     reader.c      Reader: a capture            snapshot.c   RawSnapshot: what was held at a moment
 *     events.c      Reader.events and notes      survey.c     Reader.survey, peaks and times
 *     export.c      Reader.export                allocator.c  Allocator: the model of torch's allocator
 *     replay.c      Stream: replays with edits   cover.c      Cover: the greedy choice of a plan
 *     replay_edits.c  the edits of a replay
 *     series.c      Reader.series, step_times    collectives.c  Reader.collectives and their totals
 *     epoch.c       Epoch: steps of any shape
 *     layout.c      Stream.layout: where blocks are
 *     live.c        Live: a capture that is still being written
 *     stacks.c      Reader.stacks, and what belongs to them
 *
 * The GIL is released while a file is read. A core reader may be used by one thread at a time; the flag
 * `busy`, guarded by the GIL, is set during such a call, and a second call raises an exception. */
#ifndef MS_CAPTURE_API_H
#define MS_CAPTURE_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope_allocator.h"
#include "modscope_capture.h"
#include "modscope_replay.h"

typedef struct msr_reader {
    PyObject_HEAD
    ms_reader *reader;
    ms_cursor *cursor; /* NULL, or where the last search ended: the next one is often a little further on */
    PyObject *paths;   /* NULL, or the list that the attribute returns */
    int fd;            /* a duplicate, closed with the reader */
    bool busy;         /* guarded by the GIL */
} msr_reader;

extern PyTypeObject msr_reader_type, msr_snapshot_type, msr_events_type, msr_allocator_type, msr_stream_type,
    msr_cover_type, msr_epoch_type, msr_live_type;
/* Interned names, indexed by ms_op, ms_phase and ms_category. */
extern PyObject *msr_ops[MS_OP_COUNT], *msr_phases[MS_PHASE_COUNT], *msr_categories[MS_CATEGORY_COUNT];
extern PyObject *msr_kinds[MS_KIND_COUNT]; /* None for MS_KIND_NONE */

/* Raise the exception for an error code of the core; errno must be unchanged since. Returns NULL. */
PyObject *msr_raise(int error);
/* Set and clear `busy`, around calls that release the GIL. False: it is set already, and an exception is raised. */
bool msr_lock_reader(msr_reader *reader);
void msr_unlock_reader(msr_reader *reader);
/* Open reader->cursor unless it is open. Returns the error code of ms_cursor_open. */
int msr_open_cursor(msr_reader *reader);
/* Each of these returns a new reference, or NULL with an exception set. */
PyObject *msr_snapshot_new(msr_reader *reader, uint64_t moment);
PyObject *msr_events_new(msr_reader *reader, uint32_t ops, uint64_t first, uint64_t last);
/* Methods of Reader without arguments. */
PyObject *msr_notes(msr_reader *reader, PyObject *unused);
PyObject *msr_collectives(msr_reader *reader, PyObject *unused);
PyObject *msr_collective_totals(msr_reader *reader, PyObject *unused);
PyObject *msr_collective_sums(msr_reader *reader, PyObject *unused);
PyObject *msr_step_times(msr_reader *reader, PyObject *unused);
PyObject *msr_has_call_times(msr_reader *reader, PyObject *unused);
/* Attributes of Reader. `unused` is NULL. */
PyObject *msr_get_stacks(msr_reader *reader, void *unused);
PyObject *msr_get_forward_stacks(msr_reader *reader, void *unused);
PyObject *msr_get_model_frames(msr_reader *reader, void *unused);
PyObject *msr_get_called(msr_reader *reader, void *unused);
PyObject *msr_get_sources(msr_reader *reader, void *unused);
PyObject *msr_read_source(PyObject *module, PyObject *file);
/* A text of a capture, which may be damaged. */
PyObject *msr_decode_text(const char *text);
PyObject *msr_survey(msr_reader *reader, PyObject *progress);
PyObject *msr_peaks(msr_reader *reader, uint64_t first, uint64_t last);
PyObject *msr_input_shapes(msr_reader *reader, unsigned device);
PyObject *msr_times(msr_reader *reader, uint64_t first, uint64_t last);
/* `bounds`: the bytes of an array of uint64_t. */
PyObject *msr_series(msr_reader *reader, unsigned device, const Py_buffer *bounds);
PyObject *msr_export(msr_reader *reader, PyObject *args, PyObject *named);
/* The settings of an allocator, from Python's arguments. NULL and None: the defaults. False: an exception is set. */
bool msr_allocator_settings(ms_allocator_settings *settings, const char *version, const char *conf, PyObject *capacity,
                            PyObject *total_memory);
/* Append a new reference, or put two. They may be NULL with an exception set. False: an exception is set. */
bool msr_append(PyObject *list, PyObject *item);
bool msr_put(PyObject *dict, PyObject *key, PyObject *value);
PyObject *msr_tuple_of(const int64_t *numbers, int count);
/* A tuple of bytes, one item for each category. */
PyObject *msr_sums(const ms_sums *sums);

/* ---- layout.c ---- */
/* Stream.layout. */
PyObject *msr_layout(const ms_replay_stream *stream, PyObject *args, PyObject *named);

/* ---- replay_edits.c ---- */
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
