/* intercept_blocks.c - the interception points of blocks: the ELF slots through which torch's
 * allocators report to torch's profiler.
 *
 * The functions run on any thread, mostly without the GIL and with the allocator's lock held. So
 * they do not take the GIL, call torch, or wait for a thread that does. A thread that has entered
 * neither a call nor a node has no position, and is not opened in the watch for a block. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

#include "interpose/patch.h"

typedef struct c10_device { /* c10::Device */
    int8_t type, index;
} c10_device;

/* The functions behind the slots: ProfiledCPUMemoryReporter's members, and c10's report functions. */
typedef void cpu_new(void *reporter, void *memory, size_t bytes);
typedef void cpu_delete(void *reporter, void *memory);
typedef void cpu_out_of_memory(void *reporter, size_t bytes);
typedef void report_usage(void *memory, int64_t bytes, size_t allocated, size_t reserved, c10_device device);
typedef void report_out_of_memory(int64_t bytes, size_t allocated, size_t reserved, c10_device device);

static cpu_new intercept_cpu_new;
static cpu_delete intercept_cpu_delete;
static cpu_out_of_memory intercept_cpu_out_of_memory;
static report_usage intercept_cuda, intercept_hip, intercept_xpu;
static report_out_of_memory intercept_cuda_out_of_memory, intercept_hip_out_of_memory, intercept_xpu_out_of_memory;

#define REPORT_USAGE "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define REPORT_OUT_OF_MEMORY "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"

/* CPU_NEW and CPU_DELETE are required. Without an out-of-memory slot there is no report of a failed allocation. */
/* clang-format off */
#define POINTS(X)                                                                                            \
    X(CPU_NEW, "libc10", "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm", intercept_cpu_new)                    \
    X(CPU_DELETE, "libc10", "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv", intercept_cpu_delete)            \
    X(CUDA, "libc10_cuda", REPORT_USAGE, intercept_cuda)                                                     \
    X(HIP, "libc10_hip", REPORT_USAGE, intercept_hip)                                                        \
    X(XPU, "libc10_xpu", REPORT_USAGE, intercept_xpu)                                                        \
    X(CPU_OOM, "libc10", "_ZN3c1025ProfiledCPUMemoryReporter11OutOfMemoryEm", intercept_cpu_out_of_memory)   \
    X(CUDA_OOM, "libc10_cuda", REPORT_OUT_OF_MEMORY, intercept_cuda_out_of_memory)                           \
    X(HIP_OOM, "libc10_hip", REPORT_OUT_OF_MEMORY, intercept_hip_out_of_memory)                              \
    X(XPU_OOM, "libc10_xpu", REPORT_OUT_OF_MEMORY, intercept_xpu_out_of_memory)
/* clang-format on */
enum {
#define X(name, library, symbol, function) name,
    POINTS(X)
#undef X
        POINT_COUNT
};

static struct block_point {
    const char *library, *symbol;
    ms_elf_slot slot; /* slot.address is NULL until it is found */
    ms_patch patch;
} points[POINT_COUNT] = {
#define X(name, in_library, of_symbol, function) \
    [name] = {.library = (in_library), .symbol = (of_symbol), .patch = MS_PATCH_ELF_SLOT(function, &points[name].slot)},
    POINTS(X)
#undef X
};

/* The largest segment that CUDA's allocator takes for a small first block. */
enum { FIRST_SEGMENT = 20 << 20 };

static _Atomic uint64_t counted_blocks; /* reported while no ledger is set; see block_reaches_us */

static inline ms_ledger *current_ledger(void)
{
    return atomic_load_explicit(&mst.blocks_ledger, memory_order_acquire);
}

/* Add a block of generated code, which belongs to the module that the code computes for. */
static __attribute__((noinline)) int add_generated(ms_ledger *ledger, uint64_t address, uint64_t bytes, uint32_t device)
{
    ms_thread *thread = mst_this_thread;
    ms_path here = thread ? ms_thread_path(thread) : MS_GLOBAL, owner = mst_generated_owner(here);
    return owner == here ? ms_block_add_at(ledger, thread, mst_stack_here(), address, bytes, device)
                         : ms_block_add_for(ledger, thread, owner, mst_stack_here(), address, bytes, device);
}

