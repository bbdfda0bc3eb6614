/* native.c - the extension module modscope._native. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

static PyObject *set_interception(PyObject *self, PyObject *args)
{
    (void)self;
    int calls, nodes;
    if (!PyArg_ParseTuple(args, "pp", &calls, &nodes))
        return NULL;
    if (mst.active) {
        PyErr_SetString(PyExc_RuntimeError, "set_interception must be called while no tracker is active");
        return NULL;
    }
    mst.intercept_calls = calls;
    mst.intercept_nodes = nodes;
    Py_RETURN_NONE;
}

static PyObject *lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(ms_watch_lost(mst.watch));
}

static PyObject *restore(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    mst_captures_end();
    mst_stop_interception();
    mst_stacks_stop();
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"set_interception", set_interception, METH_VARARGS,
     "Whether module calls and backward nodes are intercepted, else the fallback is used."},
    {"lost", lost, METH_NOARGS, "How many events were lost because memory ran out."},
    {"restore", restore, METH_NOARGS,
     "End captures and restore the interception points, at the end of the interpreter."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "modscope._native",
    .m_size = -1,
    .m_methods = module_methods,
};

static int add_functions(PyObject *module)
{
    PyMethodDef *const tables[] = {
        mst_intercept_calls_methods,
        mst_intercept_nodes_methods,
        mst_intercept_blocks_methods,
        mst_intercept_saved_methods,
        mst_node_layout_methods,
        mst_tensor_layout_methods,
        mst_devices_methods,
        mst_dispatch_methods,
        mst_optimizer_steps_methods,
        mst_oom_report_methods,
        mst_exit_status_methods,
        mst_capture_methods,
        mst_building_methods,
        mst_held_signals_methods,
        mst_living_objects_methods,
        mst_run_in_fork_methods,
        mst_virtual_device_methods,
        mst_virtual_tensors_methods,
        mst_virtual_pools_methods,
        mst_virtual_clock_methods,
        mst_virtual_answers_methods,
        mst_virtual_stats_methods,
        mst_plans_methods,
        mst_virtual_log_methods,
        mst_cuda_requests_methods,
        mst_cuda_times_methods,
        mst_collectives_methods,
        mst_intercept_collectives_methods,
        mst_intercept_fsdp_methods,
        mst_intercept_ddp_methods,
        mst_fsdp_states_methods,
        mst_block_stacks_methods,
        mst_running_operator_methods,
        mst_created_nodes_methods,
        mst_intercept_resizes_methods,
        mst_generated_code_methods,
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (PyModule_AddFunctions(module, tables[i]) != 0)
            return -1;
    return 0;
}

static int add_types(PyObject *module)
{
    const struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {
        {"Tracker", &mst_tracker_type},
        {"Context", &mst_context_type},
        {"Ledger", &mst_ledger_type},
        {"PeakTracker", &mst_peak_tracker_type},
        {"CaptureWriter", &mst_capture_type},
        {"OptimizerStepArguments", &mst_step_arguments_type},
        {"OperatorLog", &mst_operator_log_type},
        {"OperatorTimes", &mst_operator_times_type},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddObjectRef(module, types[i].name, (PyObject *)types[i].type) != 0)
            return -1;
    return 0;
}

PyMODINIT_FUNC PyInit__native(void)
{
    if (mst_torch_load() != 0 || mst_threads_init() != 0 || mst_backward_hooks_init() != 0 || mst_tracker_init() != 0 ||
        mst_ledger_init() != 0 || mst_capture_init() != 0 || mst_held_signals_init() != 0 || mst_stacks_init() != 0 ||
        mst_running_operator_init() != 0 || PyType_Ready(&mst_context_type) != 0 ||
        PyType_Ready(&mst_operator_log_type) != 0 || PyType_Ready(&mst_operator_times_type) != 0)
        return NULL;
    PyObject *module = PyType_Ready(&mst_step_arguments_type) == 0 ? PyModule_Create(&definition) : NULL;
    if (!module || add_functions(module) != 0 || add_types(module) != 0 ||
        PyModule_AddStringConstant(module, "version", MS_VERSION) != 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
