/* cuda_times.c - times calls by CUDA events, which the GPU reaches later than the program records them.
 *
 *     begin: an event is recorded     end: another one     at the next root calls: have they been reached? then
 *     on the current stream           on the same stream   the time between the two is noted for captures
 *
 * Nothing here waits for the GPU. Events cost about a microsecond each, so only some steps are timed: the second, third
 * and fourth that a recording sees, and every 16th. The first one is slower, because kernels are loaded.
 *
 * The functions are the driver's: those of the runtime would set its last error, which torch checks after kernels. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"

#include "interpose/elf_slot.h"

#include <string.h>

enum {
    MOST_CALLS = 4096,      /* that wait for the GPU at a time */
    FIRST_STEPS = 4,        /* all of them but the first are timed... */
    EVERY = 16,             /* ...and every 16th */
    MOST_ROOT_CALLS = 64,   /* of a step, which may be a loop without optimizer */
    SKIPPED_ROOT_CALLS = 8, /* at the beginning, if no step is known */
};

/* ---- the driver ---- */
typedef void *handle; /* CUcontext, CUstream, CUevent */
enum { SUCCESS = 0, NOT_READY = 600, TIMING = 0, NOT_CAPTURING = 0, RELAXED = 2 };

static struct driver {
    int (*cuCtxGetCurrent)(handle *context);
    int (*cuEventCreate)(handle *event, unsigned flags);
    int (*cuEventRecord)(handle event, handle stream);
    int (*cuEventQuery)(handle event);
    int (*cuEventElapsedTime)(float *milliseconds, handle begin, handle end);
    int (*cuEventDestroy_v2)(handle event);
    int (*cuStreamIsCapturing)(handle stream, int *status);
    int (*cuThreadExchangeStreamCaptureMode)(int *mode);
} driver;

typedef struct cuda_stream { /* c10::cuda::CUDAStream */
    int8_t device_type, device_index;
    int64_t id;
} cuda_stream;
static cuda_stream (*current_stream)(int8_t device_index);
static handle (*stream_handle)(const cuda_stream *stream);

static const char *why_not = "CUDA was not used yet"; /* NULL: calls can be timed */
static bool searched, is_off;

_Atomic bool mst_cuda_in_use;

static bool find(ms_function *function, const char *library, const char *symbol)
{
    *function = ms_elf_symbol_find(library, symbol);
    return *function != NULL;
}

static void find_functions(void)
{
    searched = true;
    const struct {
        void *function;
        const char *symbol;
    } wanted[] = {
#define X(name) {&driver.name, #name}
        X(cuCtxGetCurrent),    X(cuEventCreate),     X(cuEventRecord),       X(cuEventQuery),
        X(cuEventElapsedTime), X(cuEventDestroy_v2), X(cuStreamIsCapturing), X(cuThreadExchangeStreamCaptureMode),
#undef X
    };
    why_not = NULL;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!find((ms_function *)wanted[i].function, "libcuda", wanted[i].symbol))
            why_not = "the driver's library libcuda lacks a function for events";
    if (!find((ms_function *)(void *)&current_stream, "libc10_cuda", "_ZN3c104cuda20getCurrentCUDAStreamEa") ||
        !find((ms_function *)(void *)&stream_handle, "libc10_cuda", "_ZNK3c104cuda10CUDAStream6streamEv"))
        why_not = "libc10_cuda lacks a function for streams";
}

/* ---- calls ---- */
struct mst_timed_call {
    struct mst_timed_call *next; /* in `free_calls`, or in the order in which they ended */
    handle begin, end;           /* events; NULL until the first use */
    handle context, stream;      /* of the events */
    uint64_t number;
};

static struct mst_timed_call *free_calls;
static struct mst_timed_call *first_ended, **last_ended = &first_ended;
static uint32_t call_count;
static uint64_t last_number;
static uint64_t timed, missed; /* calls whose times were noted, and that could not be timed */

static struct {
    bool began;           /* a root call has, since the recording began */
    bool is_timed;        /* this root call is */
    unsigned root_calls;  /* of the step */
    uint64_t step, steps; /* the latest step, and how many before it */
} schedule;

static void give_up(const char *why)
{
    why_not = why;
}

static void free_call(struct mst_timed_call *call)
{
    call->next = free_calls;
    free_calls = call;
}

/* A call with two events of this context; NULL: there is none. */
static struct mst_timed_call *take_call(handle context)
{
    struct mst_timed_call **at = &free_calls;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    struct mst_timed_call *call = *at;
    if (call) {
        *at = call->next;
        return call;
    }
    if (call_count >= MOST_CALLS || !(call = PyMem_Calloc(1, sizeof *call)))
        return NULL;
    call->context = context;
    if (driver.cuEventCreate(&call->begin, TIMING) != SUCCESS) {
        PyMem_Free(call);
        give_up("the driver creates no events");
        return NULL;
    }
    if (driver.cuEventCreate(&call->end, TIMING) != SUCCESS) {
        driver.cuEventDestroy_v2(call->begin);
        PyMem_Free(call);
        give_up("the driver creates no events");
        return NULL;
    }
    call_count++;
    return call;
}