static inline int add_block(ms_ledger *ledger, uint64_t address, uint64_t bytes, uint32_t device)
{
    if (UNLIKELY(atomic_load_explicit(&mst_generated_count, memory_order_relaxed)))
        return add_generated(ledger, address, bytes, device);
    return ms_block_add_at(ledger, mst_this_thread, mst_stack_here(), address, bytes, device);
}

/* ---- CPU ---- */
HOT static void intercept_cpu_new(void *reporter, void *memory, size_t bytes)
{
    ((cpu_new *)points[CPU_NEW].patch.previous)(reporter, memory, bytes);
    ms_ledger *ledger = current_ledger();
    if (ledger && memory) {
        add_block(ledger, (uint64_t)(uintptr_t)memory, bytes, 0);
    } else {
        atomic_fetch_add_explicit(&counted_blocks, 1, memory_order_relaxed);
    }
}

/* torch reports this before it frees the memory, so no other block has the address yet. */
HOT static void intercept_cpu_delete(void *reporter, void *memory)
{
    ms_ledger *ledger = current_ledger();
    if (ledger && memory)
        ms_block_drop(ledger, (uint64_t)(uintptr_t)memory);
    ((cpu_delete *)points[CPU_DELETE].patch.previous)(reporter, memory);
}

static void intercept_cpu_out_of_memory(void *reporter, size_t bytes)
{
    ms_ledger *ledger = current_ledger();
    if (ledger)
        mst_oom_report(ledger, &(ms_oom){.device = 0, .requested = bytes});
    ((cpu_out_of_memory *)points[CPU_OOM].patch.previous)(reporter, bytes);
}

/* ---- other devices ---- */

/* The reserved bytes seldom change, so they are reported to the ledger only when they do. Returns whether they grew. */
static bool update_reserved(ms_ledger *ledger, uint32_t device, size_t reserved)
{
    static _Atomic size_t latest[MS_MAX_DEVICES];
    static _Atomic(ms_ledger *) latest_ledger;
    if (device >= MS_MAX_DEVICES)
        return false;
    if (LIKELY(atomic_load_explicit(&latest[device], memory_order_relaxed) == reserved &&
               atomic_load_explicit(&latest_ledger, memory_order_relaxed) == ledger))
        return false;
    bool same_ledger = atomic_load_explicit(&latest_ledger, memory_order_relaxed) == ledger;
    bool grew = same_ledger ? reserved > atomic_load_explicit(&latest[device], memory_order_relaxed)
                            : reserved <= FIRST_SEGMENT; /* a new ledger; a new allocator too if it has no more yet */
    atomic_store_explicit(&latest[device], reserved, memory_order_relaxed);
    atomic_store_explicit(&latest_ledger, ledger, memory_order_relaxed);
    ms_ledger_reserved(ledger, device, reserved);
    return grew;
}

void mst_blocks_report(uint64_t address, int64_t bytes, uint64_t reserved, int8_t device_type, int8_t device_index)
{
    ms_ledger *ledger = current_ledger();
    if (!ledger || !address)
        return;
    uint32_t device = mst_device_number(device_type, device_index);
    bool grew = update_reserved(ledger, device, reserved);
    if (bytes > 0) {
        add_block(ledger, address, (uint64_t)bytes, device);
        if (UNLIKELY(grew)) /* a new segment begins with the block that it was taken for */
            ms_block_note_segment(ledger, address);
    } else {
        ms_block_drop(ledger, address);
    }
}

void mst_blocks_report_request(uint64_t address, uint64_t requested, uint64_t stream)
{
    ms_ledger *ledger = current_ledger();
    if (ledger)
        ms_block_note_request(ledger, address, requested, stream);
}

void mst_blocks_report_failure(uint64_t bytes, uint64_t allocated, uint64_t reserved, int8_t device_type,
                               int8_t device_index)
{
    ms_ledger *ledger = current_ledger();
    if (ledger)
        mst_oom_report(ledger, &(ms_oom){.device = mst_device_number(device_type, device_index),
                                         .requested = bytes,
                                         .allocated = allocated,
                                         .reserved = reserved});
}

static void intercept_usage(int point, void *memory, int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    mst_blocks_report((uint64_t)(uintptr_t)memory, bytes, reserved, on.type, on.index);
    ((report_usage *)points[point].patch.previous)(memory, bytes, allocated, reserved, on);
}

