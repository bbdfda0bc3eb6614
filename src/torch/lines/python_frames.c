/* python_frames.c - the Python frames of this thread, read without the GIL. How code objects are kept is
 * known in python_code.c. */
#define Py_BUILD_CORE 1 /* for the internal headers */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define FRAMES_ARE_KNOWN 1
#include "internal/pycore_frame.h"
#else
#define FRAMES_ARE_KNOWN 0
#endif

#include "torch/lines/lines.h"

#if FRAMES_ARE_KNOWN

const char *mst_frames_unsupported(void)
{
    return NULL;
}

const void *mst_frame_innermost(void)
{
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (!thread)
        return NULL;
#if PY_VERSION_HEX < 0x030D0000
    return thread->cframe->current_frame;
#else
    return thread->current_frame;
#endif
}

struct mst_frame mst_frame_read(const void *pointer)
{
    const _PyInterpreterFrame *frame = pointer;
#if PY_VERSION_HEX < 0x030C0000
    bool is_shim = false;
#else
    bool is_shim = frame->owner == FRAME_OWNED_BY_CSTACK;
#endif
    if (is_shim)
        return (struct mst_frame){.next = frame->previous, .is_shim = true};
#if PY_VERSION_HEX < 0x030D0000
    return (struct mst_frame){frame->previous, frame->f_code, frame->prev_instr, false};
#else
    return (struct mst_frame){frame->previous, (PyCodeObject *)frame->f_executable, frame->instr_ptr, false};
#endif
}

PyObject *const *mst_frame_variables(const PyFrameObject *frame)
{
    return frame->f_frame->localsplus;
}

#else

const char *mst_frames_unsupported(void)
{
    return "frames are known for Python 3.11 to 3.13 only";
}

const void *mst_frame_innermost(void)
{
    return NULL;
}

struct mst_frame mst_frame_read(const void *frame)
{
    (void)frame;
    return (struct mst_frame){.is_shim = true};
}

PyObject *const *mst_frame_variables(const PyFrameObject *frame)
{
    (void)frame;
    return NULL;
}

#endif
