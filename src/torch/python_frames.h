/* python_frames.h - the Python frames of this thread, read without the GIL.
 *
 * While a thread is inside a C function, its frames do not change, and each holds its code object. So the thread can
 * read them itself: no reference count is touched, and nothing is allocated. Only memory is read whose layout the
 * headers of this Python describe (3.11 to 3.13); the Python side verifies it at start. */
#ifndef MST_PYTHON_FRAMES_H
#define MST_PYTHON_FRAMES_H

#include "torch/state.h"

struct mst_frame {
    const void *next;        /* the frame around it, for mst_frame_read */
    PyCodeObject *code;      /* alive as long as the frame */
    const void *instruction; /* in the code object, so it identifies the code too */
    bool is_shim;            /* the interpreter's own: neither code nor instruction is set */
};

/* NULL, or why frames cannot be read in this Python. */
const char *mst_frames_unsupported(void);
/* This thread's innermost frame, for mst_frame_read; NULL: it runs no Python. */
const void *mst_frame_innermost(void);
struct mst_frame mst_frame_read(const void *frame);

#endif
