/* sizes.c - the bytes of the blocks that go into a call and come out of it. */
#include "torch/memory.h"

enum { AT_ONCE = 64 };

struct sum {
    uint64_t addresses[AT_ONCE];
    size_t count;
    uint64_t bytes;
};

static void add_up(struct sum *sum)
{
    if (sum->count)
        sum->bytes += ms_block_bytes(mst_target(), sum->addresses, sum->count);
    sum->count = 0;
}

static int add_tensor(PyObject *tensor, void *context)
{
    struct sum *sum = context;
    struct mst_storage storage;
    if (!mst_storage_of(mst_impl_of(tensor), &storage))
        return 0;
    sum->addresses[sum->count++] = mst_by_dispatcher ? storage.storage : storage.data;
    if (UNLIKELY(sum->count == AT_ONCE))
        add_up(sum);
    return 0;
}

static int add_any(PyObject *tensor, void *context)
{
    return mst_inner_tensors(tensor, add_tensor, context);
}

/* Keyword arguments are many, and large objects that are no tensors mostly come as such (a cache of
 * keys and values): there only what can be seen without Python counts. */
void mst_measure(ms_thread *thread, bool output, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named)
{
    if (!mst_ledger || !mst_storage_known())
        return;
    struct sum sum;
    sum.count = 0;
    sum.bytes = 0;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    bool failing = PyErr_Occurred() != NULL;
    if (UNLIKELY(failing))
        PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (LIKELY(Py_TYPE(objects[i]) == mst_torch.tensor))
            add_tensor(objects[i], &sum);
        else if (mst_tensors_visit(objects[i], add_any, &sum) != 0)
            PyErr_Clear();
    }
    for (Py_ssize_t i = count; i < count + named; i++)
        if (mst_tensors_visit_plainly(objects[i], add_any, &sum) != 0)
            PyErr_Clear();
    add_up(&sum);
    if (UNLIKELY(failing))
        PyErr_Restore(type, value, traceback);
    ms_call_set_size(thread, output, sum.bytes);
}
