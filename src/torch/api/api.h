/* api.h - what Python sees of the extension: the types and functions that native.c puts
 * together, and the C side of them. */
#ifndef MST_API_H
#define MST_API_H

#include "torch/process/process.h"

struct mst_registry;

/* ---- tracker_api.c ---- */
extern PyTypeObject mst_tracker_type;
int mst_tracker_init(void);                                   /* this and the other inits: -1 with an error set */
struct mst_registry *mst_tracker_registry(PyObject *tracker); /* borrowed; NULL: never entered */
/* Find and verify the interception points, the first time that a tracker is entered. -1 with an error set. */
int mst_prepare(void);
void mst_trackers_forked(void); /* in the child */
/* Restore all interception points of calls and nodes, if trackers are active. */
void mst_stop_interception(void);

/* ---- context_api.c, held_signals.c ---- */
extern PyTypeObject mst_context_type;
int mst_held_signals_init(void);
extern PyMethodDef mst_held_signals_methods[];

/* ---- ledger_api.c ---- */
extern PyTypeObject mst_ledger_type;
int mst_ledger_init(void);
ms_ledger *mst_ledger_of(PyObject *ledger); /* of a Python Ledger */
/* The attached ledger, or one that is never attached and ignores blocks. Never NULL. Python
 * code may detach the ledger, so ask again after it has run. */
ms_ledger *mst_target_ledger(void);

/* ---- peak_tracker_api.c ---- */
extern PyTypeObject mst_peak_tracker_type;

/* ---- position_api.c: the position as Python objects; new references ---- */
PyObject *mst_position_parents(bool active);
PyObject *mst_position_stack(bool active);
PyObject *mst_position_current(bool active);
PyObject *mst_position_phase(bool active);

/* ---- operator_log_api.c ---- */
extern PyTypeObject mst_operator_log_type;

/* ---- operator_times_api.c ---- */
extern PyTypeObject mst_operator_times_type;

/* ---- capture_writer_api.c ---- */
extern PyTypeObject mst_capture_type;
int mst_capture_init(void);
void mst_captures_end(void);    /* at the end of the interpreter */
void mst_captures_forked(void); /* in the child: the captures belong to the parent */

/* ---- backward_hooks.c, optimizer_steps.c ---- */
int mst_backward_hooks_init(void);
extern PyTypeObject mst_step_arguments_type;

/* ---- functions of the module, by the file that defines them ---- */
extern PyMethodDef mst_intercept_calls_methods[];
extern PyMethodDef mst_intercept_nodes_methods[];
extern PyMethodDef mst_intercept_blocks_methods[];
extern PyMethodDef mst_intercept_saved_methods[];
extern PyMethodDef mst_intercept_resizes_methods[];
extern PyMethodDef mst_created_nodes_methods[];
extern PyMethodDef mst_cuda_requests_methods[];
extern PyMethodDef mst_cuda_times_methods[];
extern PyMethodDef mst_collectives_methods[];
extern PyMethodDef mst_intercept_collectives_methods[];
extern PyMethodDef mst_intercept_fsdp_methods[];
extern PyMethodDef mst_intercept_ddp_methods[];
extern PyMethodDef mst_fsdp_states_methods[];
extern PyMethodDef mst_node_layout_methods[];
extern PyMethodDef mst_tensor_layout_methods[];
extern PyMethodDef mst_devices_methods[];
extern PyMethodDef mst_dispatch_methods[];
extern PyMethodDef mst_optimizer_steps_methods[];
extern PyMethodDef mst_building_methods[];
extern PyMethodDef mst_oom_report_methods[];
extern PyMethodDef mst_exit_status_methods[];
extern PyMethodDef mst_capture_methods[];
extern PyMethodDef mst_living_objects_methods[];
extern PyMethodDef mst_run_in_fork_methods[];
extern PyMethodDef mst_virtual_clock_methods[];
extern PyMethodDef mst_virtual_device_methods[];
extern PyMethodDef mst_virtual_answers_methods[];
extern PyMethodDef mst_virtual_stats_methods[];
extern PyMethodDef mst_plans_methods[];
extern PyMethodDef mst_virtual_log_methods[];
extern PyMethodDef mst_virtual_tensors_methods[];
extern PyMethodDef mst_virtual_pools_methods[];

/* ---- figures.c: figures as Python objects ---- */
PyObject *mst_tuple_of_sums(const ms_sums *sums);
/* Bytes by kind; the first is that of MS_KIND_NONE, 0. */
PyObject *mst_tuple_of_kinds(const ms_kind_sums *kinds);
/* Append a new reference, which is consumed; NULL is passed on as an error. 0, or -1 with an error set. */
int mst_append_new(PyObject *list, PyObject *item);
/* [(device, fqn, sums)] of the paths that hold something: now, or at the peak of `at_peak` if it
 * is not NULL. Several paths may have the same fqn. */
PyObject *mst_sums_by_path(ms_ledger *ledger, ms_peak_tracker *at_peak);
/* Bytes by kind of the paths that hold blocks with a kind: [(device, fqn, kinds)]. */
PyObject *mst_kinds_by_path(ms_ledger *ledger, ms_peak_tracker *at_peak);

#endif
