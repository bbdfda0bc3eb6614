/* operator_times.c - how long operators take: the sums of each module, and the operators of each call of a module.
 *
 * A TorchDispatchMode gives each operator to `run`, as it does for operator_log.c. Its time is added to all modules
 * that run. Where operators are kept, a row is added for it:
 *
 *     rows      [ t | addmm | relu_ | ... ]     the results of a row are storages, in `results`
 *     storages  [ weight, from outside | made by row 1 | ... ]
 *     calls     [ Net: rows 0 to 9 | Net.block: rows 2 to 7 | ... ]
 *
 * A storage is known by its address until an operator makes another one there. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"
#include "torch/virtual/virtual.h"

#include <stdlib.h>

enum { MOST_MODULES = 256, CUDA_ROUNDING = 512 }; /* torch's CUDA allocator rounds up to a multiple of this */

/* ---- times, by module ---- */

/* Index into names; -1 with an error set. */
static long number_of_name(mst_operator_times *self, PyObject *fqn)
{
    PyObject *known = PyDict_GetItemWithError(self->numbers, fqn);
    if (known || PyErr_Occurred())
        return known ? PyLong_AsLong(known) : -1;
    Py_ssize_t count = PyList_GET_SIZE(self->names);
    if (!MS__ARRAY_GROW(self->sums, self->sums_room, (size_t)count + 1))
        return PyErr_NoMemory(), -1;
    self->sums[count][0] = self->sums[count][1] = 0;
    PyObject *number = PyLong_FromSsize_t(count);
    int error = !number || PyList_Append(self->names, fqn) != 0 ? -1 : PyDict_SetItem(self->numbers, fqn, number);
    Py_XDECREF(number);
    return error ? -1 : (long)count;
}

static long number_of_path(mst_operator_times *self, ms_path path)
{
    uint64_t known = ms__map_get(&self->by_path, path);
    if (LIKELY(known != MS__MAP_NONE))
        return (long)known;
    PyObject *fqn = path == MS_GLOBAL ? mst.interned.Global : mst_path_fqn(path);
    long number = fqn ? number_of_name(self, fqn) : -1;
    if (number >= 0 && !ms__map_set(&self->by_path, path, (uint64_t)number))
        return PyErr_NoMemory(), -1;
    return number;
}

struct modules {
    long numbers[MOST_MODULES];
    size_t count;
};

/* Returns -1 with an error set. */
static int add_module(mst_operator_times *self, struct modules *modules, ms_path path)
{
    long number = number_of_path(self, path);
    for (size_t i = 0; i < modules->count; i++)
        if (modules->numbers[i] == number)
            return 0;
    if (number >= 0 && modules->count < MOST_MODULES)
        modules->numbers[modules->count++] = number;
    return number < 0 ? -1 : 0;
}

/* Add a time to each module that runs, once, and to "Global". Returns -1 with an error set, and then to none. */
static int add_time(mst_operator_times *self, double milliseconds)
{
    struct mst_position position = mst_position_find(true);
    struct modules modules = {.count = 0};
    int error = add_module(self, &modules, MS_GLOBAL);
    for (size_t i = 0; i < position.count && !error; i++)
        for (ms_path path = position.paths[i]; path != MS_GLOBAL && !error; path = ms_path_parent(mst.watch, path))
            error = add_module(self, &modules, path);
    int is_backward = mst_graph_task_id() != -1;
    for (size_t i = 0; i < modules.count && !error; i++)
        self->sums[modules.numbers[i]][is_backward] += milliseconds;
    self->total += error ? 0 : milliseconds;
    return error;
}

/* ---- operators ---- */

/* Index into operators; -1 with an error set. */
static Py_ssize_t number_of_operator(mst_operator_times *self, PyObject *op)
{
    uint64_t known = ms__map_get(&self->by_operator, (uintptr_t)op);
    if (LIKELY(known != MS__MAP_NONE))
        return (Py_ssize_t)known;
    PyObject *flags = PyObject_CallOneArg(self->flags_of, op);
    unsigned long bits = flags ? PyLong_AsUnsignedLong(flags) : 0;
    Py_XDECREF(flags);
    Py_ssize_t number = PyList_GET_SIZE(self->operators);
    if (PyErr_Occurred() || PyList_Append(self->operators, op) != 0)
        return -1;
    if (!MS__ARRAY_GROW(self->flags, self->flags_room, (size_t)number + 1) ||
        !ms__map_set(&self->by_operator, (uintptr_t)op, (uint64_t)number))
        return PyErr_NoMemory(), -1;
    self->flags[number] = (uint32_t)bits;
    return number;
}

