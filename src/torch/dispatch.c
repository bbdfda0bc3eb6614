/* dispatch.c - blocks by what operators return: a storage is a block, its StorageImpl its address.
 *
 * For fake tensors, which have no memory, and where the allocators cannot be watched. Python
 * runs here: the operator came through a TorchDispatchMode (_dispatch.py). */
#include "torch/memory.h"

#include "torch/map.h"

static PyObject *live;    /* a dict: StorageImpl -> weak reference to its Python object */
static PyObject *numbers; /* a dict: torch.device -> the ledger's number */

enum { CUDA_ROUND = 512 };

static PyObject *storage_gone(PyObject *address, PyObject *ref)
{
    /* Another storage may have the address by now, under a reference of its own. */
    if (live && PyDict_GetItemWithError(live, address) == ref) {
        if (mst_ledger && mst_by_dispatcher)
            ms_block_drop(mst_target(), PyLong_AsUnsignedLongLong(address));
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
        PyObject *module = PyImport_ImportModule("modscope._devices");
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
    int error = ref ? 0 : -1;
    if (ref && live) /* else the tracker was left meanwhile */
        error = PyDict_SetItem(live, address, ref);
    Py_XDECREF(ref);
    Py_XDECREF(object);
    Py_XDECREF(gone);
    Py_XDECREF(address);
    return error;
}

static bool is_live(uint64_t storage)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *ref = address && live ? PyDict_GetItemWithError(live, address) : NULL;
    Py_XDECREF(address);
    PyErr_Clear();
    return ref && ((PyWeakReference *)ref)->wr_object != Py_None;
}

static uint64_t rounded(uint64_t bytes, bool cuda)
{
    return cuda ? (bytes + CUDA_ROUND - 1) / CUDA_ROUND * CUDA_ROUND : bytes;
}

void mst_dispatch_measure(void)
{
    PyObject *items = live ? PyDict_Items(live) : NULL;
    for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items); i++) {
        PyObject *ref = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1);
        uint64_t storage = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0));
        if (((PyWeakReference *)ref)->wr_object == Py_None)
            continue;
        int64_t bytes = (int64_t)mst_word(storage, mst_layout.size);
        uint32_t device;
        if (bytes >= 0 && ms_block_device(mst_target(), storage, &device) == MS_OK)
            ms_block_resize(mst_target(), storage, rounded((uint64_t)bytes, mst_device_type(device) == MST_CUDA));
        else if (bytes > 0) /* it was empty */
            ms_block_add_as(mst_target(), mst_mine, storage, (uint64_t)bytes, 0, MS_ACTIVATION, MS_GLOBAL, false);
    }
    Py_XDECREF(items);
    PyErr_Clear();
}

/* Make sure that a storage is a known block. `made`: by an operator, in this phase; else an object's. */
struct as {
    bool made;
    ms_phase phase;
    ms_category category;
    ms_path path;
};

static int add(PyObject *tensor, const struct mst_storage *storage, struct as as)
{
    bool cuda;
    long device = device_of(tensor, &cuda);
    if (device < 0)
        return -1;
    uint64_t bytes = rounded((uint64_t)storage->bytes, cuda);
    bool known = is_live(storage->storage);
    if (known && ms_block_resize(mst_target(), storage->storage, bytes) == MS_OK)
        return 0;
    if (!known && watch(tensor, storage->storage) != 0)
        return -1;
    if (as.made)
        ms_block_add_in(mst_target(), as.phase, as.path, storage->storage, bytes, (uint32_t)device);
    else
        ms_block_add_as(mst_target(), NULL, storage->storage, bytes, (uint32_t)device, as.category, as.path, false);
    return 0;
}

int mst_dispatch_hold(PyObject *tensor, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (!live || !mst_storage_of(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    if (is_live(storage.storage) && ms_block_claim(mst_target(), storage.storage, category, path) == MS_OK)
        return 0;
    return add(tensor, &storage, (struct as){.category = category, .path = path});
}

struct origin {
    ms_phase phase;
    ms_path path;
    PyObject *args, *kwargs; /* what the operator took */
    struct mst_map taken;    /* their storages, once they are asked for */
    bool asked;
};

static int take(PyObject *tensor, void *context)
{
    struct origin *origin = context;
    struct mst_storage storage;
    if (mst_storage_of(mst_impl_of(tensor), &storage))
        mst_map_set(&origin->taken, storage.storage, 0, 1);
    return 0;
}

/* Whether a storage was there before the operator: it came in with its arguments. */
static bool was_taken(struct origin *origin, uint64_t storage)
{
    bool first = !origin->asked;
    origin->asked = true;
    if (first &&
        (mst_tensors_visit(origin->args, take, origin) != 0 || mst_tensors_visit(origin->kwargs, take, origin) != 0))
        PyErr_Clear();
    return mst_map_get(&origin->taken, storage, 0) != NULL;
}

static int note_tensor(PyObject *tensor, void *context)
{
    struct origin *origin = context;
    struct mst_storage storage;
    if (!mst_storage_of(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    if (!is_live(storage.storage) && was_taken(origin, storage.storage))
        return 0;
    return add(tensor, &storage, (struct as){.made = true, .phase = origin->phase, .path = origin->path});
}

static int note_any(PyObject *tensor, void *context)
{
    return mst_inner_tensors(tensor, note_tensor, context);
}

static PyObject *note_result(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "note_result(result, args, kwargs)");
        return NULL;
    }
    if (!mst_ledger || !mst_by_dispatcher || !live)
        Py_RETURN_NONE;
    struct origin origin = {.args = given[1], .kwargs = given[2]};
    origin.path = mst_read_where(&origin.phase);
    int error = mst_tensors_visit(given[0], note_any, &origin);
    mst_map_clear(&origin.taken);
    return error ? NULL : Py_NewRef(Py_None);
}

PyMethodDef mst_dispatch_methods[] = {
    {"note_result", (PyCFunction)(void (*)(void))note_result, METH_FASTCALL,
     "Know the storages of the tensors that an operator returned and did not take."},
    {NULL, NULL, 0, NULL},
};
