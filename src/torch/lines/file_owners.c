/* file_owners.c - whose a source file is, by the folder that it is in. */
#include "torch/lines/lines.h"

#include <stdlib.h>
#include <string.h>

struct folders {
    size_t count;
    struct folder {
        char *prefix;
        size_t length;
        enum mst_owner owner;
    } of[];
};

static _Atomic(struct folders *) folders; /* set once, and never freed: threads read it without a lock */

enum mst_owner mst_owner_of_file(const char *file)
{
    static const char *const generated[] = {"<frozen ", "<eval_with_key>", "<__array_function__ internals>"};
    for (size_t i = 0; file[0] == '<' && i < sizeof generated / sizeof *generated; i++)
        if (strncmp(file, generated[i], strlen(generated[i])) == 0)
            return MST_OF_TORCH;
    const struct folders *known = atomic_load_explicit(&folders, memory_order_acquire);
    enum mst_owner owner = MST_OF_PROGRAM;
    for (size_t i = 0; known && i < known->count; i++)
        if (known->of[i].owner > owner && strncmp(file, known->of[i].prefix, known->of[i].length) == 0)
            owner = known->of[i].owner;
    return owner;
}

static void free_folders(struct folders *made)
{
    for (size_t i = 0; i < made->count; i++)
        free(made->of[i].prefix);
    free(made);
}

/* The folders come in three lists of bytes: of installed libraries and Python's, of torch, and of modscope. */
PyObject *mst_set_stack_folders(PyObject *self, PyObject *args)
{
    (void)self;
    static const enum mst_owner owners[] = {MST_OF_LIBRARY, MST_OF_TORCH, MST_OF_MODSCOPE};
    PyObject *lists[3];
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &lists[0], &PyList_Type, &lists[1], &PyList_Type, &lists[2]))
        return NULL;
    if (atomic_load(&folders))
        Py_RETURN_NONE;
    size_t count = (size_t)(PyList_GET_SIZE(lists[0]) + PyList_GET_SIZE(lists[1]) + PyList_GET_SIZE(lists[2]));
    struct folders *made = calloc(1, sizeof *made + count * sizeof made->of[0]);
    for (int list = 0; made && list < 3; list++) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists[list]); i++) {
            const char *prefix = PyBytes_AsString(PyList_GET_ITEM(lists[list], i));
            struct folder *folder = &made->of[made->count];
            folder->prefix = prefix ? strdup(prefix) : NULL;
            if (!folder->prefix)
                continue;
            folder->length = strlen(folder->prefix);
            folder->owner = owners[list];
            made->count++;
        }
    }
    if (!made)
        return PyErr_NoMemory();
    if (PyErr_Occurred()) {
        free_folders(made);
        return NULL;
    }
    atomic_store(&folders, made);
    Py_RETURN_NONE;
}
