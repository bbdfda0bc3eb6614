/* blocks.h - where blocks come from: the reports of the allocators, or the storages that operators return. */
#ifndef MST_BLOCKS_H
#define MST_BLOCKS_H

#include "torch/process/process.h"

#include "base/array.h"
#include "base/map.h"

/* ---- intercept_blocks.c: torch's allocators report blocks ---- */
int mst_blocks_intercept(ms_ledger *ledger); /* -1 with an error set */
void mst_blocks_restore(void);
/* What a virtual device's allocator reports, as a real one does: a block is added (bytes > 0) or dropped, or an
 * allocation failed. No GIL needed. */
void mst_blocks_report(uint64_t address, int64_t bytes, uint64_t reserved, int8_t device_type, int8_t device_index);
void mst_blocks_report_failure(uint64_t bytes, uint64_t allocated, uint64_t reserved, int8_t device_type,
                               int8_t device_index);
/* After a block was added: what the program requested, where an allocator's report does not tell. No GIL needed. */
void mst_blocks_report_request(uint64_t address, uint64_t requested, uint64_t stream);

/* ---- cuda_requests.c: what was requested of CUDA's caching allocator, which reports only the block's size ---- */

/* Find the allocator's function `allocate`, once libc10_cuda is loaded. */
void mst_cuda_requests_find(void);
void mst_cuda_requests_intercept(void);
void mst_cuda_requests_restore(void);

/* torch's allocator reported a block of this thread, or that a request of it failed. Under the allocator's lock; no GIL
 * needed. */
void mst_cuda_requests_note(uint64_t address, uint64_t bytes, int8_t device_index);
void mst_cuda_requests_failed(void);

/* ---- devices.c: torch's device types and indexes, and the ledger's device numbers. No GIL needed ---- */
enum { MST_CPU = 0, MST_CUDA = 1, MST_META = 14 }; /* torch's device types that are treated specially */

/* The ledger's number of a device, new if need be; MS_MAX_DEVICES if there are too many. The CPU is 0. */
uint32_t mst_device_number(int8_t type, int8_t index);
int8_t mst_device_type(uint32_t number);

void mst_devices_lock(void); /* around fork */
void mst_devices_unlock(void);

/* ---- tensor_layout.c: read a tensor's memory and gradient from torch's objects, without running Python or torch ----
 */

/* The offsets are in mst.layout. Nothing here needs the GIL, but the objects must be alive. */

struct mst_storage {
    uint64_t storage; /* the StorageImpl */
    uint64_t data;    /* the memory, or 0 */
    uint64_t deleter; /* the function that frees the memory */
    int64_t bytes;    /* negative where symbolic */
    int8_t device_type, device_index;
};

static inline uint64_t mst_read_word(uint64_t object, int offset)
{
    return __atomic_load_n((const uint64_t *)(object + (uint64_t)offset), __ATOMIC_RELAXED);
}

/* The TensorImpl of a tensor's Python object. */
static inline uint64_t mst_impl_of(PyObject *tensor)
{
    return mst_read_word((uint64_t)(uintptr_t)tensor, mst.layout.object);
}

/* Whether the memory of tensors can be read. */
static inline bool mst_layout_is_known(void)
{
    return mst.layout.size >= 0;
}

/* False if the tensor has no storage. Only if mst_layout_is_known(). */
static inline bool mst_read_storage(uint64_t impl, struct mst_storage *out)
{
    uint64_t storage = impl ? mst_read_word(impl, mst.layout.storage) : 0;
    if (!storage)
        return false;
    uint64_t device = mst_read_word(storage, mst.layout.device & ~7) >> (mst.layout.device & 7) * 8;
    *out = (struct mst_storage){.storage = storage,
                                .data = mst_read_word(storage, mst.layout.data),
                                .deleter = mst_read_word(storage, mst.layout.deleter),
                                .bytes = (int64_t)mst_read_word(storage, mst.layout.size),
                                .device_type = (int8_t)device,
                                .device_index = (int8_t)(device >> 8)};
    return true;
}

/* The TensorImpl of a leaf's gradient, or 0. */
static inline uint64_t mst_grad_of(uint64_t impl)
{
    uint64_t meta = mst.layout.grad >= 0 ? mst_read_word(impl, mst.layout.meta) : 0;
    return meta ? mst_read_word(meta, mst.layout.grad) : 0;
}

/* ---- existing_blocks.c: blocks that were allocated before the ledger was attached ---- */

/* Set the sizes of those that are on other devices than the CPU: a dict address -> bytes; NULL: not known. */
void mst_existing_blocks_set(PyObject *sizes);
/* Whether a storage's memory came from torch's allocator, and its bytes. */
bool mst_existing_block(const struct mst_storage *storage, uint64_t *bytes);

