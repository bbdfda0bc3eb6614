/* device.c - install the virtual device in torch, and remove it. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include "interpose/patch.h"

/* ---- what torch asks ---- */
typedef struct c10_optional_device_type {
    int8_t type;
    bool has_value;
} c10_optional_device_type;

static c10_optional_device_type answer_accelerator(bool checked)
{
    (void)checked;
    return (c10_optional_device_type){MST_CUDA, true};
}

static const void *answer_hooks(void)
{
    return mst_virtual_hooks();
}

static const void *answer_timers(void)
{
    return mst_virtual_timers();
}

#define GET_ACCELERATOR "_ZN2at11accelerator14getAcceleratorEb"
#define GET_HOOKS "_ZN2at6detail12getCUDAHooksEv"
#define TIMERS "_ZN4c10d13TimerRegistryEv"
#define GUARDS "_ZN3c104impl26device_guard_impl_registryE"
#define SET_ALLOCATOR "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh"
#define GET_ALLOCATOR "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"
#define GET_ENGINE "_ZN5torch8autograd6Engine18get_default_engineEv"
#define START_THREADS "_ZN5torch8autograd6Engine20start_device_threadsEv"
#define REQUIRE_INIT "_ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb"

static struct point {
    const char *library, *symbol;
    ms_elf_slot slot;
    ms_patch patch;
} points[] = {
#define POINT(at, in_library, of_symbol, function) \
    [at] = {.library = (in_library), .symbol = (of_symbol), .patch = MS_PATCH_ELF_SLOT(function, &points[at].slot)}
    POINT(0, "libtorch_cpu", GET_ACCELERATOR, answer_accelerator),
    POINT(1, "libtorch_python", GET_ACCELERATOR, answer_accelerator),
    POINT(2, "libtorch_cpu", GET_HOOKS, answer_hooks),
    POINT(3, "libtorch_python", GET_HOOKS, answer_hooks),
    POINT(4, "libtorch_cpu", TIMERS, answer_timers),
#undef POINT
};
enum { OF_TIMERS = 4 /* only a torch with torch.distributed has it */, POINT_COUNT = sizeof points / sizeof *points };

static const void *_Atomic *guards; /* torch's table of guards, by device type */
static const void *previous_guard;
static void *previous_allocator;
static uint8_t priority; /* of the device's allocator: the lowest that replaces the previous one, which has it too */
static void (*set_allocator)(int8_t device_type, void *allocator, uint8_t priority);
static void *(*get_allocator)(const int8_t *device_type);
static void (*require_init)(int8_t device_type, bool required); /* NULL where this torch has none */
static bool has_cuda;                                           /* this torch was built with CUDA */

static const char *find_points(void)
{
    guards = (const void *_Atomic *)(uintptr_t)ms_elf_symbol_find("libc10", GUARDS);
    set_allocator = (void (*)(int8_t, void *, uint8_t))ms_elf_symbol_find("libc10", SET_ALLOCATOR);
    get_allocator = (void *(*)(const int8_t *))ms_elf_symbol_find("libc10", GET_ALLOCATOR);
    require_init = (void (*)(int8_t, bool))ms_elf_symbol_find("libtorch_python", REQUIRE_INIT);
    if (!guards || !set_allocator || !get_allocator)
        return "libc10 has no table of device guards, or no SetAllocator";
    for (int i = 0; i < POINT_COUNT; i++)
        if (!points[i].slot.address && ms_elf_slot_find(points[i].library, points[i].symbol, &points[i].slot) != 0 &&
            i != OF_TIMERS)
            return points[i].symbol;
    ms_elf_slot *timers = &points[OF_TIMERS].slot;
    if (timers->address && !mst_virtual_knows_timers(((const void *(*)(void))timers->function)()))
        timers->address = NULL;
    return NULL;
}

