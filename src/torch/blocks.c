/* blocks.c - the places of blocks: the slots by which torch's allocators tell its profiler.
 *
 * Runs on any thread, mostly without the GIL and with the allocator's own lock held: nothing
 * here takes the GIL, calls torch, or waits for anybody who does. A thread that has never
 * been in a call or a node is nowhere, and is not opened for a block. */
#include "torch/memory.h"

#include "interpose/slot.h"

typedef struct { /* c10::Device */
    int8_t type, index;
} device;

typedef void made(void *reporter, void *memory, size_t bytes);
typedef void freed(void *reporter, void *memory);
typedef void reported(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on);
typedef void refused(void *reporter, size_t bytes);
typedef void report_refused(int64_t bytes, size_t allocated, size_t reserved, device on);

static void made_place(void *reporter, void *memory, size_t bytes);
static void freed_place(void *reporter, void *memory);
static void cuda_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on);
static void hip_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on);
static void xpu_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on);

static void refused_place(void *reporter, size_t bytes);
static void cuda_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on);
static void hip_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on);
static void xpu_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on);

#define REPORT "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define REPORT_REFUSED "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"

/* The first two must be there; where memory that runs out is not told, there is no story of it. */
enum { MADE, FREED, CUDA, HIP, XPU, REFUSED, CUDA_REFUSED, HIP_REFUSED, XPU_REFUSED, PLACES };
static struct place {
    const char *library, *symbol;
    ms_function ours;
    ms_slot slot;
    ms_function next; /* what we stand before */
    bool found;
    bool chained; /* somebody stood on us when we left: they may still call us */
} places[PLACES] = {
    [MADE] = {.library = "libc10",
              .symbol = "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm",
              .ours = (ms_function)made_place},
    [FREED] = {.library = "libc10",
               .symbol = "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv",
               .ours = (ms_function)freed_place},
    [CUDA] = {.library = "libc10_cuda", .symbol = REPORT, .ours = (ms_function)cuda_place},
    [HIP] = {.library = "libc10_hip", .symbol = REPORT, .ours = (ms_function)hip_place},
    [XPU] = {.library = "libc10_xpu", .symbol = REPORT, .ours = (ms_function)xpu_place},
    [REFUSED] = {.library = "libc10",
                 .symbol = "_ZN3c1025ProfiledCPUMemoryReporter11OutOfMemoryEm",
                 .ours = (ms_function)refused_place},
    [CUDA_REFUSED] = {.library = "libc10_cuda", .symbol = REPORT_REFUSED, .ours = (ms_function)cuda_refused_place},
    [HIP_REFUSED] = {.library = "libc10_hip", .symbol = REPORT_REFUSED, .ours = (ms_function)hip_refused_place},
    [XPU_REFUSED] = {.library = "libc10_xpu", .symbol = REPORT_REFUSED, .ours = (ms_function)xpu_refused_place},
};

static _Atomic uint64_t seen; /* counts what passes, for proofs */

static inline ms_ledger *awake(void)
{
    return atomic_load_explicit(&mst_blocks_to, memory_order_acquire);
}

static void made_place(void *reporter, void *memory, size_t bytes)
{
    ((made *)places[MADE].next)(reporter, memory, bytes);
    ms_ledger *ledger = awake();
    if (ledger && memory) {
        ms_block_add(ledger, mst_mine, (uint64_t)(uintptr_t)memory, bytes, 0);
    } else {
        atomic_fetch_add_explicit(&seen, 1, memory_order_relaxed);
    }
}

/* Told before the memory is given back: nobody else can have it yet. */
static void freed_place(void *reporter, void *memory)
{
    ms_ledger *ledger = awake();
    if (ledger && memory)
        ms_block_drop(ledger, (uint64_t)(uintptr_t)memory);
    ((freed *)places[FREED].next)(reporter, memory);
}

/* What the allocator has reserved changes seldom. */
static void note_reserved(ms_ledger *ledger, uint32_t number, size_t reserved)
{
    static _Atomic size_t last[MS_MAX_DEVICES];
    static _Atomic(ms_ledger *) told;
    if (number >= MS_MAX_DEVICES)
        return;
    if (LIKELY(atomic_load_explicit(&last[number], memory_order_relaxed) == reserved &&
               atomic_load_explicit(&told, memory_order_relaxed) == ledger))
        return;
    atomic_store_explicit(&last[number], reserved, memory_order_relaxed);
    atomic_store_explicit(&told, ledger, memory_order_relaxed);
    ms_ledger_reserved(ledger, number, reserved);
}

