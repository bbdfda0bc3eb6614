/* oom_report.c - make the out-of-memory report of a failed allocation, write it to stderr, and add it to exceptions.
 *
 * The report is made while the allocation fails, on any thread, mostly without the GIL. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_BYTES = 8192, REPORTS_SHOWN = 5 };

static _Atomic uint64_t failures;     /* allocations that failed */
static _Atomic uint32_t report_count; /* since the ledger was attached */
static _Atomic bool latest_shown;     /* the latest report was written to stderr */
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static char latest_report[REPORT_BYTES]; /* guarded by report_lock */
static uint64_t latest_requested;        /* bytes; guarded by report_lock */

/* Another thread may hold the lock of Python's sys.stderr, so this writes to the file descriptor. */
static void write_to_stderr(const char *text, size_t length)
{
    while (length) {
        ssize_t wrote = write(STDERR_FILENO, text, length);
        if (wrote <= 0 && errno != EINTR)
            return;
        text += wrote > 0 ? wrote : 0;
        length -= wrote > 0 ? (size_t)wrote : 0;
    }
}

void mst_oom_reports_begin(void)
{
    atomic_store(&report_count, 0);
}

void mst_oom_report(ms_ledger *ledger, const ms_oom *oom)
{
    char text[REPORT_BYTES];
    ms_oom with_stack = *oom;
    with_stack.stack = mst_stack_here();
    size_t length = ms_ledger_oom(ledger, mst_this_thread, &with_stack, text, sizeof text);
    atomic_fetch_add(&failures, 1);
    uint32_t before = atomic_fetch_add(&report_count, 1);
    atomic_store(&latest_shown, before < REPORTS_SHOWN);
    if (before < REPORTS_SHOWN)
        write_to_stderr(text, length);
    if (before + 1 == REPORTS_SHOWN) {
        static const char last[] =
            "[modscope] further out-of-memory reports are not shown here; exceptions still have them as notes\n";
        write_to_stderr(last, sizeof last - 1);
    }
    pthread_mutex_lock(&report_lock);
    memcpy(latest_report, text, length + 1);
    latest_requested = oom->requested;
    pthread_mutex_unlock(&report_lock);
    atomic_store(&mst.oom_report_pending, true);
}

static PyObject *out_of_memory(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    char text[REPORT_BYTES];
    pthread_mutex_lock(&report_lock);
    memcpy(text, latest_report, sizeof text);
    unsigned long long bytes = latest_requested;
    pthread_mutex_unlock(&report_lock);
    PyObject *latest = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *pending = atomic_load(&mst.oom_report_pending) ? Py_True : Py_False;
    PyObject *was_shown = atomic_load(&latest_shown) ? Py_True : Py_False;
    return latest
               ? Py_BuildValue("(KNKOO)", (unsigned long long)atomic_load(&failures), latest, bytes, pending, was_shown)
               : NULL;
}

static PyObject *oom_report_added(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    atomic_store(&mst.oom_report_pending, false);
    Py_RETURN_NONE;
}

/* Python decides whether the error comes from the failed allocation, and calls oom_report_added if it does. */
void mst_oom_report_add_note(void)
{
    if (LIKELY(!atomic_load_explicit(&mst.oom_report_pending, memory_order_relaxed)))
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *done = value ? mst_run_python(MST_PY_ADD_OOM_NOTE, value) : NULL;
    Py_XDECREF(done);
    mst_clear_error();
    PyErr_Restore(type, value, traceback);
}

PyMethodDef mst_oom_report_methods[] = {
    {"out_of_memory", out_of_memory, METH_NOARGS,
     "How many allocations failed so far; the latest report; the bytes requested; whether no exception has\n"
     "the report yet; whether the report was written to stderr."},
    {"oom_report_added", oom_report_added, METH_NOARGS, "The latest report was added to an exception."},
    {NULL, NULL, 0, NULL},
};