/* Whether a tensor is on a CUDA device. A fake tensor's storage does not know that, but its attribute does. */
static bool is_cuda(PyObject *tensor)
{
    PyObject *device = PyObject_GetAttr(tensor, mst.interned.device);
    bool found = device && strcmp(Py_TYPE(device)->tp_name, "torch.device") == 0 &&
                 ((const int8_t *)device)[sizeof(PyObject)] == MST_CUDA; /* c10::Device */
    Py_XDECREF(device);
    mst_clear_error();
    return found;
}

/* An operator whose results are being noted. */
struct run {
    mst_operator_times *times;
    struct ms__map inputs; /* the StorageImpl of its arguments */
    size_t first_result;
    size_t new_count;
};

static bool read_storage(PyObject *tensor, struct mst_storage *storage)
{
    return mst_read_storage(mst_impl_of(tensor), storage) && storage->bytes >= 0;
}

static int note_input_storage(PyObject *tensor, void *context)
{
    struct run *run = context;
    struct mst_storage storage;
    if (!read_storage(tensor, &storage) || ms__map_set(&run->inputs, storage.storage, 0))
        return 0;
    PyErr_NoMemory();
    return -1;
}

static int note_input(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, note_input_storage, context);
}

/* Index into storages; UINT32_MAX if memory runs out. */
static uint32_t add_storage_seen(mst_operator_times *self, PyObject *tensor, const struct mst_storage *storage,
                                 size_t made_by)
{
    uint64_t bytes = (uint64_t)storage->bytes;
    if (is_cuda(tensor))
        bytes = (bytes + CUDA_ROUNDING - 1) / CUDA_ROUNDING * CUDA_ROUNDING;
    if (!MS__ARRAY_GROW(self->storages, self->storage_room, self->storage_count + 1) ||
        !ms__map_set(&self->by_storage, storage->storage, self->storage_count))
        return UINT32_MAX;
    self->storages[self->storage_count] = (struct mst_seen_storage){bytes, made_by, 0};
    return (uint32_t)self->storage_count++;
}

/* Append to results, from `first` on once. Returns -1 with an error set. */
static int append_result(mst_operator_times *self, size_t first, uint32_t storage)
{
    for (size_t i = first; i < self->result_count; i++)
        if (self->results[i] == storage)
            return 0;
    if (storage == UINT32_MAX || !MS__ARRAY_GROW(self->results, self->result_room, self->result_count + 1))
        return PyErr_NoMemory(), -1;
    self->results[self->result_count++] = storage;
    return 0;
}

static int note_result_storage(PyObject *tensor, void *context)
{
    struct run *run = context;
    mst_operator_times *self = run->times;
    struct mst_storage storage;
    if (!read_storage(tensor, &storage))
        return 0;
    bool is_input = ms__map_has(&run->inputs, storage.storage);
    uint32_t known = ms__map_index(&self->by_storage, storage.storage);
    bool is_made_now = known != UINT32_MAX && self->storages[known].made_by == self->row_count;
    if (known == UINT32_MAX || (!is_input && !is_made_now)) {
        known = add_storage_seen(self, tensor, &storage, is_input ? SIZE_MAX : self->row_count);
        run->new_count += !is_input;
    }
    return append_result(self, run->first_result, known);
}

static int note_result(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, note_result_storage, context);
}

static bool draws_random_numbers(mst_operator_times *self, PyObject *op, PyObject *args, PyObject *named)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(self->is_random, op, args, named ? named : Py_None, NULL);
    bool is_random = answer && PyObject_IsTrue(answer) > 0;
    Py_XDECREF(answer);
    mst_clear_error();
    return is_random;
}

/* Returns -1 with an error set. */
static int add_row(struct run *run, PyObject *op, PyObject *args, PyObject *named, PyObject *result,
                   double milliseconds)
{
    mst_operator_times *self = run->times;
    Py_ssize_t number = number_of_operator(self, op);
    uint32_t flags = number < 0 ? 0 : self->flags[number];
    if (flags & MST_OPERATOR_RANDOM && !draws_random_numbers(self, op, args, named))
        flags &= ~(uint32_t)MST_OPERATOR_RANDOM;
    if (number < 0 || !MS__ARRAY_GROW(self->rows, self->row_room, self->row_count + 1))
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    run->first_result = self->result_count;
    if (mst_visit_tensors(result, note_result, run) != 0)
        return -1;
    uint32_t results = (uint32_t)(self->result_count - run->first_result);
    if (results && !run->new_count && !(flags & MST_OPERATOR_IN_PLACE))
        flags |= MST_OPERATOR_VIEW;
    self->rows[self->row_count++] = (struct mst_estimated_operator){
        milliseconds, PyThread_get_thread_ident(), run->first_result, results, (uint32_t)number, flags};
    return 0;
}

