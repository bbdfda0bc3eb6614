/* fsdp_states.c - what was allocated around the forward and backward of each FSDP module.
 *
 * A record is what all devices held in one state of a module or of an FSDPParamGroup. The records of the latest
 * training step are kept. While a forward or backward is open, a peak tracker of its own follows its peak. */
#include "torch/api/api.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

struct device_figures {
    ms_sums sums;
    ms_kind_sums kinds;
};

struct record {
    const void *object; /* compared by Python, never used */
    enum mst_fsdp_state state;
    uint32_t devices;
    size_t figures; /* the index of the first device's */
};

/* A forward or backward that is open. */
struct open_peak {
    const void *object;
    enum mst_fsdp_state state; /* MST_PEAK_FORWARD or MST_PEAK_BACKWARD */
    ms_peak_tracker *tracker;
};

enum { OPEN_MOST = 256 }; /* more than that nest in no program */

static struct {
    unsigned users; /* how many FSDPMemTrackers are active */
    uint64_t step;  /* that the records are of */
    struct record *records;
    size_t count, room;
    struct device_figures *figures;
    size_t figure_count, figure_room;
    struct open_peak open[OPEN_MOST];
    size_t open_count;
} kept;

/* Room for one item more, in an array of items of this size. */
static bool reserve(void **array, size_t *room, size_t wanted, size_t size)
{
    if (wanted <= *room)
        return true;
    size_t larger = *room ? *room * 2 : 256;
    while (larger < wanted)
        larger *= 2;
    void *grown = PyMem_Realloc(*array, larger * size);
    if (!grown)
        return false;
    *array = grown;
    *room = larger;
    return true;
}

/* Record what is allocated now, or at the peak of a tracker. */
static void append_record(const void *object, enum mst_fsdp_state state, ms_peak_tracker *at_peak)
{
    ms_ledger *ledger = mst_target_ledger();
    uint32_t devices = ms_ledger_devices(ledger);
    if (!reserve((void **)&kept.records, &kept.room, kept.count + 1, sizeof *kept.records) ||
        !reserve((void **)&kept.figures, &kept.figure_room, kept.figure_count + devices, sizeof *kept.figures))
        return;
    kept.records[kept.count++] = (struct record){object, state, devices, kept.figure_count};
    for (uint32_t device = 0; device < devices; device++)
        kept.figures[kept.figure_count++] =
            at_peak ? (struct device_figures){ms_peak_tracker_peak(at_peak, device).sums,
                                              ms_peak_tracker_kinds(at_peak, device)}
                    : (struct device_figures){ms_ledger_now(ledger, device), ms_ledger_kinds(ledger, device)};
}

static void open_peak(const void *object, enum mst_fsdp_state state)
{
    ms_peak_tracker *tracker = kept.open_count < OPEN_MOST ? ms_peak_tracker_open(mst_target_ledger()) : NULL;
    if (tracker)
        kept.open[kept.open_count++] = (struct open_peak){object, state, tracker};
}

/* End the latest one of this object, if any, and record its peak. */
static void close_peak(const void *object, enum mst_fsdp_state state)
{
    size_t at = kept.open_count;
    while (at && (kept.open[at - 1].object != object || kept.open[at - 1].state != state))
        at--;
    if (!at)
        return;
    append_record(object, state, kept.open[at - 1].tracker);
    ms_peak_tracker_close(kept.open[at - 1].tracker);
    for (; at < kept.open_count; at++)
        kept.open[at - 1] = kept.open[at];
    kept.open_count--;
}

/* Peaks that are open when the next step begins belong to a forward or backward that raised. */
static void drop_open_peaks(void)
{
    while (kept.open_count)
        ms_peak_tracker_close(kept.open[--kept.open_count].tracker);
}

static void clear_records(void)
{
    drop_open_peaks();
    kept.count = kept.figure_count = 0;
}

void mst_fsdp_states_detach(void)
{
    drop_open_peaks();
}

static bool is_in_recompute(void)
{
    const ms_thread *thread = mst_thread_here();
    return thread && ms_thread_phase(thread) == MS_RECOMPUTE;
}

void mst_fsdp_state_record(PyObject *object, enum mst_fsdp_state state)
{
    if (LIKELY(!kept.users))
        return;
    uint64_t step = ms_ledger_step(mst_target_ledger());
    if (step != kept.step) {
        kept.step = step;
        clear_records();
    }
    if (state <= MST_AFTER_POST_FORWARD && is_in_recompute()) {
        if (state == MST_AFTER_PRE_FORWARD)
            append_record(object, MST_PRE_FORWARD_RECOMPUTE, NULL);
        else if (state == MST_BEFORE_POST_FORWARD)
            append_record(object, MST_POST_FORWARD_RECOMPUTE, NULL);
        return;
    }
    append_record(object, state, NULL);
    if (state == MST_BEFORE_PRE_FORWARD)
        open_peak(object, MST_PEAK_FORWARD);
    else if (state == MST_BEFORE_PRE_BACKWARD)
        open_peak(object, MST_PEAK_BACKWARD);
    else if (state == MST_AFTER_POST_FORWARD)
        close_peak(object, MST_PEAK_FORWARD);
    else if (state == MST_AFTER_POST_BACKWARD)
        close_peak(object, MST_PEAK_BACKWARD);
}

/* ---- from Python ---- */

static PyObject *record_fsdp_states(PyObject *self, PyObject *on)
{
    (void)self;
    int begins = PyObject_IsTrue(on);
    if (begins < 0)
        return NULL;
    if (begins && kept.users++ == 0)
        clear_records(); /* their objects may be gone, and new ones have the same addresses */
    else if (!begins && kept.users && --kept.users == 0)
        drop_open_peaks();
    Py_RETURN_NONE;
}

static PyObject *clear_fsdp_states(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    clear_records();
    Py_RETURN_NONE;
}

static PyObject *figures_of(const struct record *record)
{
    PyObject *list = PyList_New(0);
    for (uint32_t device = 0; list && device < record->devices; device++) {
        const struct device_figures *figures = &kept.figures[record->figures + device];
        PyObject *pair = Py_BuildValue("(NN)", mst_tuple_of_sums(&figures->sums), mst_tuple_of_kinds(&figures->kinds));
        if (mst_append_new(list, pair) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *fsdp_states(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    static const char *const texts[] = {
#define X(name, text) text,
        MST_FSDP_STATES(X)
#undef X
    };
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < kept.count; i++) {
        const struct record *record = &kept.records[i];
        PyObject *id = PyLong_FromVoidPtr((void *)record->object);
        if (!id || mst_append_new(list, Py_BuildValue("(NsN)", id, texts[record->state], figures_of(record))) != 0)
            Py_CLEAR(list);
    }
    return list;
}

PyMethodDef mst_fsdp_states_methods[] = {
    {"record_fsdp_states", record_fsdp_states, METH_O,
     "Record the states of FSDP modules from now on, or no more: each True needs its False."},
    {"clear_fsdp_states", clear_fsdp_states, METH_NOARGS, "Forget the recorded states."},
    {"fsdp_states", fsdp_states, METH_NOARGS,
     "(id of a module or FSDPParamGroup, state, [(bytes by category, bytes by kind) of each device]) of the latest "
     "step."},
    {NULL, NULL, 0, NULL},
};
