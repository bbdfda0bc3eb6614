/* inputs.c - Reader.input_shapes: the shapes with which steps ran, and how much memory the steps of each shape held. */
#include "capture_api/capture_api.h"

#include <stdlib.h>
#include <string.h>

/* A step, the input that stands for its root calls, and the most that the device held in it. */
struct step_input {
    uint64_t step;
    ms_input input;
    double elements;
    int64_t peak;
};

struct step_inputs {
    struct step_input *at;
    size_t count;
};

static double elements_of(const ms_input *input)
{
    double elements = input->dim_count ? 1 : 0;
    for (uint32_t i = 0; i < input->dim_count; i++)
        elements *= (double)input->dims[i];
    return elements;
}

/* Of a step of several root calls, the input is that of the largest. Steps are in their order. */
static void add_root_call(struct step_inputs *steps, uint64_t step, const ms_input *input)
{
    struct step_input *last = steps->count ? &steps->at[steps->count - 1] : NULL;
    double elements = elements_of(input);
    if (last && step < last->step)
        return;
    if (!last || step > last->step)
        last = &steps->at[steps->count++];
    else if (elements <= last->elements)
        return;
    *last = (struct step_input){.step = step, .input = *input, .elements = elements};
}

static int read_steps(ms_reader *reader, struct step_inputs *steps)
{
    ms_root_inputs inputs;
    int error = ms_root_inputs_read(reader, &inputs);
    if (error)
        return error;
    steps->at = PyMem_RawMalloc((inputs.count + 1) * sizeof *steps->at);
    for (size_t i = 0; steps->at && i < inputs.count; i++)
        if (inputs.calls[i].count)
            add_root_call(steps, inputs.calls[i].step,
                          ms_inputs_main(&inputs.inputs[inputs.calls[i].first], inputs.calls[i].count));
    ms_root_inputs_free(reader, &inputs);
    return steps->at ? MS_OK : MS_ENOMEM;
}

/* Where a step ends: at the next step, at an evaluation, or at the end of the capture (MS_EEND). */
static int find_step_end(ms_cursor *cursor, ms_event *event)
{
    int error;
    do
        error = ms_cursor_next(cursor, 1u << MS_OP_STEP | 1u << MS_OP_POSITION, event);
    while (!error && event->op == MS_OP_POSITION && event->phase != MS_EVALUATION);
    return error;
}

/* Both cursors go through the steps: `ahead` finds where a step ends, `behind` what was held until there. What an
 * evaluation holds belongs to no step. */
static int find_step_peaks(struct step_inputs *steps, uint32_t device, ms_cursor *ahead, ms_cursor *behind)
{
    int64_t peaks[MS_MAX_DEVICES];
    uint64_t step = ms_cursor_step(behind);
    bool evaluating = false;
    for (size_t at = 0; at < steps->count;) {
        ms_event event;
        int end = find_step_end(ahead, &event);
        if (end && end != MS_EEND)
            return end;
        int error = ms_cursor_peaks(behind, end ? UINT64_MAX : event.number, peaks);
        if (error)
            return error;
        while (at < steps->count && steps->at[at].step < step)
            at++;
        if (at < steps->count && steps->at[at].step == step && !evaluating)
            steps->at[at++].peak = peaks[device];
        if (end)
            break;
        evaluating = event.op == MS_OP_POSITION;
        step = evaluating ? step : event.bytes;
    }
    return MS_OK;
}

static int add_peaks(ms_reader *reader, struct step_inputs *steps, uint32_t device)
{
    ms_cursor *ahead, *behind = NULL;
    int error = ms_cursor_open(reader, &ahead);
    if (error)
        return error;
    error = ms_cursor_open(reader, &behind);
    if (!error)
        error = find_step_peaks(steps, device, ahead, behind);
    if (behind)
        ms_cursor_close(behind);
    ms_cursor_close(ahead);
    return error;
}

static int compare_shapes(const ms_input *a, const ms_input *b)
{
    if (a->element != b->element)
        return a->element < b->element ? -1 : 1;
    if (a->dim_count != b->dim_count)
        return a->dim_count < b->dim_count ? -1 : 1;
    for (uint32_t i = 0; i < a->dim_count; i++)
        if (a->dims[i] != b->dims[i])
            return a->dims[i] < b->dims[i] ? -1 : 1;
    return 0;
}

static bool shapes_differ(const struct step_inputs *steps)
{
    size_t same = 1;
    while (same < steps->count && compare_shapes(&steps->at[same].input, &steps->at[0].input) == 0)
        same++;
    return same < steps->count;
}

/* By size, largest first; steps of equal shapes are neighbours, that with the highest peak first. */
static int by_shape(const void *a, const void *b)
{
    const struct step_input *first = a, *second = b;
    if (first->elements != second->elements)
        return first->elements > second->elements ? -1 : 1;
    int order = compare_shapes(&first->input, &second->input);
    if (order)
        return order;
    if (first->peak != second->peak)
        return first->peak > second->peak ? -1 : 1;
    return first->step < second->step ? -1 : first->step > second->step;
}

static PyObject *row_of(const struct step_input *highest, size_t steps)
{
    static const char *const elements[] = {"", "integer", "float"};
    PyObject *dims = PyTuple_New(highest->input.dim_count);
    for (uint32_t i = 0; dims && i < highest->input.dim_count; i++) {
        PyObject *dim = PyLong_FromUnsignedLongLong(highest->input.dims[i]);
        if (dim)
            PyTuple_SET_ITEM(dims, i, dim);
        else
            Py_CLEAR(dims);
    }
    return dims ? Py_BuildValue("(NsnKL)", dims, elements[highest->input.element], (Py_ssize_t)steps,
                                (unsigned long long)highest->step, (long long)highest->peak)
                : NULL;
}

static PyObject *list_of_shapes(const struct step_inputs *steps)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0, next; list && i < steps->count; i = next) {
        next = i + 1;
        while (next < steps->count && compare_shapes(&steps->at[i].input, &steps->at[next].input) == 0)
            next++;
        if (!msr_append(list, row_of(&steps->at[i], next - i)))
            Py_CLEAR(list);
    }
    return list;
}

PyObject *msr_input_shapes(msr_reader *reader, unsigned device)
{
    struct step_inputs steps = {NULL, 0};
    if (!msr_lock_reader(reader))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = read_steps(reader->reader, &steps);
    if (!error && shapes_differ(&steps))
        error = add_peaks(reader->reader, &steps, device < MS_MAX_DEVICES ? device : 0);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (!error)
        qsort(steps.at, steps.count, sizeof *steps.at, by_shape);
    PyObject *list = error ? msr_raise(error) : list_of_shapes(&steps);
    PyMem_RawFree(steps.at);
    return list;
}