/* The current context and stream of this thread. False if nothing may be recorded there: the thread has not used CUDA,
 * or a graph is captured. */
static bool get_position(handle *context, handle *stream)
{
    int status = NOT_CAPTURING;
    if (driver.cuCtxGetCurrent(context) != SUCCESS || !*context)
        return false;
    cuda_stream current = current_stream(-1);
    *stream = stream_handle(&current);
    return driver.cuStreamIsCapturing(*stream, &status) == SUCCESS && status == NOT_CAPTURING;
}

/* Note the times of the calls that the GPU has completed. Queries are allowed while another thread captures a graph
 * only in the relaxed mode. */
static void note_completed(ms_ledger *ledger)
{
    int mode = RELAXED;
    if (!first_ended || why_not || driver.cuThreadExchangeStreamCaptureMode(&mode) != SUCCESS)
        return;
    while (first_ended) {
        struct mst_timed_call *call = first_ended;
        float milliseconds = 0;
        int result = driver.cuEventQuery(call->end);
        if (result == SUCCESS)
            result = driver.cuEventElapsedTime(&milliseconds, call->begin, call->end);
        if (result == NOT_READY)
            break;
        if (result != SUCCESS) {
            give_up("the driver reported an error");
            break;
        }
        first_ended = call->next;
        if (!first_ended)
            last_ended = &first_ended;
        if (milliseconds > 0) {
            ms_call_note_time(ledger, call->number, (uint64_t)((double)milliseconds * 1e6));
            timed++;
        }
        free_call(call);
    }
    driver.cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- which calls ---- */
static void begin_root_call(ms_ledger *ledger)
{
    uint64_t step = ms_ledger_step(ledger);
    if (schedule.step != step) {
        schedule.steps += schedule.began;
        schedule.step = step;
        schedule.root_calls = 0;
    }
    schedule.began = true;
    unsigned nth = schedule.root_calls++;
    bool is_step_timed =
        schedule.steps ? schedule.steps < FIRST_STEPS || schedule.steps % EVERY == 0 : nth >= SKIPPED_ROOT_CALLS;
    schedule.is_timed = is_step_timed && nth < MOST_ROOT_CALLS;
    if (!searched)
        find_functions();
    note_completed(ledger);
}

struct mst_timed_call *mst_cuda_time_begin(ms_ledger *ledger, const ms_thread *thread, bool is_root)
{
    if (LIKELY(!atomic_load_explicit(&mst_cuda_in_use, memory_order_relaxed)) || is_off ||
        !ms_ledger_is_captured(ledger))
        return NULL;
    if (is_root)
        begin_root_call(ledger);
    handle context, stream;
    if (LIKELY(!schedule.is_timed) || why_not || !get_position(&context, &stream))
        return NULL;
    struct mst_timed_call *call = take_call(context);
    if (!call) {
        missed++;
        return NULL;
    }
    call->stream = stream;
    call->number = ++last_number;
    if (driver.cuEventRecord(call->begin, stream) != SUCCESS) {
        give_up("the driver records no events");
        free_call(call);
        return NULL;
    }
    ms_call_note_begin(ledger, thread, call->number);
    return call;
}

void mst_cuda_time_end(struct mst_timed_call *call)
{
    handle context, stream;
    if (why_not || !get_position(&context, &stream) || context != call->context || stream != call->stream ||
        driver.cuEventRecord(call->end, stream) != SUCCESS) {
        free_call(call);
        return;
    }
    call->next = NULL;
    *last_ended = call;
    last_ended = &call->next;
}

void mst_cuda_times_recording(void)
{
    memset(&schedule, 0, sizeof schedule);
}

void mst_cuda_times_note(void)
{
    if (mst.ledger)
        note_completed(mst.ledger);
}

/* If the parent used CUDA, it does not work in the child. A call that is open stays with its owner. */
void mst_cuda_times_forked(void)
{
    if (!atomic_load(&mst_cuda_in_use))
        return;
    free_calls = first_ended = NULL;
    last_ended = &first_ended;
    call_count = 0;
    give_up("CUDA does not work in a forked process");
}

/* ---- from Python ---- */
static PyObject *set_cuda_times(PyObject *self, PyObject *is_on)
{
    (void)self;
    is_off = PyObject_IsTrue(is_on) != 1;
    Py_RETURN_NONE;
}

static PyObject *cuda_times(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (atomic_load(&mst_cuda_in_use) && !searched)
        find_functions();
    return Py_BuildValue("(zKKI)", why_not, (unsigned long long)timed, (unsigned long long)missed, call_count);
}

PyMethodDef mst_cuda_times_methods[] = {
    {"cuda_times", cuda_times, METH_NOARGS,
     "Why calls are not timed on a GPU, or None; how many were timed; for how many there was no event; how many pairs "
     "of "
     "events there are."},
    {"set_cuda_times", set_cuda_times, METH_O, "Whether calls are timed from now on; for measurements."},
    {NULL, NULL, 0, NULL},
};
