/* answers.c - the device guard and the hooks of the virtual device: C++ objects whose virtual functions are
 * ours.
 *
 * Their order in the table of virtual functions differs between versions of torch, and no symbol tells it. Almost all
 * of them may give the same answer. Those that may not are found by use: while the objects are probed, each entry of a
 * table records that it was called and with what, and answers with its own number where torch shows that. Python makes
 * the calls and names the entries (modscope/_virtual/device/probes.py). */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include <string.h>

enum { PROBED_SLOTS = 128, MOST_CALLS = 256, FIRST_PROBED_STREAM = 1000 };

static ms_function guard_table[MST_TABLE_SIZE], hooks_table[MST_TABLE_SIZE], pinned_table[MST_TABLE_SIZE];
static mst_cxx_object guard_object = guard_table, hooks_object = hooks_table;
/* Its address ends in a zero byte: where an entry that returns a bool or a device's index answers with it, that is 0.
 */
static _Alignas(256) mst_cxx_object pinned_object = pinned_table;

const void *mst_virtual_guard(void)
{
    return &guard_object;
}

const void *mst_virtual_hooks(void)
{
    return &hooks_object;
}

/* ---- answers that fit almost every function ---- */

/* Of the hooks: no, none, nothing done. */
static uint64_t answer_zero(void)
{
    return 0;
}

/* Of the guard. Read as what each of them returns, this is: the device type CUDA, true. */
static struct mst_two_words answer_one(void)
{
    return (struct mst_two_words){1, 0};
}

/* ---- answers of their own: c10::impl::DeviceGuardImplInterface ---- */

/* c10::Device is a type and an index, of a byte each. */
static uint64_t device_of(int index)
{
    return MST_CUDA | (uint64_t)index << 8;
}

/* The index of a device, which is that of the current one where it says none (-1, which is 255 here), or one that is
 * not there. */
static int index_of(uint64_t device)
{
    int index = (int)(device >> 8 & 0xff);
    return index < mst_virtual_count() ? index : mst_virtual_device();
}

static uint64_t get_device(void)
{
    return device_of(mst_virtual_device());
}

/* Of exchangeDevice, setDevice and uncheckedSetDevice, of which two return nothing. */
static uint64_t exchange_device(const void *self, uint64_t device)
{
    (void)self;
    return device_of(mst_virtual_set_device((int8_t)(device >> 8)));
}

static _Atomic int least_count; /* what count_devices answers at least */

static uint64_t count_devices(void)
{
    int count = mst_virtual_count();
    return (uint64_t)(count < least_count ? least_count : count);
}