/* ---- visit_tensors.c: find the tensors in Python objects ---- */
/* 0, or -1 with an error set, which ends the visit. */
typedef int mst_visit(PyObject *tensor, void *context);

/* Call `visit` for each tensor in `object`, which may be NULL: in lists, tuples, dicts, dataclasses
 * and registered pytree types, however deep. 0, or -1 with an error set. */
int mst_visit_tensors(PyObject *object, mst_visit *visit, void *context);
/* Visit the tensors in lists, tuples and dicts only. Runs no Python. */
int mst_visit_tensors_in_containers(PyObject *object, mst_visit *visit, void *context);
/* Append the tensors in `object` that require grad to a list. 0, or -1 with an error set. */
int mst_append_grad_tensors(PyObject *object, PyObject *list);

/* ---- inner_tensors.c: the tensors that a tensor consists of ---- */

/* Whether a tensor wraps other tensors (its type has __tensor_flatten__). */
bool mst_is_wrapper_subclass(PyObject *tensor);
/* Call `visit` for each tensor in `tensor` that has a storage of its own: the tensor itself, the
 * parts of a sparse tensor, or the tensors that a wrapper subclass holds, for which Python runs.
 * 0, or -1 with an error set. */
int mst_visit_inner_tensors(PyObject *tensor, mst_visit *visit, void *context);

/* ---- dispatch_blocks.c: the dispatcher as the source of blocks: the storages that operators return ---- */
/* Claim a tensor's storage; it becomes a block if it was none, now or when it gets a size. 0, or -1 with an error set.
 */
int mst_dispatch_claim(PyObject *tensor, ms_category category, ms_path path);

/* ---- watched_storages.c: the storages that are blocks where the dispatcher is the source, until they die ---- */
void mst_storages_begin(void);
void mst_storages_end(void);
/* Watch a tensor's storage, which is on this device. False if memory ran out, which is counted as lost. */
bool mst_storage_watch(PyObject *tensor, uint64_t storage, uint32_t device);
bool mst_storage_is_watched(uint64_t storage);
/* Python has resized a storage: its Python object and its address. */
void mst_storage_resized(PyObject *object, uint64_t storage);
/* Whether the program resized fake storages whose device is not known until an operator uses them. */
bool mst_storages_await_operator(void);
/* The size of the block for a storage of so many bytes. */
uint64_t mst_dispatch_bytes(int64_t bytes, uint32_t device);
/* Update the blocks whose storages were resized where nobody saw it. */
void mst_dispatch_update_sizes(void);

/* ---- intercept_resizes.c: storages that Python resizes, if that is verified ---- */
void mst_resizes_intercept(void);
void mst_resizes_restore(void);

/* ---- intercept_saved.c: tensors that autograd saves for backward ---- */
void mst_saved_intercept(ms_ledger *ledger); /* if mst.intercept_saved; else, and on an error, nothing is intercepted */
void mst_saved_restore(void);

/* ---- oom_report.c: the out-of-memory report: which allocation failed, and which modules held the memory ---- */
/* A ledger is attached: the first few reports from now on are written to stderr. */
void mst_oom_reports_begin(void);
/* An allocation of this thread failed: make the report. No GIL needed. */
void mst_oom_report(ms_ledger *ledger, const ms_oom *oom);
/* An error passes an interception point: if it comes from the failed allocation, add the report to it
 * as a note. Keeps the error that is set. */
void mst_oom_report_add_note(void);

/* ---- running_operator.c: the operator that runs on this thread, where modscope itself runs it ---- */

/* Its name without the overload, such as "aten::addmm", which is never freed; NULL: not known. */
extern MST_THREAD_LOCAL const char *mst_running_operator;

/* The name of an operator of torch.ops, for mst_running_operator. NULL if it has none; no error is set. */
const char *mst_operator_name(PyObject *operator);

int mst_running_operator_init(void); /* -1 with an error set */
extern PyMethodDef mst_running_operator_methods[];

/* ---- operator_log.c: the operators that ran, and how much memory was in use after each of them ---- */
enum mst_figure { MST_ALLOCATED, MST_ACTIVE, MST_RESERVED, MST_FIGURE_COUNT };

struct mst_operator_record {
    uint32_t position; /* index into positions */
    uint32_t name;     /* index into names */
    uint32_t nth;      /* how many operators with this name ran before it */
    int64_t figures[MST_FIGURE_COUNT];
};

