/* cuda_requests.c - the interception point of requests: the entry of `allocate` in the table of virtual functions of
 * torch's allocator for CUDA.
 *
 *     allocate(n) --> intercept_allocate: n is kept for this thread --> torch's allocate
 *                                                                         `--> report of the block (intercept_blocks.c)
 *                                                                                `--> mst_cuda_requests_note
 *
 * c10::Allocator declares its destructor first and `allocate` second, so `allocate` is the table's third entry in
 * every version. Blocks that come by another function (raw_alloc) count as requested with the size that they have.
 * The stream is the thread's current one, as in `allocate` itself. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"

#include "interpose/patch.h"
#include "interpose/read_memory.h"

#define LIBRARY "libc10_cuda"
#define ALLOCATOR "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
#define CURRENT_STREAM "_ZN3c104cuda20getCurrentCUDAStreamEa"

enum {
    ALLOCATE = 2,        /* its index in the table; the destructor has two entries */
    CHECKED_ENTRIES = 6, /* that every c10::Allocator has */
};
/* A block has at most this many bytes more than twice what was requested: the rest of a segment that was not split. */
#define MOST_REMAINDER (UINT64_C(32) << 20)
#define MOST_BYTES (UINT64_C(1) << 60) /* torch refuses to allocate that much */

typedef struct cuda_stream { /* c10::cuda::CUDAStream */
    int8_t device_type, device_index;
    int64_t id;
} cuda_stream;
typedef cuda_stream get_current_stream(int8_t device_index);

/* `allocate` returns its result through a pointer, which is its first argument on x86-64. All six registers are passed
 * on, so that the function would do no harm in another entry. */
typedef uint64_t any_function(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);
static any_function intercept_allocate;

static ms_elf_slot slot;
static ms_patch patch = MS_PATCH_ELF_SLOT(intercept_allocate, &slot);
static get_current_stream *current_stream;
static bool is_off; /* written while nothing is recorded */
static const char *why_not = "torch's allocator for CUDA is not loaded";

/* What this thread requested last, until its block is reported; 0: nothing. */
static MST_THREAD_LOCAL uint64_t requested;

/* Blocks whose size fits the request, and does not. Atomic: each device has a lock of its own. */
static _Atomic uint64_t agreed, disagreed;

static uint64_t intercept_allocate(uint64_t result, uint64_t self, uint64_t bytes, uint64_t d, uint64_t e, uint64_t f)
{
    requested = bytes < MOST_BYTES ? bytes : 0;
    return ((any_function *)patch.previous)(result, self, bytes, d, e, f);
}

/* Whether the entry that is intercepted is not `allocate` after all, as the blocks show. */
static inline bool is_wrong(void)
{
    return UNLIKELY(atomic_load_explicit(&disagreed, memory_order_relaxed) >
                    atomic_load_explicit(&agreed, memory_order_relaxed));
}

void mst_cuda_requests_note(uint64_t address, uint64_t bytes, int8_t device_index)
{
    uint64_t asked = requested;
    requested = 0;
    if (!current_stream || is_off || is_wrong())
        return;
    if (asked) {
        bool agrees = asked <= bytes && bytes - asked <= asked + MOST_REMAINDER;
        atomic_fetch_add_explicit(agrees ? &agreed : &disagreed, 1, memory_order_relaxed);
        asked = agrees ? asked : 0;
    }
    mst_blocks_report_request(address, asked ? asked : bytes, (uint64_t)current_stream(device_index).id);
}

void mst_cuda_requests_failed(void)
{
    requested = 0;
}

/* ---- install and restore ---- */
#if defined(__x86_64__)
/* The address of the allocator's table of virtual functions; 0 if it does not look like one. */
static uintptr_t find_table(void)
{
    uintptr_t allocator = (uintptr_t)ms_elf_symbol_find(LIBRARY, ALLOCATOR), object, table;
    uintptr_t entries[CHECKED_ENTRIES];
    if (!allocator || !ms_read_memory(allocator, &object, sizeof object) || !object ||
        !ms_read_memory(object, &table, sizeof table) || table % sizeof table || !ms_elf_contains(LIBRARY, table) ||
        !ms_read_memory(table, entries, sizeof entries))
        return 0;
    for (int i = 0; i < CHECKED_ENTRIES; i++)
        if (!ms_elf_contains(LIBRARY, entries[i]) && !ms_elf_contains("libc10", entries[i]))
            return 0;
    return ms_elf_contains(LIBRARY, entries[ALLOCATE]) ? table : 0;
}
#endif

void mst_cuda_requests_find(void)
{
    if (slot.address || !ms_elf_symbol_find(LIBRARY, ALLOCATOR))
        return;
#if defined(__x86_64__)
    uintptr_t table = find_table();
    get_current_stream *stream = (get_current_stream *)ms_elf_symbol_find(LIBRARY, CURRENT_STREAM);
    if (!table)
        why_not = "torch's allocator for CUDA is not in libc10_cuda, or its table of functions is not as expected";
    else if (!stream)
        why_not = "libc10_cuda has no getCurrentCUDAStream";
    else if (ms_elf_slot_at(LIBRARY, table + ALLOCATE * sizeof(ms_function), &slot) != 0)
        why_not = "the table of functions of torch's allocator for CUDA was not found";
    else
        current_stream = stream, why_not = NULL;
#else
    why_not = "this is known only of x86-64";
#endif
}

/* Only a block on a GPU could show it. If another tool replaced our function, we assume that it calls it. */
static bool allocate_reaches_us(void)
{
    return true;
}

void mst_cuda_requests_intercept(void)
{
    if (slot.address && !is_off && ms_patch_install(&patch, allocate_reaches_us) != 0)
        why_not = "the table of functions of torch's allocator for CUDA cannot be written";
}

void mst_cuda_requests_restore(void)
{
    if (slot.address)
        ms_patch_restore(&patch);
}

/* ---- from Python ---- */
static PyObject *set_cuda_requests(PyObject *self, PyObject *is_on)
{
    (void)self;
    is_off = PyObject_IsTrue(is_on) != 1;
    Py_RETURN_NONE;
}

static PyObject *cuda_requests(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const char *why = why_not ? why_not : is_wrong() ? "blocks do not have the sizes that were requested" : NULL;
    return Py_BuildValue("(zKK)", why, (unsigned long long)atomic_load(&agreed),
                         (unsigned long long)atomic_load(&disagreed));
}

static PyObject *get_cuda_stream(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (!current_stream)
        Py_RETURN_NONE;
    cuda_stream stream = current_stream(-1);
    return Py_BuildValue("(iL)", stream.device_index, (long long)stream.id);
}

PyMethodDef mst_cuda_requests_methods[] = {
    {"cuda_requests", cuda_requests, METH_NOARGS,
     "Why requests and streams are not known of CUDA's allocator, or None; how many blocks agreed with their requests, "
     "and how many did not."},
    {"cuda_stream", get_cuda_stream, METH_NOARGS,
     "The device and the number of this thread's current stream, as captures have it; None: it is not known."},
    {"set_cuda_requests", set_cuda_requests, METH_O,
     "Whether they are noted from the next recording on; for measurements."},
    {NULL, NULL, 0, NULL},
};