/* Milliseconds of the device; -1 with an error set. */
static double estimate(mst_operator_times *self, PyObject *op, PyObject *args, PyObject *named, PyObject *result,
                       double busy)
{
    if (self->estimate == Py_None)
        return (mst_virtual_clock_busy() - busy) / 1e6;
    PyObject *callback = mst_dynamo_disable();
    PyObject *answer = PyObject_CallFunctionObjArgs(self->estimate, op, args, named ? named : Py_None, result, NULL);
    mst_dynamo_restore(callback);
    double milliseconds = answer ? PyFloat_AsDouble(answer) : -1;
    Py_XDECREF(answer);
    return milliseconds;
}

PyObject *mst_times_run(mst_operator_times *self, PyObject *op, PyObject *args, PyObject *named)
{
    if (!self->recording)
        return PyObject_Call(op, args, named);
    struct run run = {.times = self};
    bool keeps_rows = self->flags_of != Py_None;
    int error = keeps_rows ? mst_visit_tensors(args, note_input, &run) : 0;
    error = error || (keeps_rows && named && mst_visit_tensors(named, note_input, &run) != 0);
    mst_clear_error();
    double busy = mst_virtual_clock_busy();
    PyObject *result = PyObject_Call(op, args, named);
    if (result && self->recording) { /* the program's operator has succeeded: nothing may raise from here on */
        double milliseconds = error ? -1 : estimate(self, op, args, named, result, busy);
        if (milliseconds < 0 || add_time(self, milliseconds) != 0 ||
            (keeps_rows && add_row(&run, op, args, named, result, milliseconds) != 0))
            self->lost++;
        mst_clear_error();
    }
    ms__map_clear(&run.inputs);
    return result;
}

/* ---- calls of modules ---- */

static int find_any_tensor(PyObject *tensor, void *context)
{
    (void)tensor;
    *(bool *)context = true;
    return 0;
}

static void begin_call(mst_operator_times *self, PyObject *module, PyObject *fqn, PyObject *args)
{
    PyObject *children = mst_module_dict(module, mst.interned._modules);
    if (!children || !PyDict_GET_SIZE(children))
        return;
    bool has_tensor = false;
    long name = number_of_name(self, fqn);
    if (name < 0 || mst_visit_tensors(args, find_any_tensor, &has_tensor) != 0 ||
        !MS__ARRAY_GROW(self->calls, self->call_room, self->call_count + 1)) {
        mst_clear_error();
        self->lost++;
        return;
    }
    self->calls[self->call_count++] = (struct mst_estimated_call){.name = (uint32_t)name,
                                                                  .has_tensor = has_tensor,
                                                                  .module = (uintptr_t)module,
                                                                  .thread = PyThread_get_thread_ident(),
                                                                  .first = self->row_count};
}

struct output {
    mst_operator_times *times;
    size_t first;
};

static int note_output_storage(PyObject *tensor, void *context)
{
    struct output *output = context;
    struct mst_storage storage;
    if (!read_storage(tensor, &storage))
        return 0;
    uint32_t known = ms__map_index(&output->times->by_storage, storage.storage);
    return known == UINT32_MAX ? 0 : append_result(output->times, output->first, known);
}

static int note_output(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, note_output_storage, context);
}

static void end_call(mst_operator_times *self, PyObject *module, PyObject *result)
{
    unsigned long thread = PyThread_get_thread_ident();
    for (size_t i = self->call_count; i-- > 0;) {
        struct mst_estimated_call *call = &self->calls[i];
        if (call->has_ended || call->thread != thread || call->module != (uintptr_t)module)
            continue;
        struct output output = {self, self->result_count};
        call->first_output = output.first;
        call->end = self->row_count;
        call->end_moment = ++self->moment;
        call->has_ended = true;
        if (mst_visit_tensors(result, note_output, &output) != 0)
            self->lost++;
        mst_clear_error();
        self->calls[i].output_count =
            self->result_count - output.first; /* a visit may run Python, which calls modules */
        return;
    }
}

/* Calls in a recomputation are counted in the orders, as in torch, but their operators are those of the forward. */
void mst_times_note_call(mst_operator_times *self, int hook, PyObject *const *given, Py_ssize_t count)
{
    PyObject *module = count ? given[0] : Py_None;
    PyObject *fqn = module != Py_None && mst.registry ? mst_registry_fqn(mst.registry, module) : NULL;
    if (!self->recording || !fqn)
        return;
    Py_INCREF(fqn);
    if (PyList_Append(PyTuple_GET_ITEM(self->orders, hook), fqn) != 0)
        self->lost++;
    mst_clear_error();
    if (self->flags_of != Py_None && mst_graph_task_id() == -1) {
        if (hook == MST_PRE_FW && count > 1)
            begin_call(self, module, fqn, given[1]);
        else if (hook == MST_POST_FW && count > 2)
            end_call(self, module, given[2]);
    }
    Py_DECREF(fqn);
}

