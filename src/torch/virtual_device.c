/* virtual_device.c - install a virtual CUDA device in torch: its guard, its hooks and its memory. */
#include "torch/virtual_device.h"

#include "interpose/patch.h"
#include "modscope_allocator.h"
#include "torch/api.h"
#include "torch/devices.h"
#include "torch/intercept.h"
#include "torch/virtual_log.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- memory ---- */

/* Tensors may outlive the device. Its model is closed after the last of them has died. */
struct model {
    ms_allocator *allocator;
    uint64_t blocks; /* that are not given back */
    bool ended;      /* the device is gone */
};

struct mst_virtual_block {
    struct model *model;
    ms_allocation *allocation; /* NULL: of 0 bytes */
    uint64_t logged;           /* its number in the log */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards every model, and `current` */
static struct model *current;                            /* of the installed device, or NULL */
static _Thread_local struct mst_virtual_block *handed_over;

/* With the lock: the ledger learns of each block as from a real allocator. */
static void report_block(const struct mst_virtual_block *block, bool added)
{
    const ms_allocator_stats *stats = ms_allocator_read(block->model->allocator);
    int64_t bytes = (int64_t)ms_allocation_bytes(block->allocation);
    mst_blocks_report(ms_allocation_address(block->allocation), added ? bytes : -bytes,
                      (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now, MST_CUDA, 0);
}

static void report_failure(const ms_allocator *allocator, uint64_t bytes)
{
    const ms_allocator_stats *stats = ms_allocator_read(allocator);
    mst_blocks_report_failure(bytes, (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now,
                              (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now, MST_CUDA, 0);
}

int mst_virtual_take(uint64_t bytes, struct mst_virtual_block **taken)
{
    struct mst_virtual_block *block = malloc(sizeof *block);
    if (!block)
        return MS_ENOMEM;
    pthread_mutex_lock(&lock);
    struct model *model = current;
    *block = (struct mst_virtual_block){.model = model};
    int error = model ? ms_allocator_malloc(model->allocator, bytes, 0, &block->allocation) : MS_EINVAL;
    if (!error) {
        model->blocks++;
        if (block->allocation) {
            block->logged = mst_virtual_log_malloc(bytes, 0);
            report_block(block, true);
        }
    } else if (error == MS_EDEVICE) {
        report_failure(model->allocator, bytes);
    }
    pthread_mutex_unlock(&lock);
    if (error)
        free(block);
    else
        *taken = block;
    return error;
}

/* With the lock. */
static void close_if_unused(struct model *model)
{
    if (!model->ended || model->blocks)
        return;
    ms_allocator_close(model->allocator);
    free(model);
}

void mst_virtual_give(struct mst_virtual_block *block)
{
    pthread_mutex_lock(&lock);
    struct model *model = block->model;
    if (block->allocation) {
        if (!model->ended) {
            mst_virtual_log_free(block->logged);
            report_block(block, false);
        }
        ms_allocator_free(model->allocator, block->allocation);
    }
    model->blocks--;
    close_if_unused(model);
    pthread_mutex_unlock(&lock);
    free(block);
}

void mst_virtual_hand_over(struct mst_virtual_block *block)
{
    handed_over = block;
}

/* ---- c10::Allocator ---- */
typedef struct c10_data_ptr { /* c10::DataPtr: a unique_ptr stores its deleter before its pointer */
    void *data;
    void (*deleter)(void *);
    void *context;
    int8_t device_type, device_index;
} c10_data_ptr;

static void give_storage(void *context)
{
    mst_virtual_give(context);
}

/* Allocator::allocate. A storage that operators make was taken before, and is handed over; else torch's own C++ code
 * resizes a storage. Where the device is full it gets no memory, which it reports as an error of its own. */
static c10_data_ptr *allocate(c10_data_ptr *result, void *self, size_t bytes)
{
    (void)self;
    struct mst_virtual_block *block = handed_over;
    handed_over = NULL;
    if (!block && mst_virtual_take(bytes, &block) != MS_OK)
        block = NULL;
    bool has_memory = block && block->allocation;
    *result = (c10_data_ptr){
        .data = has_memory ? (void *)(uintptr_t)ms_allocation_address(block->allocation) : NULL,
        .deleter = block ? give_storage : NULL,
        .context = block,
        .device_type = MST_CUDA,
    };
    return result;
}

/* Every other virtual function of the allocator and of the hooks: no, none, nothing done. */
static uint64_t answer_zero(void)
{
    return 0;
}

/* Every virtual function of the guard. Read as what each of them returns, this is: the device type CUDA, the device
 * cuda:0, its stream 0, one device, true. */
struct two_words {
    uint64_t first, second;
};

static struct two_words answer_one(void)
{
    return (struct two_words){1, 0};
}

/* A C++ object is a pointer to its table of virtual functions. */
enum { TABLE_SIZE = 256, ALLOCATE = 2 /* after the two destructors */ };
typedef const ms_function *cxx_object;
static ms_function allocator_table[TABLE_SIZE], guard_table[TABLE_SIZE], hooks_table[TABLE_SIZE];
static cxx_object allocator_object = allocator_table, guard_object = guard_table, hooks_object = hooks_table;

static void fill_tables(void)
{
    for (int i = 0; i < TABLE_SIZE; i++) {
        allocator_table[i] = hooks_table[i] = (ms_function)answer_zero;
        guard_table[i] = (ms_function)answer_one;
    }
    allocator_table[ALLOCATE] = (ms_function)allocate;
}

void *mst_virtual_allocator(void)
{
    return (void *)&allocator_object;
}

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
    return &hooks_object;
}

#define GET_ACCELERATOR "_ZN2at11accelerator14getAcceleratorEb"
#define GET_HOOKS "_ZN2at6detail12getCUDAHooksEv"
#define GUARDS "_ZN3c104impl26device_guard_impl_registryE"
#define SET_ALLOCATOR "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh"

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
#undef POINT
};
enum { POINT_COUNT = sizeof points / sizeof *points, HIGHEST_PRIORITY = 255 };

static const void *_Atomic *guards; /* torch's table of guards, by device type */
static const void *previous_guard;
static void (*set_allocator)(int8_t device_type, void *allocator, uint8_t priority);

static const char *find_points(void)
{
    guards = (const void *_Atomic *)(uintptr_t)ms_elf_symbol_find("libc10", GUARDS);
    set_allocator = (void (*)(int8_t, void *, uint8_t))ms_elf_symbol_find("libc10", SET_ALLOCATOR);
    if (!guards || !set_allocator)
        return "libc10 has no table of device guards, or no SetAllocator";
    for (int i = 0; i < POINT_COUNT; i++)
        if (!points[i].slot.address && ms_elf_slot_find(points[i].library, points[i].symbol, &points[i].slot) != 0)
            return points[i].symbol;
    return NULL;
}

static void restore_points(void)
{
    for (int i = 0; i < POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
    if (atomic_load(&guards[MST_CUDA]) == (const void *)&guard_object)
        atomic_store(&guards[MST_CUDA], previous_guard);
}

/* Our functions call nothing before them: being in a chain does not matter. */
static bool always_reached(void)
{
    return false;
}

static const char *install_points(void)
{
    for (int i = 0; i < POINT_COUNT; i++)
        if (ms_patch_install(&points[i].patch, always_reached) != 0) {
            restore_points();
            return points[i].symbol;
        }
    previous_guard = atomic_exchange(&guards[MST_CUDA], (const void *)&guard_object);
    return NULL;
}

/* ---- from Python ---- */
static bool parse_settings(PyObject *args, PyObject *named, ms_allocator_settings *settings)
{
    static char *names[] = {"version", "conf", "capacity", "total_memory", NULL};
    const char *version, *conf;
    unsigned long long capacity, total_memory;
    char error[200];
    if (!PyArg_ParseTupleAndKeywords(args, named, "szKK", names, &version, &conf, &capacity, &total_memory))
        return false;
    if (ms_allocator_settings_default(settings, version) != MS_OK) {
        PyErr_Format(PyExc_ValueError, "'%s' is not a version of torch: give it as 2.11", version);
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
    ms_allocator_settings settings;
    if (!parse_settings(args, named, &settings))
        return NULL;
    if (current) {
        PyErr_SetString(PyExc_RuntimeError, "a virtual GPU is installed already: leave it first");
        return NULL;
    }
    fill_tables();
    const char *missing = find_points();
    if (missing)
        return PyErr_Format(PyExc_RuntimeError, "this torch does not let a virtual GPU be installed: %s", missing);
    struct model *model = calloc(1, sizeof *model);
    if (model)
        model->allocator = ms_allocator_open(&settings, NULL);
    if (!model || !model->allocator) {
        free(model);
        return PyErr_NoMemory();
    }
    missing = install_points();
    if (missing) {
        ms_allocator_close(model->allocator);
        free(model);
        return PyErr_Format(PyExc_RuntimeError, "a slot of torch cannot be written: %s", missing);
    }
    set_allocator(MST_CUDA, mst_virtual_allocator(), HIGHEST_PRIORITY);
    pthread_mutex_lock(&lock);
    current = model;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *virtual_remove(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (!current)
        Py_RETURN_NONE;
    restore_points();
    set_allocator(MST_CUDA, NULL, HIGHEST_PRIORITY);
    pthread_mutex_lock(&lock);
    struct model *model = current;
    current = NULL;
    model->ended = true;
    close_if_unused(model);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* Memory that an operator takes beside its results. */
static PyObject *virtual_take(PyObject *self, PyObject *argument)
{
    (void)self;
    uint64_t bytes = PyLong_AsUnsignedLongLong(argument);
    struct mst_virtual_block *block;
    if (PyErr_Occurred())
        return NULL;
    int error = mst_virtual_take(bytes, &block);
    if (error == MS_EDEVICE)
        Py_RETURN_NONE;
    if (error)
        return error == MS_ENOMEM ? PyErr_NoMemory() : PyErr_Format(PyExc_RuntimeError, "no virtual GPU is installed");
    PyObject *handle = PyLong_FromVoidPtr(block);
    if (!handle)
        mst_virtual_give(block);
    return handle;
}

static PyObject *virtual_give(PyObject *self, PyObject *handle)
{
    (void)self;
    struct mst_virtual_block *block = PyLong_AsVoidPtr(handle);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_give(block);
    Py_RETURN_NONE;
}

static PyObject *stat_of(const ms_allocator_stat *stat)
{
    return Py_BuildValue("(LLLL)", (long long)stat->now, (long long)stat->peak, (long long)stat->total_added,
                         (long long)stat->total_removed);
}

static int add_value(PyObject *stats, const char *name, PyObject *value)
{
    int error = value ? PyDict_SetItemString(stats, name, value) : -1;
    Py_XDECREF(value);
    return error;
}

/* By torch's names: (current, peak, allocated, freed) of all, of the small and of the large pool; or a number. */
static PyObject *virtual_stats(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    ms_allocator_stats copy = {0};
    if (current)
        copy = *ms_allocator_read(current->allocator);
    pthread_mutex_unlock(&lock);
    const struct {
        const char *name;
        const ms_allocator_stat *of;
    } pools[] = {{"allocation", copy.allocations},
                 {"segment", copy.segments},
                 {"active", copy.active},
                 {"inactive_split", copy.inactive_split},
                 {"allocated_bytes", copy.allocated_bytes},
                 {"reserved_bytes", copy.reserved_bytes},
                 {"active_bytes", copy.active_bytes},
                 {"inactive_split_bytes", copy.inactive_split_bytes},
                 {"requested_bytes", copy.requested_bytes}};
    const struct {
        const char *name;
        int64_t of;
    } counts[] = {{"num_alloc_retries", copy.retries},
                  {"num_ooms", copy.failures},
                  {"num_sync_all_streams", copy.synchronizations},
                  {"num_device_alloc", copy.device_allocs},
                  {"num_device_free", copy.device_frees}};
    PyObject *stats = PyDict_New();
    int error = stats ? 0 : -1;
    for (size_t i = 0; !error && i < sizeof pools / sizeof *pools; i++)
        error = add_value(stats, pools[i].name,
                          Py_BuildValue("(NNN)", stat_of(&pools[i].of[MS_BOTH_POOLS]),
                                        stat_of(&pools[i].of[MS_SMALL_POOL]), stat_of(&pools[i].of[MS_LARGE_POOL])));
    for (size_t i = 0; !error && i < sizeof counts / sizeof *counts; i++)
        error = add_value(stats, counts[i].name, PyLong_FromLongLong(counts[i].of));
    if (!error)
        error = add_value(stats, "oversize_allocations", stat_of(&copy.oversize_allocations));
    if (!error)
        error = add_value(stats, "oversize_segments", stat_of(&copy.oversize_segments));
    if (error)
        Py_CLEAR(stats);
    return stats;
}

static void append_block(void *context, const ms_allocation *allocation)
{
    PyObject *block = Py_BuildValue("(KK)", (unsigned long long)ms_allocation_address(allocation),
                                    (unsigned long long)ms_allocation_bytes(allocation));
    if (!PyErr_Occurred() && block)
        PyList_Append(context, block);
    Py_XDECREF(block);
}

static PyObject *virtual_blocks(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *blocks = PyList_New(0);
    pthread_mutex_lock(&lock);
    if (blocks && current)
        ms_allocator_each(current->allocator, append_block, blocks);
    pthread_mutex_unlock(&lock);
    if (PyErr_Occurred())
        Py_CLEAR(blocks);
    return blocks;
}

static PyObject *virtual_empty_cache(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    int error = current ? ms_allocator_empty_cache(current->allocator) : MS_OK;
    mst_virtual_log_empty_cache();
    pthread_mutex_unlock(&lock);
    return error ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *virtual_reset(PyObject *self, PyObject *what)
{
    (void)self;
    int peaks = PyObject_IsTrue(what);
    if (peaks < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    if (current && peaks)
        ms_allocator_reset_peaks(current->allocator);
    else if (current)
        ms_allocator_reset_accumulated(current->allocator);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

PyMethodDef mst_virtual_device_methods[] = {
    {"virtual_install", (PyCFunction)(void (*)(void))virtual_install, METH_VARARGS | METH_KEYWORDS,
     "Install a virtual CUDA device with this much memory, and the allocator of this version of torch."},
    {"virtual_remove", virtual_remove, METH_NOARGS, "Remove the virtual device. Its tensors stay, and can still die."},
    {"virtual_take", virtual_take, METH_O, "Take memory: a handle, or None if the device is full."},
    {"virtual_give", virtual_give, METH_O, "Give back memory, by its handle."},
    {"virtual_stats", virtual_stats, METH_NOARGS, "The allocator's statistics, by torch's names."},
    {"virtual_blocks", virtual_blocks, METH_NOARGS, "The live blocks: (address, bytes)."},
    {"virtual_empty_cache", virtual_empty_cache, METH_NOARGS, "Give free segments back to the virtual device."},
    {"virtual_reset", virtual_reset, METH_O, "Reset the peaks (True) or the accumulated statistics (False)."},
    {NULL, NULL, 0, NULL},
};
