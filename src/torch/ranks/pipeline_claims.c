/* pipeline_claims.c - claims of what the stages of torch.distributed.pipelining hold, as the kind Pipeline Buffer.
 *
 *     _PipelineStageBase
 *       .submod                 the module, to which the bytes belong
 *       .args_recv_info         by microbatch: _RecvInfo, each with the .buffer for an activation of the stage before
 *       .grad_recv_info         by microbatch: the same for a gradient of the stage after
 *       .fwd_cache              by microbatch in flight: (outputs, inputs); inputs are those buffers, or the program's
 *       ._forward_chunk_states  from torch 2.15 on: by microbatch in flight, .live_outputs and .input_values. A buffer
 *                               is made for each message, and goes from _RecvInfo to the module's arguments to here
 *       .bwd_cache              by microbatch: gradients that are not sent yet
 *       .output_chunks          outputs of the last stage
 *
 * Nothing leads from a module to its stage. A stage calls its module in one function, whose frame is that of the caller
 * when the root call begins: the stage is its variable `self`, the arguments are in `args`. Only weak references to
 * stages are kept. */
#include "torch/lines/lines.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

#define STAGE_MODULE "torch.distributed.pipelining.stage"

static PyObject *stages;       /* a list of weak references */
static PyObject *calling_code; /* the code of the function in which a stage calls its module; held for ever */

/* A new reference, or NULL without an error: there is no such attribute, or it is None. */
static PyObject *get_attribute(PyObject *object, const char *name)
{
    PyObject *value = object ? PyObject_GetAttrString(object, name) : NULL;
    if (!value)
        mst_clear_error();
    if (value == Py_None)
        Py_CLEAR(value);
    return value;
}

/* ---- claiming ---- */
static void claim_tensors(PyObject *value, ms_path path)
{
    if (PyTuple_Check(value) || PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
            claim_tensors(PySequence_Fast_GET_ITEM(value, i), path);
    } else {
        mst_claim_tensor_kind(value, MS_KIND_PIPELINE, path);
    }
}

typedef void claim_value(PyObject *value, ms_path path);

static void claim_buffers_of(PyObject *infos, ms_path path)
{
    if (!PyTuple_Check(infos) && !PyList_Check(infos))
        return;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(infos); i++) {
        PyObject *buffer = get_attribute(PySequence_Fast_GET_ITEM(infos, i), "buffer");
        if (buffer)
            mst_claim_tensor_kind(buffer, MS_KIND_PIPELINE, path);
        Py_XDECREF(buffer);
    }
}

static void claim_outputs_of(PyObject *cached, ms_path path)
{
    if (PyTuple_Check(cached) && PyTuple_GET_SIZE(cached))
        claim_tensors(PyTuple_GET_ITEM(cached, 0), path);
}

static void claim_tensors_of(PyObject *object, const char *name, ms_path path)
{
    PyObject *tensors = get_attribute(object, name);
    if (tensors)
        claim_tensors(tensors, path);
    Py_XDECREF(tensors);
}

static void claim_state(PyObject *state, ms_path path)
{
    claim_tensors_of(state, "live_outputs", path);
}

static void claim_state_and_inputs(PyObject *state, ms_path path)
{
    claim_state(state, path);
    claim_tensors_of(state, "input_values", path);
}

/* The first stage gets its inputs from the program. */
static bool is_first(PyObject *stage)
{
    PyObject *index = get_attribute(stage, "stage_index");
    bool first = !index || !PyLong_Check(index) || PyLong_AsLong(index) == 0;
    Py_XDECREF(index);
    return first;
}

/* The values of a dict, by microbatch. */
static void claim_values(PyObject *stage, const char *name, claim_value *claim, ms_path path)
{
    PyObject *dict = get_attribute(stage, name), *key, *value;
    Py_ssize_t at = 0;
    while (dict && PyDict_Check(dict) && PyDict_Next(dict, &at, &key, &value)) {
        Py_INCREF(value);
        claim(value, path);
        Py_DECREF(value);
    }
    Py_XDECREF(dict);
}