typedef struct mst_operator_log {
    PyObject_HEAD
    PyObject *root;      /* a weak reference to the module whose calls are marked */
    PyObject *name_in;   /* (module or None, fqn) -> the module's name inside the root module */
    PyObject *stats;     /* (device) -> the allocator's statistics, nested dicts; None: the ledger is read */
    PyObject *device;    /* the argument of `stats`; the ledger's number if that is None */
    PyObject *ignored;   /* the operator that is not recorded */
    PyObject *positions; /* a list of str */
    PyObject *names;     /* a list of str */
    PyObject *operators; /* a list: keeps the operators alive whose addresses are keys of by_operator */
    PyObject *markers;   /* a dict: str -> the number of records at that moment */
    uint32_t ledger_device;
    struct ms__map by_position; /* path << 8 | phase -> index into positions */
    struct ms__map by_operator; /* an operator's address -> index into names */
    uint32_t *counts;           /* by index into names */
    size_t counts_room;
    struct mst_operator_record *records;
    size_t count, room;
    uint64_t lost; /* how many operators were not recorded because memory ran out */
    bool recording;
} mst_operator_log;

/* Run an operator, and record it if the log is recording. What the operator raises is passed on; nothing else is. */
PyObject *mst_operator_run(mst_operator_log *log, PyObject *op, PyObject *args, PyObject *named);
/* The root module's forward begins or ends: note under `marker` how many records there are. A recompute is ignored. */
void mst_operator_mark(mst_operator_log *log, PyObject *module, const char *marker);
/* Index into positions, of where this thread is; -1 with an error set. */
Py_ssize_t mst_operator_position(mst_operator_log *log);
/* How much memory is in use now, in bytes. -1 with an error set. */
int mst_operator_figures(mst_operator_log *log, int64_t *figures);

/* ---- operator_times.c: how long operators take, by module, and which of them each call of a module ran ---- */
enum {
    MST_OPERATOR_IN_PLACE = 1,
    MST_OPERATOR_VIEW = 2,
    MST_OPERATOR_RANDOM = 4,
    MST_OPERATOR_SKIPPED = 8,
    MST_OPERATOR_SAVED = 16
};

/* An operator that ran. */
struct mst_estimated_operator {
    double milliseconds;
    unsigned long thread;
    size_t first_result; /* its storages are results[first_result ...] */
    uint32_t result_count;
    uint32_t number; /* index into operators */
    uint32_t flags;
};

/* A storage that an operator returned. */
struct mst_seen_storage {
    uint64_t bytes;    /* as the allocator rounds them */
    size_t made_by;    /* the index of the operator; SIZE_MAX: it was there before */
    uint64_t saved_at; /* the moment at which autograd first saved it for backward; 0: not yet */
};

/* A forward of a module that has submodules. Its operators are those of its thread in [first, end). */
struct mst_estimated_call {
    uint32_t name;   /* index into names */
    bool has_ended;  /* else it still runs, or it raised */
    bool has_tensor; /* one of its arguments is, or has, a tensor */
    uintptr_t module;
    unsigned long thread;
    size_t first, end;
    uint64_t end_moment;
    size_t first_output, output_count; /* of the storages that it returns, in results */
};

typedef struct mst_operator_times {
    PyObject_HEAD
    PyObject *estimate;         /* (operator, args, kwargs, result) -> ms; None: the virtual device's clock tells */
    PyObject *flags_of;         /* (operator) -> flags; None: only times are recorded */
    PyObject *is_random;        /* (operator, args, kwargs) -> whether this call draws random numbers */
    PyObject *passed_on;        /* the type of tensors whose operators run as others, on their parts; or None */
    PyObject *operators;        /* a list */
    PyObject *names;            /* a list of fqns: "Global", ... */
    PyObject *numbers;          /* a dict: fqn -> index into names */
    PyObject *orders;           /* a tuple of lists of fqns, by enum mst_hook */
    struct ms__map by_operator; /* an operator's address -> index into operators */
    struct ms__map by_path;     /* path -> index into names */
    struct ms__map by_storage;  /* StorageImpl -> index into storages, of the latest one at that address */
    double (*sums)[2];          /* by index into names: milliseconds of forward and backward */
    uint32_t *flags;            /* by index into operators */
    struct mst_estimated_operator *rows;
    struct mst_seen_storage *storages;
    struct mst_estimated_call *calls;
    uint32_t *results; /* indexes into storages */
    size_t sums_room, flags_room, row_count, row_room, storage_count, storage_room, call_count, call_room;
    size_t result_count, result_room;
    uint64_t moment, lost;
    double total;
    bool recording;
} mst_operator_times;

/* Run an operator and record it. What the operator raises is passed on; nothing else is. */
PyObject *mst_times_run(mst_operator_times *times, PyObject *op, PyObject *args, PyObject *named);
/* A hook of a module's call was called with these objects. */
void mst_times_note_call(mst_operator_times *times, int hook, PyObject *const *given, Py_ssize_t count);
/* Autograd saves a tensor for backward. */
void mst_times_note_saved(mst_operator_times *times, PyObject *tensor);
/* The operators of a call: ([operator], [ms], [bytes], [flags], [index of the operator whose result it changes, or
 * -1]). NULL with an error set. */
PyObject *mst_times_of_call(const mst_operator_times *times, const struct mst_estimated_call *call);

#endif
