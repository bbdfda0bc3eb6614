/* memory.h - what the files that feed the ledger share. Needs the GIL, except where noted. */
#ifndef MS_MEMORY_H
#define MS_MEMORY_H

#include "torch/native.h"
#include "torch/storage.h"

extern ms_ledger *mst_ledger;                 /* the one attached, or NULL */
extern bool mst_by_dispatcher;                /* blocks are storages that operators returned */
extern _Atomic(ms_ledger *) mst_blocks_to;    /* where the allocators' blocks go; no GIL needed */
extern _Atomic(ms_ledger *) mst_gradients_to; /* where gradients are claimed; no GIL needed */

/* Where blocks are told: the ledger that is attached, or one that takes none. Python that runs on the
 * way may leave the last tracker, so it is asked for anew each time. */
ms_ledger *mst_target(void);

/* ---- blocks.c: the allocators' places ---- */
extern PyMethodDef mst_blocks_methods[];
int mst_blocks_on(ms_ledger *ledger);
void mst_blocks_off(void);

/* ---- capture.c: captures, and the story of an allocation that failed ---- */
extern PyTypeObject mst_capture_type;
extern PyMethodDef mst_capture_methods[];
int mst_capture_init(void);
void mst_captures_end(void);    /* at the end of the interpreter */
void mst_captures_forked(void); /* in the child: they are the parent's */
void mst_oom_begin(void);       /* watching begins: the first few failures from now on are shown */
/* An allocation of this thread failed: tell of it. No GIL needed. */
void mst_oom(ms_ledger *ledger, const ms_oom *oom);
extern _Atomic bool mst_oom_untold; /* a story was not added to an exception yet */
/* An error passes a place of ours: if it is of that failure, the story is added to it. Keeps the error set. */
void mst_oom_note(void);
/* A ledger of Python's. */
ms_ledger *mst_ledger_of(PyObject *ledger);

/* ---- claims.c: which object holds which block ---- */
extern bool mst_claims_due;     /* some module's tensors were not claimed yet */
extern bool mst_claims_unborn;  /* some had no memory yet when they were */
extern bool mst_claims_at_call; /* a call begins: other threads may be at work */
/* Claim what a module holds, if no Python has to run for it; else it is due. */
void mst_claim_module(struct mst_module *known);
/* Take the hooks off that told of gradients. */
void mst_claims_end_hooks(void);
/* Claim what all known modules hold. Runs Python for tensors made of others. */
void mst_claim_modules(void);
/* Claim a tensor, wherever it lies: in lists, tuples and dicts too. */
void mst_claim(PyObject *object, ms_category category, ms_path path);
void mst_claim_optimizer(PyObject *optimizer);
/* Sizes of the blocks that were there before us on devices other than the CPU: address -> bytes; or NULL. */
void mst_claims_census(PyObject *census);
/* Whose a parameter is, by its TensorImpl. False if it is no known module's. No GIL needed. */
bool mst_owner_of(uint64_t impl, ms_path *path);
/* A leaf's gradient is this one now. No GIL needed. */
void mst_claim_gradient(uint64_t grad, ms_path path);
void mst_owners_lock(void); /* around fork */
void mst_owners_unlock(void);

/* ---- steps.c: the optimizers' steps ---- */
extern PyMethodDef mst_steps_methods[];
extern PyTypeObject mst_step_type;
int mst_steps_on(void);
void mst_steps_off(void);
/* End a step that raised: nobody told us. */
void mst_steps_heal(ms_thread *thread);
PyObject *mst_optimizers(void); /* a new list of those that stepped, or were given, and are alive */
int mst_optimizer_add(PyObject *optimizer);

/* ---- ledger.c: before a call is entered, when the ledger is attached: what is due is claimed ---- */
void mst_memory_call(ms_thread *thread);

/* ---- sizes.c: what goes into a call and comes out ---- */
/* `count` positional ones, then `named` ones. */
void mst_measure(ms_thread *thread, bool output, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named);

/* ---- dispatch.c: blocks by what operators return ---- */
extern PyMethodDef mst_dispatch_methods[];
/* Know a tensor's storage as a block. 0, or -1 with an error set. */
int mst_dispatch_hold(PyObject *tensor, ms_category category, ms_path path);
/* See which storages changed their size. */
void mst_dispatch_measure(void);
int mst_dispatch_begin(void);
void mst_dispatch_end(void);

/* ---- viewer.c: figures as Python's objects ---- */
PyObject *mst_tuple_of_sums(const ms_sums *sums);
/* Append what Py_BuildValue made; it is consumed. */
int mst_append(PyObject *list, PyObject *item);
/* [(device, fqn, sums)] of the paths that hold something, now or at a viewer's peak; several may have the same name. */
PyObject *mst_sums_by_path(ms_ledger *from, ms_peak_tracker *at_peak);

/* ---- ledger.c: the types that Python reads figures with ---- */
extern PyTypeObject mst_ledger_type, mst_viewer_type;
int mst_ledger_init(void);

/* Call `visit` for each tensor that has memory of its own in `tensor`: itself, or what it is
 * made of, for which Python runs. 0, or -1 with an error set. */
int mst_inner_tensors(PyObject *tensor, mst_visit *visit, void *context);
/* Whether it is made of other tensors. */
bool mst_is_made_of_others(PyObject *tensor);

#endif
