/* existing_blocks.c - blocks that were allocated before the ledger was attached, so that no allocator reported them. */
#include "torch/blocks/blocks.h"

static PyObject *existing_sizes; /* a dict, or NULL */

void mst_existing_blocks_set(PyObject *sizes)
{
    Py_XSETREF(existing_sizes, Py_XNewRef(sizes));
}

/* A CPU block came from the allocator if it has the allocator's deleter. On other devices the
 * allocator lists its blocks with their sizes, which it has rounded up. */
bool mst_existing_block(const struct mst_storage *storage, uint64_t *bytes)
{
    *bytes = (uint64_t)storage->bytes;
    if (storage->device_type == MST_CPU)
        return !mst.cpu_deleter || storage->deleter == mst.cpu_deleter;
    PyObject *address = existing_sizes ? PyLong_FromUnsignedLongLong(storage->data) : NULL;
    PyObject *size = address ? PyDict_GetItemWithError(existing_sizes, address) : NULL;
    if (size)
        *bytes = PyLong_AsUnsignedLongLong(size);
    Py_XDECREF(address);
    PyErr_Clear();
    return !existing_sizes || size;
}