static PyObject *virtual_count_at_least(PyObject *self, PyObject *count)
{
    (void)self;
    least_count = (int)PyLong_AsLong(count);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* c10::Stream is a device, in the lowest two bytes, and a number. */
static struct mst_two_words stream_of(int index, uint64_t number)
{
    return (struct mst_two_words){device_of(index), number};
}

static struct mst_two_words get_stream(const void *self, uint64_t device)
{
    (void)self;
    int index = index_of(device);
    return stream_of(index, mst_virtual_stream(index));
}

static struct mst_two_words get_default_stream(const void *self, uint64_t device)
{
    (void)self;
    return stream_of(index_of(device), 0);
}

static struct mst_two_words exchange_stream(const void *self, struct mst_two_words stream)
{
    (void)self;
    int index = index_of(stream.first);
    uint64_t previous = mst_virtual_stream(index);
    mst_virtual_set_stream(index, stream.second);
    return stream_of(index, previous);
}

/* torch has 32 streams of each priority, and gives them in turn. */
static uint64_t new_stream(int priority)
{
    enum { FIRST = 256 /* CUDA has meanings for low numbers */, STREAMS = 32, PRIORITIES = 4 };
    static _Atomic uint64_t given[PRIORITIES];
    int level = priority >= 0 ? 0 : -priority < PRIORITIES ? -priority : PRIORITIES - 1;
    return FIRST + (uint64_t)level * STREAMS + given[level]++ % STREAMS;
}

static struct mst_two_words get_new_stream(const void *self, uint64_t device, int priority)
{
    (void)self;
    return stream_of(index_of(device), new_stream(priority));
}

static struct mst_two_words get_stream_from_pool(const void *self, uint64_t device, bool is_high_priority)
{
    return get_new_stream(self, device, is_high_priority ? -1 : 0);
}

static double elapsed_time(void)
{
    return 0;
}

/* ---- answers of their own: at::CUDAHooksInterface ---- */
static void (*create_cpu_generator)(void **result, uint64_t seed);
static int generator_device; /* where a generator keeps its device; 0 if that is not known */

/* at::Generator is a pointer. A generator of the CPU does for a device on which no numbers are made, but it has to say
 * that it is of that device. */
static void **get_new_generator(void **result, const void *self, int8_t device)
{
    (void)self;
    *result = NULL;
    create_cpu_generator(result, 0);
    int index = device >= 0 ? device : mst_virtual_device();
    if (*result && generator_device)
        memcpy((char *)*result + generator_device, &(int8_t[2]){MST_CUDA, (int8_t)index}, 2);
    return result;
}

static const void *get_pinned_allocator(void)
{
    return &pinned_object;
}

/* A generator has its device just before its dispatch keys. False if they are not there. */
static bool find_generator_device(uint64_t cpu_keys)
{
    enum { FIRST_WORD = 3, WORDS = 16 };
    generator_device = 0;
    create_cpu_generator =
        (void (*)(void **, uint64_t))ms_elf_symbol_find("libtorch_cpu", "_ZN2at6detail18createCPUGeneratorEm");
    if (!create_cpu_generator)
        return false;
    uint64_t *generator = NULL;
    create_cpu_generator((void **)&generator, 0);
    for (int i = FIRST_WORD; generator && i < WORDS && !generator_device; i++) {
        const int8_t *device = (const int8_t *)&generator[i - 1];
        if (generator[i] == cpu_keys && device[0] == MST_CPU && device[1] == -1)
            generator_device = (i - 1) * 8;
    }
    return generator_device; /* the one generator stays: only torch can free it */
}

/* ---- timers of DistributedDataParallel ---- */

/* c10::Registry begins with an unordered_map, whose first words these are. */
struct registry {
    void **buckets;
    uint64_t bucket_count;
    void *first;
    uint64_t count;
    float most_per_bucket;
    uint64_t next_resize;
    void *only_bucket;
    uint64_t rest[32]; /* is not read where nothing is found */
};

bool mst_virtual_knows_timers(const void *registry)
{
    const struct registry *real = registry; /* it has a timer for the CPU, at least */
    return real && real->buckets && real->count && real->bucket_count >= real->count && real->most_per_bucket == 1;
}

/* The table by device type that the reducer asks for a timer. It is empty: a CUDA timer would call the driver. */
const void *mst_virtual_timers(void)
{
    static struct registry empty;
    empty = (struct registry){.buckets = &empty.only_bucket, .bucket_count = 1, .most_per_bucket = 1};
    return &empty;
}

static const struct named_answer {
    const char *name;
    ms_function *table;
    ms_function function;
} named_answers[] = {
    {"getDevice", guard_table, (ms_function)get_device},
    {"exchangeDevice", guard_table, (ms_function)exchange_device},
    {"setDevice", guard_table, (ms_function)exchange_device},
    {"uncheckedSetDevice", guard_table, (ms_function)exchange_device},
    {"deviceCount", guard_table, (ms_function)count_devices},
    {"getStream", guard_table, (ms_function)get_stream},
    {"getDefaultStream", guard_table, (ms_function)get_default_stream},
    {"getStreamFromGlobalPool", guard_table, (ms_function)get_stream_from_pool},
    {"exchangeStream", guard_table, (ms_function)exchange_stream},
    {"getNewStream", guard_table, (ms_function)get_new_stream},
    {"isStreamCapturing", guard_table, (ms_function)answer_zero},
    {"elapsedTime", guard_table, (ms_function)elapsed_time},
    {"getNewGenerator", hooks_table, (ms_function)get_new_generator},
    {"isPinnedPtr", hooks_table, (ms_function)mst_virtual_is_pinned},
    {"getPinnedMemoryAllocator", hooks_table, (ms_function)get_pinned_allocator},
};

/* ---- probes ---- */
struct probed_call {
    int slot;
    bool of_hooks;
    uint64_t arguments[2]; /* beside the object */
};
static struct probed_call calls[MOST_CALLS];
static int call_count;

static void record_call(bool of_hooks, int slot, uint64_t second, uint64_t third)
{
    if (call_count < MOST_CALLS)
        calls[call_count++] = (struct probed_call){slot, of_hooks, {second, third}};
}

static struct mst_two_words probe_guard(int slot, uint64_t second, uint64_t third)
{
    record_call(false, slot, second, third);
    return (struct mst_two_words){1, FIRST_PROBED_STREAM + (uint64_t)slot};
}

/* A function that returns a C++ object gets a place for it as its first argument, and its object as its second one. */
static struct mst_two_words probe_hooks(int slot, uint64_t first, uint64_t second, uint64_t third)
{
    record_call(true, slot, second, third);
    if (first != (uint64_t)(uintptr_t)&hooks_object && second == (uint64_t)(uintptr_t)&hooks_object)
        return (struct mst_two_words){(uint64_t)(uintptr_t)get_new_generator((void **)(uintptr_t)first, NULL, -1), 0};
    return (struct mst_two_words){(uint64_t)(uintptr_t)&pinned_object, 0};
}

static mst_data_ptr *probe_allocate(mst_data_ptr *result, void *self, size_t bytes)
{
    record_call(true, -1, 0, 0);
    return mst_virtual_allocate_pinned(result, self, bytes);
}

/* A function for each entry: PROBE(high, low) is that of entry 16 * 0xhigh + 0xlow. */
#define PROBE(high, low)                                                                                 \
    static struct mst_two_words probe_guard_##high##low(uint64_t first, uint64_t second, uint64_t third) \
    {                                                                                                    \
        (void)first;                                                                                     \
        return probe_guard(0x##high##low, second, third);                                                \
    }                                                                                                    \
    static struct mst_two_words probe_hooks_##high##low(uint64_t first, uint64_t second, uint64_t third) \
    {                                                                                                    \
        return probe_hooks(0x##high##low, first, second, third);                                         \
    }
#define GUARD_PROBE(high, low) (ms_function) probe_guard_##high##low,
#define HOOKS_PROBE(high, low) (ms_function) probe_hooks_##high##low,
#define SIXTEEN(X, h) \
    X(h, 0)           \
    X(h, 1)           \
    X(h, 2) X(h, 3) X(h, 4) X(h, 5) X(h, 6) X(h, 7) X(h, 8) X(h, 9) X(h, a) X(h, b) X(h, c) X(h, d) X(h, e) X(h, f)
#define EVERY(X) \
    SIXTEEN(X, 0) SIXTEEN(X, 1) SIXTEEN(X, 2) SIXTEEN(X, 3) SIXTEEN(X, 4) SIXTEEN(X, 5) SIXTEEN(X, 6) SIXTEEN(X, 7)
EVERY(PROBE)
static const ms_function guard_probes[PROBED_SLOTS] = {EVERY(GUARD_PROBE)};
static const ms_function hooks_probes[PROBED_SLOTS] = {EVERY(HOOKS_PROBE)};

/* ---- the tables ---- */
void mst_virtual_fill_tables(void)
{
    for (int i = 0; i < MST_TABLE_SIZE; i++) {
        hooks_table[i] = pinned_table[i] = (ms_function)answer_zero;
        guard_table[i] = (ms_function)answer_one;
    }
    pinned_table[MST_ALLOCATE] = (ms_function)mst_virtual_allocate_pinned;
}

/* Begin to probe the entries of both tables, given the dispatch keys of the CPU. */
static PyObject *virtual_probe(PyObject *self, PyObject *cpu_keys)
{
    (void)self;
    uint64_t keys = PyLong_AsUnsignedLongLong(cpu_keys);
    if (PyErr_Occurred())
        return NULL;
    if (!find_generator_device(keys))
        return PyUnicode_FromString("a generator does not have its device where it was expected");
    for (int i = 0; i < PROBED_SLOTS; i++) {
        guard_table[i] = guard_probes[i];
        hooks_table[i] = hooks_probes[i];
    }
    pinned_table[MST_ALLOCATE] = (ms_function)probe_allocate;
    call_count = 0;
    Py_RETURN_NONE;
}

/* The calls since the last time: (is it of the hooks, entry, its arguments); the entry -1 is the pinned allocator's. */
static PyObject *virtual_probed(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < call_count; i++)
        if (mst_append_new(list, Py_BuildValue("(OiKK)", calls[i].of_hooks ? Py_True : Py_False, calls[i].slot,
                                               (unsigned long long)calls[i].arguments[0],
                                               (unsigned long long)calls[i].arguments[1])) != 0)
            Py_CLEAR(list);
    call_count = 0;
    return list;
}

/* End probing: {name of a function: its entry}. Every other entry gives the common answer. */
static PyObject *virtual_answer(PyObject *self, PyObject *slots)
{
    (void)self;
    if (!PyDict_Check(slots))
        return PyErr_Format(PyExc_TypeError, "virtual_answer takes a dict");
    mst_virtual_fill_tables();
    for (size_t i = 0; i < sizeof named_answers / sizeof *named_answers; i++) {
        PyObject *slot = PyDict_GetItemString(slots, named_answers[i].name);
        long at = slot ? PyLong_AsLong(slot) : -1;
        if (PyErr_Occurred())
            return NULL;
        if (at >= 0 && at < MST_TABLE_SIZE)
            named_answers[i].table[at] = named_answers[i].function;
    }
    Py_RETURN_NONE;
}

/* The index of a virtual device; -1 with an error set. */
static int parse_device(PyObject *index)
{
    long device = PyLong_AsLong(index);
    if (device >= 0 && device < mst_virtual_count())
        return (int)device;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "there is no virtual GPU %ld", device);
    return -1;
}

static PyObject *virtual_device(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromLong(mst_virtual_device());
}

static PyObject *virtual_set_device(PyObject *self, PyObject *index)
{
    (void)self;
    int device = parse_device(index);
    return device < 0 ? NULL : PyLong_FromLong(mst_virtual_set_device(device));
}

static PyObject *virtual_stream(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    int device = count ? parse_device(args[0]) : mst_virtual_device();
    return device < 0 ? NULL : PyLong_FromUnsignedLongLong(mst_virtual_stream(device));
}

static PyObject *virtual_new_stream(PyObject *self, PyObject *priority)
{
    (void)self;
    long number = PyLong_AsLong(priority);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(new_stream((int)number));
}

static PyObject *virtual_set_stream(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "virtual_set_stream takes the number of a stream, and a device");
    int device = count > 1 ? parse_device(args[1]) : mst_virtual_device();
    uint64_t stream = device < 0 ? 0 : PyLong_AsUnsignedLongLongMask(args[0]);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_set_stream(device, stream);
    Py_RETURN_NONE;
}

PyMethodDef mst_virtual_answers_methods[] = {
    {"virtual_probe", virtual_probe, METH_O, "Begin to record which functions of the guard and the hooks are called."},
    {"virtual_probed", virtual_probed, METH_NOARGS, "The calls: (of the hooks, entry, two arguments)."},
    {"virtual_answer", virtual_answer, METH_O, "End recording, and answer in these functions."},
    {"virtual_new_stream", virtual_new_stream, METH_O, "The number of a new stream with this priority."},
    {"virtual_device", virtual_device, METH_NOARGS, "The index of this thread's current device."},
    {"virtual_set_device", virtual_set_device, METH_O, "Set this thread's current device; returns the previous one."},
    {"virtual_stream", (PyCFunction)(void (*)(void))virtual_stream, METH_FASTCALL,
     "The number of this thread's current stream, of its current device or of another one."},
    {"virtual_set_stream", (PyCFunction)(void (*)(void))virtual_set_stream, METH_FASTCALL,
     "Set this thread's current stream, of its current device or of another one."},
    {"virtual_count_at_least", virtual_count_at_least, METH_O,
     "Let torch's C++ code count so many devices, if there are fewer; 0: as many as there are."},
    {NULL, NULL, 0, NULL},
};
