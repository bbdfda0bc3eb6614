/* storage.c - where this torch keeps a tensor's memory, as learned; and the numbers of devices. */
#include "torch/storage.h"

#include "interpose/slot.h"

#include <pthread.h>

#define X(word) .word = -1,
struct mst_layout mst_layout = {MST_LAYOUT(X)};
#undef X
uint64_t mst_cpu_deleter, mst_accumulate;

static struct {
    int8_t type, index;
} devices[MS_MAX_DEVICES] = {{0, -1}}; /* the CPU is 0 */
static _Atomic uint32_t device_count = 1;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER; /* guards additions */

static uint32_t find_device(int8_t type, int8_t index, uint32_t from, uint32_t to)
{
    while (from < to && (devices[from].type != type || devices[from].index != index))
        from++;
    return from;
}

/* As torch calls it, where that is known here. */
static void name_device(uint32_t number, int8_t type, int8_t index)
{
    static const struct {
        int8_t type;
        const char *name;
    } known[] = {{1, "cuda"}, {6, "hip"}, {12, "xpu"}, {13, "mps"}, {14, "meta"}, {20, "privateuseone"}};
    char name[32];
    snprintf(name, sizeof name, "type%d:%d", type, index);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type)
            snprintf(name, sizeof name, index < 0 ? "%s" : "%s:%d", known[i].name, index);
    ms_device_set_name(mst_watch, number, name);
}

uint32_t mst_device_number(int8_t type, int8_t index)
{
    if (type == MST_CPU)
        return 0;
    uint32_t count = atomic_load_explicit(&device_count, memory_order_acquire);
    uint32_t at = find_device(type, index, 1, count);
    if (at < count)
        return at;
    pthread_mutex_lock(&device_lock);
    uint32_t now = atomic_load_explicit(&device_count, memory_order_relaxed);
    at = find_device(type, index, count, now);
    if (at == now && now < MS_MAX_DEVICES) {
        devices[now].type = type;
        devices[now].index = index;
        name_device(now, type, index);
        atomic_store_explicit(&device_count, now + 1, memory_order_release);
    }
    pthread_mutex_unlock(&device_lock);
    return at;
}

int8_t mst_device_type(uint32_t number)
{
    return number < MS_MAX_DEVICES ? devices[number].type : 0;
}

void mst_devices_lock(void)
{
    pthread_mutex_lock(&device_lock);
}

void mst_devices_unlock(void)
{
    pthread_mutex_unlock(&device_lock);
}

static PyObject *list_devices(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    uint32_t count = atomic_load(&device_count);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *pair = Py_BuildValue("(ii)", devices[i].type, devices[i].index);
        if (!pair || PyList_Append(list, pair) != 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *device_number(PyObject *self, PyObject *args)
{
    (void)self;
    int type, index;
    if (!PyArg_ParseTuple(args, "ii", &type, &index))
        return NULL;
    return PyLong_FromUnsignedLong(mst_device_number((int8_t)type, (int8_t)index));
}

/* ---- learning, from Python ---- */
enum { PEEK_BYTES = 512, MOST_WORDS = 256 };

/* Any address may be asked for: the list ends where memory does. */
static PyObject *peek(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long address;
    int count;
    if (!PyArg_ParseTuple(args, "Ki", &address, &count))
        return NULL;
    if (count < 0 || count > MOST_WORDS) {
        PyErr_Format(PyExc_ValueError, "at most %d words can be read at once", MOST_WORDS);
        return NULL;
    }
    uint64_t words[PEEK_BYTES / 8];
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        if (i % (PEEK_BYTES / 8) == 0) {
            int left = count - i < PEEK_BYTES / 8 ? count - i : PEEK_BYTES / 8;
            if (!ms_peek((uintptr_t)address + (uintptr_t)i * 8, words, (size_t)left * 8))
                break;
        }
        PyObject *word = PyLong_FromUnsignedLongLong(words[i % (PEEK_BYTES / 8)]);
        if (!word || PyList_Append(list, word) != 0)
            Py_CLEAR(list);
        Py_XDECREF(word);
    }
    return list;
}

static PyObject *set_tensor_layout(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    unsigned long long deleter = 0, accumulate = 0;
#define X(word) #word,
    static char *names[] = {MST_LAYOUT(X) "cpu_deleter", "accumulate", NULL};
#undef X
    struct mst_layout layout;
#define X(word) &layout.word,
    if (!PyArg_ParseTupleAndKeywords(args, named, "iiiiiiiiiKK", names, MST_LAYOUT(X) & deleter, &accumulate))
        return NULL;
#undef X
    mst_layout = layout;
    mst_cpu_deleter = deleter;
    mst_accumulate = accumulate;
    Py_RETURN_NONE;
}

/* What is read of a tensor: (data, bytes, device type, device index, deleter, gradient's impl). */
static PyObject *read_tensor(PyObject *self, PyObject *tensor)
{
    (void)self;
    struct mst_storage storage;
    if (!PyObject_TypeCheck(tensor, mst_torch.tensor)) {
        PyErr_SetString(PyExc_TypeError, "expected a torch.Tensor");
        return NULL;
    }
    if (!mst_storage_known() || !mst_storage_of(mst_impl_of(tensor), &storage))
        Py_RETURN_NONE;
    return Py_BuildValue("(KLiiKK)", storage.data, storage.bytes, storage.device_type, storage.device_index,
                         storage.deleter, mst_grad_of(mst_impl_of(tensor)));
}

PyMethodDef mst_storage_methods[] = {
    {"devices", list_devices, METH_NOARGS, "The devices numbered so far: torch's type and index of each."},
    {"device_number", device_number, METH_VARARGS, "The ledger's number of a device."},
    {"peek", peek, METH_VARARGS, "Words of memory that may not be there: as many as are."},
    {"set_tensor_layout", (PyCFunction)(void (*)(void))set_tensor_layout, METH_VARARGS | METH_KEYWORDS,
     "Where this torch keeps a tensor's memory; -1: not known."},
    {"read_tensor", read_tensor, METH_O,
     "A tensor's data, bytes, device type and index, deleter, gradient; None if it has no storage."},
    {NULL, NULL, 0, NULL},
};
