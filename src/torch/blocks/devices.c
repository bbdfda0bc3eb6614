/* devices.c - the ledger's numbers of torch's devices. Allocators ask for them without the GIL. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"

#include <pthread.h>

/* Entries below device_count never change, so they are read without the lock. */
static struct {
    int8_t type, index;
} devices[MS_MAX_DEVICES] = {{MST_CPU, -1}};
static _Atomic uint32_t device_count = 1;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER; /* serializes additions */

static uint32_t find_device(int8_t type, int8_t index, uint32_t from, uint32_t to)
{
    while (from < to && (devices[from].type != type || devices[from].index != index))
        from++;
    return from;
}

/* torch's name of the device type, where it is known here. */
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
    ms_device_set_name(mst.watch, number, name);
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

/* ---- from Python ---- */
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

PyMethodDef mst_devices_methods[] = {
    {"devices", list_devices, METH_NOARGS, "torch's type and index of each device that has a number."},
    {"device_number", device_number, METH_VARARGS, "The ledger's number of a device, by torch's type and index."},
    {NULL, NULL, 0, NULL},
};