static void claim_stage(PyObject *stage)
{
    PyObject *module = get_attribute(stage, "submod");
    ms_path path = mst_kind_owner(module);
    claim_values(stage, "args_recv_info", claim_buffers_of, path);
    claim_values(stage, "grad_recv_info", claim_buffers_of, path);
    claim_values(stage, "fwd_cache", claim_outputs_of, path);
    claim_values(stage, "_forward_chunk_states", is_first(stage) ? claim_state : claim_state_and_inputs, path);
    claim_values(stage, "bwd_cache", claim_tensors, path);
    claim_tensors_of(stage, "output_chunks", path);
    Py_XDECREF(module);
}

void mst_claim_pipeline_stages(void)
{
    for (Py_ssize_t i = 0; mst.ledger && stages && i < PyList_GET_SIZE(stages); i++) {
        PyObject *stage = PyObject_CallNoArgs(PyList_GET_ITEM(stages, i)); /* a new reference, or None */
        if (stage && stage != Py_None)
            claim_stage(stage);
        Py_XDECREF(stage);
        mst_clear_error();
    }
}

/* ---- finding stages ---- */

/* The code of _PipelineStageBase.forward_maybe_with_nosync; NULL: the program has not imported it. */
static PyObject *find_calling_code(void)
{
    static PyObject *name;
    if (calling_code)
        return calling_code;
    if (UNLIKELY(!name) && !(name = PyUnicode_InternFromString(STAGE_MODULE)))
        mst_clear_error();
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = name && modules ? PyDict_GetItemWithError(modules, name) : NULL;
    if (LIKELY(!module))
        return NULL;
    PyObject *class = get_attribute(module, "_PipelineStageBase");
    PyObject *function = get_attribute(class, "forward_maybe_with_nosync");
    calling_code = get_attribute(function, "__code__");
    Py_XDECREF(function);
    Py_XDECREF(class);
    return calling_code;
}

/* A variable of a frame: a new reference, or NULL. */
static PyObject *get_variable(PyFrameObject *frame, const PyCodeObject *code, const char *name)
{
    PyObject *const *variables = mst_frame_variables(frame);
    for (int i = 0; variables && i < code->co_nlocalsplus; i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) == 0)
            return Py_XNewRef(variables[i]);
    return NULL;
}

/* The stage that makes the call that begins now, and the call's arguments: new references, or NULL. */
static PyObject *find_stage(PyObject *code, PyObject **arguments)
{
    enum { MOST_FRAMES = 4 };
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *stage = NULL;
    Py_XINCREF(frame);
    for (int i = 0; frame && !stage && i < MOST_FRAMES; i++) {
        PyCodeObject *of_frame = PyFrame_GetCode(frame);
        if ((PyObject *)of_frame == code && (stage = get_variable(frame, of_frame, "self")))
            *arguments = get_variable(frame, of_frame, "args");
        Py_DECREF(of_frame);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return stage;
}

static void remember_stage(PyObject *stage)
{
    PyObject *reference = PyWeakref_NewRef(stage, NULL); /* the same object each time */
    if (!stages)
        stages = PyList_New(0);
    bool known = false;
    for (Py_ssize_t i = 0; stages && i < PyList_GET_SIZE(stages); i++)
        known |= PyList_GET_ITEM(stages, i) == reference;
    if (reference && stages && !known)
        PyList_Append(stages, reference);
    Py_XDECREF(reference);
    mst_clear_error();
}

void mst_pipeline_at_root_call(void)
{
    PyObject *code = find_calling_code();
    if (LIKELY(!code) || !mst.ledger)
        return;
    PyObject *arguments = NULL, *stage = find_stage(code, &arguments);
    if (!stage)
        return;
    remember_stage(stage);
    mst_claim_pipeline_stages();
    if (arguments && !is_first(stage)) {
        PyObject *module = get_attribute(stage, "submod");
        claim_tensors(arguments, mst_kind_owner(module));
        Py_XDECREF(module);
    }
    Py_XDECREF(arguments);
    Py_DECREF(stage);
    mst_clear_error();
}

void mst_pipeline_forget(void)
{
    Py_CLEAR(stages);
}