static void report(int place, void *memory, int64_t bytes, size_t allocated, size_t reserved, device on)
{
    ms_ledger *ledger = awake();
    if (ledger && memory) {
        uint32_t number = mst_device_number(on.type, on.index);
        note_reserved(ledger, number, reserved);
        if (bytes > 0)
            ms_block_add(ledger, mst_mine, (uint64_t)(uintptr_t)memory, (uint64_t)bytes, number);
        else
            ms_block_drop(ledger, (uint64_t)(uintptr_t)memory);
    }
    ((reported *)places[place].next)(memory, bytes, allocated, reserved, on);
}

static void cuda_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report(CUDA, memory, bytes, allocated, reserved, on);
}

static void hip_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report(HIP, memory, bytes, allocated, reserved, on);
}

static void xpu_place(void *memory, int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report(XPU, memory, bytes, allocated, reserved, on);
}

/* ---- memory that runs out ---- */
static void refused_place(void *reporter, size_t bytes)
{
    ms_ledger *ledger = awake();
    if (ledger)
        mst_oom(ledger, &(ms_oom){.device = 0, .requested = bytes});
    ((refused *)places[REFUSED].next)(reporter, bytes);
}

static void report_refusal(int place, int64_t bytes, size_t allocated, size_t reserved, device on)
{
    ms_ledger *ledger = awake();
    if (ledger)
        mst_oom(ledger,
                &(ms_oom){mst_device_number(on.type, on.index), bytes > 0 ? (uint64_t)bytes : 0, allocated, reserved});
    ((report_refused *)places[place].next)(bytes, allocated, reserved, on);
}

static void cuda_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report_refusal(CUDA_REFUSED, bytes, allocated, reserved, on);
}

static void hip_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report_refusal(HIP_REFUSED, bytes, allocated, reserved, on);
}

static void xpu_refused_place(int64_t bytes, size_t allocated, size_t reserved, device on)
{
    report_refusal(XPU_REFUSED, bytes, allocated, reserved, on);
}

/* Whether blocks still come through us under whoever stands in the slots now. Only the CPU's can
 * be tried; who chains onto one of them is taken to be like who chains onto another. */
static bool reachable(void)
{
    PyObject *module = PyImport_ImportModule("modscope._probes");
    uint64_t before = atomic_load(&seen);
    PyObject *result = module ? PyObject_CallMethod(module, "make_one_block", NULL) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(result);
    PyErr_Clear();
    return atomic_load(&seen) != before;
}

int mst_blocks_on(ms_ledger *ledger)
{
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &places[i];
        ms_function now = place->found ? ms_slot_read(&place->slot) : place->ours;
        if (now == place->ours || (place->chained && reachable()))
            continue;
        place->next = now;
        place->chained = false;
        int error = ms_slot_write(&place->slot, place->ours);
        if (error) {
            mst_blocks_off();
            PyErr_Format(PyExc_RuntimeError, "the place of blocks in %s cannot be written (error %d)", place->library,
                         error);
            return -1;
        }
    }
    mst_oom_begin();
    atomic_store(&mst_blocks_to, ledger);
    return 0;
}

void mst_blocks_off(void)
{
    atomic_store(&mst_blocks_to, NULL);
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &places[i];
        if (!place->found || !place->next)
            continue;
        if (ms_slot_read(&place->slot) == place->ours)
            ms_slot_write(&place->slot, place->next);
        else
            place->chained = true;
    }
}

/* ---- from Python ---- */
static PyObject *find_block_slots(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &places[i];
        int error = place->found ? 0 : ms_slot_find(place->library, place->symbol, &place->slot);
        place->found = error == 0;
        if (error && i <= FREED)
            return PyUnicode_FromFormat("no slot of ProfiledCPUMemoryReporter in libc10 (error %d)", error);
    }
    Py_RETURN_NONE;
}

static PyObject *blocks_standing(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < PLACES; i++)
        if (places[i].found && ms_slot_read(&places[i].slot) == places[i].ours)
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

/* Devices whose allocators can be watched, by torch's names. */
static PyObject *block_devices(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    static const char *const names[PLACES] = {[MADE] = "cpu", [CUDA] = "cuda", [HIP] = "hip", [XPU] = "xpu"};
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < PLACES; i++) {
        PyObject *name = places[i].found && names[i] ? PyUnicode_FromString(names[i]) : NULL;
        if (name && PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

PyMethodDef mst_blocks_methods[] = {
    {"find_block_slots", find_block_slots, METH_NOARGS, "Find the places of blocks; None, or why they are not there."},
    {"blocks_standing", blocks_standing, METH_NOARGS, "Whether a place of blocks is taken now."},
    {"block_devices", block_devices, METH_NOARGS, "The devices whose allocators can be watched."},
    {NULL, NULL, 0, NULL},
};
