/* dispatch.c - blocks by what operators return: a storage is a block, its StorageImpl its address.
 *
 * For fake tensors, which have no memory, and where the allocators cannot be watched. Python
 * runs here: the operator came through a TorchDispatchMode (_dispatch.py). */
#include "torch/memory.h"

static PyObject *live;    /* a dict: StorageImpl -> weak reference to its Python object */
static PyObject *numbers; /* a dict: torch.device -> the ledger's number */

enum { CUDA_ROUND = 512 };

static PyObject *storage_gone(PyObject *address, PyObject *ref)
{
    /* Another storage may have the address by now, under a reference of its own. */
    if (live && PyDict_GetItemWithError(live, address) == ref) {
        if (mst_ledger && mst_by_dispatcher)
            ms_block_drop(mst_ledger, PyLong_AsUnsignedLongLong(address));
        PyDict_DelItem(live, address);
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef gone_def = {"storage_gone", storage_gone, METH_O, NULL};

int mst_dispatch_begin(void)
{
    Py_XSETREF(live, PyDict_New());
    return live ? 0 : -1;
}

void mst_dispatch_end(void)
{
    Py_CLEAR(live);
}

/* The number of a device; Python is asked once for each, and may refuse it. */
static long number_of(PyObject *device)
{
    if (!numbers && !(numbers = PyDict_New()))
        return -1;
    PyObject *number = Py_XNewRef(PyDict_GetItemWithError(numbers, device));
    if (!number && !PyErr_Occurred()) {
        PyObject *module = PyImport_ImportModule("modscope._memory");
        number = module ? PyObject_CallMethod(module, "number_device", "O", device) : NULL;
        Py_XDECREF(module);
        if (number && PyDict_SetItem(numbers, device, number) != 0)
            Py_CLEAR(number);
    }
    long value = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return value;
}

static long device_of(PyObject *tensor, bool *cuda)
{
    PyObject *device = PyObject_GetAttr(tensor, mst_words.device);
    long number = device ? number_of(device) : -1;
    PyObject *type = number >= 0 ? PyObject_GetAttrString(device, "type") : NULL;
    *cuda = type && PyUnicode_CompareWithASCIIString(type, "cuda") == 0;
    Py_XDECREF(device);
    Py_XDECREF(type);
    return number;
}

/* A storage's Python object lives as long as the storage once there is one. */
static int watch(PyObject *tensor, uint64_t storage)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *gone = address ? PyCFunction_New(&gone_def, address) : NULL;
    PyObject *object = gone ? PyObject_CallMethodNoArgs(tensor, mst_words.untyped_storage) : NULL;
    PyObject *ref = object ? PyWeakref_NewRef(object, gone) : NULL;
    int error = ref ? PyDict_SetItem(live, address, ref) : -1;
    Py_XDECREF(ref);
    Py_XDECREF(object);
    Py_XDECREF(gone);
    Py_XDECREF(address);
    return error;
}

static bool is_live(uint64_t storage)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *ref = address ? PyDict_GetItemWithError(live, address) : NULL;
    Py_XDECREF(address);
    PyErr_Clear();
    return ref && ((PyWeakReference *)ref)->wr_object != Py_None;
}

static int add(PyObject *tensor, const struct mst_storage *storage, ms_category category, ms_path path)
{
    bool cuda;
    long device = device_of(tensor, &cuda);
    if (device < 0)
        return -1;
    uint64_t bytes = (uint64_t)storage->bytes;
    if (cuda)
        bytes = (bytes + CUDA_ROUND - 1) / CUDA_ROUND * CUDA_ROUND;
    bool known = is_live(storage->storage);
    if (known && ms_block_bytes(mst_ledger, &storage->storage, 1) == bytes)
        return 0;
    if (!known && watch(tensor, storage->storage) != 0)
        return -1;
    ms_block_add_as(mst_ledger, mst_mine, storage->storage, bytes, (uint32_t)device, category, path, false);
    return 0;
}

int mst_dispatch_hold(PyObject *tensor, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (!live || !mst_storage_of(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    if (is_live(storage.storage) && ms_block_claim(mst_ledger, storage.storage, category, path) == MS_OK)
        return 0;
    return add(tensor, &storage, category, path);
}

struct origin {
    ms_category category;
    ms_path path;
};

static int note_tensor(PyObject *tensor, void *context)
{
    const struct origin *origin = context;
    struct mst_storage storage;
    if (!mst_storage_of(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    return add(tensor, &storage, origin->category, origin->path);
}

static int note_any(PyObject *tensor, void *context)
{
    return mst_inner_tensors(tensor, note_tensor, context);
}

static PyObject *note_result(PyObject *self, PyObject *result)
{
    (void)self;
    if (!mst_ledger || !mst_by_dispatcher || !live)
        Py_RETURN_NONE;
    ms_phase phase;
    ms_path path = mst_read_where(&phase);
    bool passing = phase == MS_BACKWARD || phase == MS_OPTIMIZER;
    struct origin origin = {passing ? MS_TEMP : MS_ACTIVATION, path};
    return mst_tensors_visit(result, note_any, &origin) == 0 ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef mst_dispatch_methods[] = {
    {"note_result", note_result, METH_O, "Know the storages of the tensors that an operator returned."},
    {NULL, NULL, 0, NULL},
};
