/* call_sizes.c - the bytes of the blocks that go into a call and come out of it. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"

enum { BATCH = 64 };

struct root_inputs {
    ms_path root;
    uint32_t count;
    ms_input at[MS_INPUTS];
};

/* ms_block_bytes takes a lock, so addresses are looked up in batches. */
struct size_sum {
    uint64_t addresses[BATCH]; /* not added to `bytes` yet */
    size_t count;
    uint64_t bytes;
    bool is_noted, output;      /* captures note the blocks: a replay can checkpoint the call */
    struct root_inputs *inputs; /* these are the inputs of a root call; NULL: they are not */
};

HOT static void add_batch(struct size_sum *sum)
{
    if (sum->count && sum->is_noted)
        sum->bytes += ms_block_note_uses(mst_target_ledger(), sum->addresses, sum->count, sum->output);
    else if (sum->count)
        sum->bytes += ms_block_bytes(mst_target_ledger(), sum->addresses, sum->count);
    sum->count = 0;
}

/* torch's numbers of dtypes: uint8 to int64 are 0 to 4, half to double are 5 to 7, bfloat16 is 15. */
static ms_element element_of(uint64_t impl)
{
    unsigned dtype = (unsigned)(mst_read_word(impl, mst.layout.dtype) & 0xFFFF);
    if (dtype <= 4)
        return MS_ELEMENT_INTEGER;
    return dtype <= 7 || dtype == 15 ? MS_ELEMENT_FLOAT : MS_ELEMENT_OTHER;
}

/* Of tensors with up to MS_INPUT_DIMS dimensions torch keeps them in the TensorImpl itself. */
static void add_root_input(struct root_inputs *inputs, uint64_t impl)
{
    if (inputs->count == MS_INPUTS || mst.layout.sizes < 0 || mst.layout.dtype < 0)
        return;
    uint64_t dims = mst_read_word(impl, mst.layout.sizes);
    if (dims > MS_INPUT_DIMS)
        return;
    ms_input *input = &inputs->at[inputs->count++];
    *input = (ms_input){.dim_count = (uint32_t)dims, .element = element_of(impl)};
    for (int i = 0; i < (int)dims; i++)
        input->dims[i] = mst_read_word(impl, mst.layout.sizes + 8 * (i + 1));
}

HOT static int add_tensor_size(PyObject *tensor, void *context)
{
    struct size_sum *sum = context;
    struct mst_storage storage;
    if (!mst_read_storage(mst_impl_of(tensor), &storage))
        return 0;
    if (UNLIKELY(sum->inputs != NULL)) {
        add_root_input(sum->inputs, mst_impl_of(tensor));
        mst_claim_root_input(tensor, &storage, sum->inputs->root);
    }
    sum->addresses[sum->count++] = mst.by_dispatcher ? storage.storage : storage.data;
    if (UNLIKELY(sum->count == BATCH))
        add_batch(sum);
    return 0;
}

static int add_any_tensor_size(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, add_tensor_size, context);
}

/* Calls have many keyword arguments, and large objects that are no tensors (a cache of keys and
 * values) are mostly among them. So only their tensors that are found without Python count. */
HOT static void measure_call(ms_thread *thread, struct root_inputs *inputs, bool output, PyObject *const *objects,
                             Py_ssize_t count, Py_ssize_t named)
{
    if (!mst.ledger || !mst_layout_is_known())
        return;
    struct size_sum sum;
    sum.count = 0;
    sum.bytes = 0;
    sum.is_noted = ms_thread_phase(thread) == MS_FORWARD;
    sum.output = output;
    sum.inputs = inputs;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    bool failing = PyErr_Occurred() != NULL;
    if (UNLIKELY(failing))
        PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (LIKELY(Py_TYPE(objects[i]) == mst.torch.tensor))
            add_tensor_size(objects[i], &sum);
        else if (mst_visit_tensors(objects[i], add_any_tensor_size, &sum) != 0)
            mst_clear_error();
    }
    for (Py_ssize_t i = count; i < count + named; i++)
        if (mst_visit_tensors_in_containers(objects[i], add_any_tensor_size, &sum) != 0)
            mst_clear_error();
    add_batch(&sum);
    if (UNLIKELY(failing))
        PyErr_Restore(type, value, traceback);
    ms_call_set_size(thread, output, sum.bytes);
}

static void __attribute__((noinline))
measure_root_inputs(const struct mst_call *call, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named)
{
    struct root_inputs inputs;
    inputs.root = call->path;
    inputs.count = 0;
    mst_outside_inputs_drop_freed(false);
    measure_call(call->thread, &inputs, false, objects, count, named);
    if (mst.ledger)
        ms_inputs_note(mst_target_ledger(), call->thread, inputs.at, inputs.count);
}

HOT void mst_measure_inputs(const struct mst_call *call, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named)
{
    if (UNLIKELY(mst_call_is_root(call)))
        measure_root_inputs(call, objects, count, named);
    else
        measure_call(call->thread, NULL, false, objects, count, named);
}

HOT void mst_measure_output(const struct mst_call *call, PyObject *output)
{
    measure_call(call->thread, NULL, true, &output, 1, 0);
}