static int note_saved_storage(PyObject *tensor, void *context)
{
    mst_operator_times *self = context;
    struct mst_storage storage;
    uint32_t known = read_storage(tensor, &storage) ? ms__map_index(&self->by_storage, storage.storage) : UINT32_MAX;
    if (known != UINT32_MAX && !self->storages[known].saved_at)
        self->storages[known].saved_at = ++self->moment;
    return 0;
}

void mst_times_note_saved(mst_operator_times *self, PyObject *tensor)
{
    if (self->recording && mst_visit_inner_tensors(tensor, note_saved_storage, self) != 0)
        self->lost++;
    mst_clear_error();
}

/* ---- the operators of a call ---- */

/* What of a call has been looked at. */
struct reading {
    const mst_operator_times *times;
    const struct mst_estimated_call *call;
    struct ms__map heads; /* index into storages -> the first operator that is listed and has it as a result */
    PyObject *lists[5];   /* operators, ms, bytes, flags, heads */
};

static bool is_output(const struct reading *reading, uint32_t storage)
{
    const uint32_t *outputs = reading->times->results + reading->call->first_output;
    for (size_t i = 0; i < reading->call->output_count; i++)
        if (outputs[i] == storage)
            return true;
    return false;
}

/* The bytes that an operator adds to what the call keeps if all is kept: those of storages that were made in the call
 * and that no operator listed before it has. What the call returns is kept anyway. */
static uint64_t own_bytes(const struct reading *reading, uint32_t storage)
{
    const struct mst_seen_storage *seen = &reading->times->storages[storage];
    bool is_made_in_call = seen->made_by != SIZE_MAX && seen->made_by >= reading->call->first;
    return is_made_in_call && !is_output(reading, storage) ? seen->bytes : 0;
}

/* Returns -1 with an error set. */
static int read_row(struct reading *reading, const struct mst_estimated_operator *row)
{
    const mst_operator_times *self = reading->times;
    uint64_t position = (uint64_t)PyList_GET_SIZE(reading->lists[0]), bytes = 0;
    uint32_t flags = row->flags;
    bool is_in_place = flags & MST_OPERATOR_IN_PLACE;
    uint64_t head = is_in_place ? position : MS__MAP_NONE;
    for (uint32_t i = 0; i < row->result_count; i++) {
        uint32_t storage = self->results[row->first_result + i];
        uint64_t before = ms__map_get(&reading->heads, storage);
        bool is_made_here = self->storages[storage].made_by == (size_t)(row - self->rows);
        if (before == MS__MAP_NONE && (is_in_place || is_made_here)) {
            bytes += own_bytes(reading, storage);
            if (!ms__map_set(&reading->heads, storage, position))
                return PyErr_NoMemory(), -1;
        } else if (is_in_place && before < head) {
            head = before;
        }
        uint64_t saved_at = self->storages[storage].saved_at;
        if (saved_at && saved_at <= reading->call->end_moment)
            flags |= MST_OPERATOR_SAVED;
    }
    PyObject *values[] = {Py_NewRef(PyList_GET_ITEM(self->operators, row->number)),
                          PyFloat_FromDouble(row->milliseconds), PyLong_FromUnsignedLongLong(bytes),
                          PyLong_FromUnsignedLong(flags),
                          PyLong_FromLongLong(head == MS__MAP_NONE ? -1 : (long long)head)};
    int error = 0;
    for (int i = 0; i < 5; i++)
        error |= mst_append_new(reading->lists[i], values[i]);
    return error;
}

PyObject *mst_times_of_call(const mst_operator_times *self, const struct mst_estimated_call *call)
{
    struct reading reading = {.times = self, .call = call};
    int error = 0;
    for (int i = 0; i < 5; i++)
        error |= !(reading.lists[i] = PyList_New(0));
    for (size_t i = call->first; i < call->end && !error; i++)
        if (self->rows[i].thread == call->thread && !(self->rows[i].flags & MST_OPERATOR_SKIPPED))
            error = read_row(&reading, &self->rows[i]);
    ms__map_clear(&reading.heads);
    PyObject *found = error ? NULL : PyTuple_New(5);
    for (int i = 0; i < 5; i++) {
        if (found)
            PyTuple_SET_ITEM(found, i, reading.lists[i]);
        else
            Py_XDECREF(reading.lists[i]);
    }
    return found;
}