static void restore_points(void)
{
    for (int i = 0; i < POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
    if (atomic_load(&guards[MST_CUDA]) == mst_virtual_guard())
        atomic_store(&guards[MST_CUDA], previous_guard);
    set_allocator(MST_CUDA, previous_allocator, priority);
    if (require_init)
        require_init(MST_CUDA, true);
}

/* Our functions never call the functions that they replace, so it does not matter what was patched before. */
static bool always_reached(void)
{
    return false;
}

static bool install_allocator(void)
{
    static const int8_t cuda = MST_CUDA;
    previous_allocator = has_cuda ? get_allocator(&cuda) : NULL; /* without one, get_allocator throws */
    for (int level = 0; level <= UINT8_MAX; level++) {
        priority = (uint8_t)level;
        set_allocator(MST_CUDA, mst_virtual_allocator(), priority);
        if (!has_cuda || get_allocator(&cuda) == mst_virtual_allocator())
            return true;
    }
    return false;
}

static const char *install_points(void)
{
    for (int i = 0; i < POINT_COUNT; i++)
        if (points[i].slot.address && ms_patch_install(&points[i].patch, always_reached) != 0) {
            restore_points();
            return points[i].symbol;
        }
    previous_guard = atomic_exchange(&guards[MST_CUDA], mst_virtual_guard());
    if (install_allocator())
        return NULL;
    restore_points();
    return SET_ALLOCATOR;
}

/* ---- from Python ---- */
static ms_allocator_settings opened_with; /* of the installed devices */
static int opened_count;

static bool parse_settings(PyObject *args, PyObject *named, ms_allocator_settings *settings)
{
    static char *names[] = {"version", "conf", "capacity", "total_memory", "has_cuda", "count", NULL};
    const char *version, *conf;
    unsigned long long capacity, total_memory;
    int built_with_cuda = false;
    opened_count = 1;
    char error[200];
    if (!PyArg_ParseTupleAndKeywords(args, named, "szKK|pi", names, &version, &conf, &capacity, &total_memory,
                                     &built_with_cuda, &opened_count))
        return false;
    has_cuda = built_with_cuda;
    if (opened_count < 1 || opened_count > MST_MOST_VIRTUAL) {
        PyErr_Format(PyExc_ValueError, "there can be 1 to %d virtual GPUs, not %d", MST_MOST_VIRTUAL, opened_count);
        return false;
    }
    if (ms_allocator_settings_default(settings, version) != MS_OK) {
        PyErr_Format(PyExc_ValueError, "'%s' is not a version of torch that is known: give 2.0 or newer, such as 2.11",
                     version);
        return false;
    }
    if (conf && ms_allocator_settings_apply(settings, conf, error, sizeof error) != MS_OK) {
        PyErr_Format(PyExc_ValueError, "PYTORCH_CUDA_ALLOC_CONF=%s: %s", conf, error);
        return false;
    }
    settings->capacity = capacity;
    settings->total_memory = total_memory;
    return true;
}

static PyObject *virtual_install(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    if (mst_virtual_is_open()) {
        PyErr_SetString(PyExc_RuntimeError, "a virtual GPU is installed already: leave it first");
        return NULL;
    }
    if (!parse_settings(args, named, &opened_with))
        return NULL;
    mst_virtual_fill_tables();
    const char *missing = find_points();
    if (missing)
        return PyErr_Format(PyExc_RuntimeError, "this torch does not let a virtual GPU be installed: %s", missing);
    if (mst_virtual_open(&opened_with, opened_count) != MS_OK)
        return PyErr_NoMemory();
    missing = install_points();
    if (missing) {
        mst_virtual_close();
        return PyErr_Format(PyExc_RuntimeError, "a slot of torch cannot be written: %s", missing);
    }
    Py_RETURN_NONE;
}

/* After tests of the installation: the device is as if nothing had happened on it. */
static PyObject *virtual_restart(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return mst_virtual_open(&opened_with, opened_count) == MS_OK ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static PyObject *virtual_remove(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (!mst_virtual_is_open())
        Py_RETURN_NONE;
    restore_points();
    for (int i = 0; i < mst_virtual_count(); i++)
        mst_virtual_set_stream(i, 0);
    mst_virtual_set_device(0);
    mst_virtual_close();
    Py_RETURN_NONE;
}

/* torch initializes CUDA once in a process, and believes that it did it while the virtual device was there. */
static PyObject *virtual_initialize_real(PyObject *self, PyObject *slot)
{
    (void)self;
    int at = (int)PyLong_AsLong(slot);
    if (PyErr_Occurred())
        return NULL;
    const mst_cxx_object *hooks = ((const mst_cxx_object *(*)(void))points[2].slot.function)();
    ((void (*)(const void *))(*hooks)[at])(hooks);
    Py_RETURN_NONE;
}

/* torch starts a thread of backward for each device when the first backward of a process runs. If that was before the
 * device was installed, it has none. torch has no threads for other devices here: it would wait for ever to have as
 * many as there are devices. */
static PyObject *virtual_start_backward_threads(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    void *(*engine)(void) = (void *(*)(void))ms_elf_symbol_find("libtorch_cpu", GET_ENGINE);
    void (*start)(void *) = (void (*)(void *))ms_elf_symbol_find("libtorch_cpu", START_THREADS);
    if (!engine || !start)
        return PyBool_FromLong(false);
    Py_BEGIN_ALLOW_THREADS /* a new thread needs the GIL before it says that it has begun */
    start(engine());
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(true);
}

PyMethodDef mst_virtual_device_methods[] = {
    {"virtual_install", (PyCFunction)(void (*)(void))virtual_install, METH_VARARGS | METH_KEYWORDS,
     "Install virtual CUDA devices with this much memory each, and the allocator of this version of torch."},
    {"virtual_restart", virtual_restart, METH_NOARGS, "Begin with an empty allocator and no statistics."},
    {"virtual_remove", virtual_remove, METH_NOARGS, "Remove the virtual device. Its tensors stay, and can still die."},
    {"virtual_initialize_real", virtual_initialize_real, METH_O,
     "Call the function of torch's own hooks that initializes CUDA, by its entry. There must be a GPU."},
    {"virtual_start_backward_threads", virtual_start_backward_threads, METH_NOARGS,
     "Let torch run backward on the device, where it has no thread for that: an earlier backward found no device. "
     "False "
     "if this torch has no such function."},
    {NULL, NULL, 0, NULL},
};
