/* position_api.c - the position of this thread as Python objects: parents, stack, current, phase. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/names/names.h"

PyObject *mst_position_parents(bool active)
{
    struct mst_position position = mst_position_find(active);
    PyObject *parents = PySet_New(NULL);
    if (!parents || PySet_Add(parents, mst.interned.Global) != 0)
        goto failed;
    for (size_t i = 0; i < position.count; i++)
        for (ms_path path = position.paths[i]; path != MS_GLOBAL; path = ms_path_parent(mst.watch, path)) {
            PyObject *fqn = mst_path_fqn(path);
            if (!fqn || PySet_Add(parents, fqn) != 0)
                goto failed;
        }
    return parents;
failed:
    Py_XDECREF(parents);
    return NULL;
}

/* Append the names of `path`, outermost first, without those that it shares with `before`. */
static int append_names(PyObject *stack, ms_path before, ms_path path)
{
    if (path == MS_GLOBAL)
        return 0;
    for (ms_path at = before; at != MS_GLOBAL; at = ms_path_parent(mst.watch, at))
        if (at == path)
            return 0;
    PyObject *fqn = mst_path_fqn(path);
    if (!fqn || append_names(stack, before, ms_path_parent(mst.watch, path)) != 0)
        return -1;
    return PyList_Append(stack, fqn);
}

PyObject *mst_position_stack(bool active)
{
    struct mst_position position = mst_position_find(active);
    PyObject *stack = PyList_New(0);
    for (size_t i = 0; stack && i < position.count; i++)
        if (append_names(stack, i ? position.paths[i - 1] : MS_GLOBAL, position.paths[i]) != 0)
            Py_CLEAR(stack);
    return stack;
}

PyObject *mst_position_current(bool active)
{
    struct mst_position position = mst_position_find(active);
    ms_path path = position.count ? position.paths[position.count - 1] : MS_GLOBAL;
    for (size_t i = position.count; path == MS_GLOBAL && i-- > 0;)
        path = position.paths[i];
    return Py_XNewRef(mst_path_fqn(path));
}

PyObject *mst_position_phase(bool active)
{
    if (active && mst_in_optimizer_step())
        return PyUnicode_InternFromString("optimizer");
    ms_phase phase = mst_position_find(active).phase;
    /* Where steps are not intercepted and the frames do not run one, it raised. */
    bool abandoned = phase == MS_OPTIMIZER && !mst_steps_intercepted();
    return PyUnicode_InternFromString(ms_phase_name(abandoned ? MS_IDLE : phase));
}