static void intercept_cuda(void *memory, int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    intercept_usage(CUDA, memory, bytes, allocated, reserved, on);
    if (bytes > 0) {
        mst_cuda_requests_note((uint64_t)(uintptr_t)memory, (uint64_t)bytes, on.index);
        if (UNLIKELY(!atomic_load_explicit(&mst_cuda_in_use, memory_order_relaxed)))
            atomic_store_explicit(&mst_cuda_in_use, true, memory_order_relaxed);
    }
}

static void intercept_hip(void *memory, int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    intercept_usage(HIP, memory, bytes, allocated, reserved, on);
}

static void intercept_xpu(void *memory, int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    intercept_usage(XPU, memory, bytes, allocated, reserved, on);
}

static void intercept_out_of_memory(int point, int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    mst_blocks_report_failure(bytes > 0 ? (uint64_t)bytes : 0, allocated, reserved, on.type, on.index);
    ((report_out_of_memory *)points[point].patch.previous)(bytes, allocated, reserved, on);
}

static void intercept_cuda_out_of_memory(int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    mst_cuda_requests_failed();
    intercept_out_of_memory(CUDA_OOM, bytes, allocated, reserved, on);
}

static void intercept_hip_out_of_memory(int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    intercept_out_of_memory(HIP_OOM, bytes, allocated, reserved, on);
}

static void intercept_xpu_out_of_memory(int64_t bytes, size_t allocated, size_t reserved, c10_device on)
{
    intercept_out_of_memory(XPU_OOM, bytes, allocated, reserved, on);
}

/* ---- install and restore ---- */

/* Whether a block reaches us through the functions that replaced ours. Only a CPU block can be
 * tried; we assume that a tool that replaced one slot calls us from the others likewise. */
static bool block_reaches_us(void)
{
    uint64_t before = atomic_load(&counted_blocks);
    PyObject *result = mst_run_python(MST_PY_MAKE_ONE_BLOCK, NULL);
    Py_XDECREF(result);
    mst_clear_error();
    return atomic_load(&counted_blocks) != before;
}

int mst_blocks_intercept(ms_ledger *ledger)
{
    for (int i = 0; i < POINT_COUNT; i++) {
        struct block_point *point = &points[i];
        int error = point->slot.address ? ms_patch_install(&point->patch, block_reaches_us) : 0;
        if (error) {
            mst_blocks_restore();
            PyErr_Format(PyExc_RuntimeError, "the slot of the allocator's reports in %s cannot be written (error %d)",
                         point->library, error);
            return -1;
        }
    }
    mst_cuda_requests_intercept();
    mst_oom_reports_begin();
    atomic_store(&mst.blocks_ledger, ledger);
    return 0;
}

void mst_blocks_restore(void)
{
    atomic_store(&mst.blocks_ledger, NULL);
    for (int i = 0; i < POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
    mst_cuda_requests_restore();
}

/* ---- from Python ---- */
static PyObject *find_block_slots(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < POINT_COUNT; i++) {
        struct block_point *point = &points[i];
        int error = point->slot.address ? 0 : ms_elf_slot_find(point->library, point->symbol, &point->slot);
        if (error && i <= CPU_DELETE)
            return PyUnicode_FromFormat("no slot of ProfiledCPUMemoryReporter in libc10 (error %d)", error);
    }
    if (points[CUDA].slot.address)
        mst_cuda_requests_find();
    Py_RETURN_NONE;
}

static PyObject *blocks_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < POINT_COUNT; i++)
        if (points[i].slot.address && ms_patch_is_installed(&points[i].patch))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *block_devices(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    static const char *const names[POINT_COUNT] = {[CPU_NEW] = "cpu", [CUDA] = "cuda", [HIP] = "hip", [XPU] = "xpu"};
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < POINT_COUNT; i++) {
        PyObject *name = points[i].slot.address && names[i] ? PyUnicode_FromString(names[i]) : NULL;
        if (name && PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

PyMethodDef mst_intercept_blocks_methods[] = {
    {"find_block_slots", find_block_slots, METH_NOARGS,
     "Find the slots of the allocators' reports; None, or why they were not found."},
    {"blocks_intercepted", blocks_intercepted, METH_NOARGS, "Whether blocks are intercepted now."},
    {"block_devices", block_devices, METH_NOARGS, "torch's names of the devices whose allocators can be intercepted."},
    {NULL, NULL, 0, NULL},
};
