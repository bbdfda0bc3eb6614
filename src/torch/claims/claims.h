/* claims.h - claims: which known object holds which block. */
#ifndef MST_CLAIMS_H
#define MST_CLAIMS_H

#include "torch/process/process.h"

struct mst_module;
struct mst_call;
struct mst_storage;

/* ---- owners.c: which module owns a parameter, by the parameter's TensorImpl. No GIL needed ---- */

/* False if no known module owns it. */
bool mst_owner_find(uint64_t impl, ms_path *path);
/* Record the owner, unless one is recorded: the first module that holds a parameter owns it. Returns the owner. */
ms_path mst_owner_add(uint64_t impl, ms_path path);
/* Record or replace the owner of a parameter whose new gradients are of this kind, or of a Reducer of DDP, by its
 * address. */
void mst_owner_set_gradient_kind(uint64_t impl, ms_path path, ms_kind kind);
void mst_owners_clear(void);
void mst_owners_lock(void); /* around fork, and while a gradient is read */
void mst_owners_unlock(void);

/* An AccumulateGrad node that runs now. It may replace the leaf's gradient at any moment and without
 * the GIL, so other threads must not read that gradient until it has ended. */
struct mst_accumulation {
    const ms_thread *thread;       /* it runs the node */
    uint64_t leaf;                 /* a TensorImpl */
    uint64_t grad;                 /* the leaf's gradient when the node began; 0: claim it at the end in any case */
    ms_path owner;                 /* of the leaf */
    ms_kind kind;                  /* of its gradients */
    bool owned;                    /* a known module owns the leaf */
    struct mst_accumulation *next; /* guarded by the owners' lock */
};

/* Begin an accumulation; `thread` and `leaf` are set. The struct stays in place until the end. */
void mst_accumulation_begin(struct mst_accumulation *accumulation);
/* End it, and claim the leaf's new gradient, or leave that to another accumulation of the same leaf. */
void mst_accumulation_end(struct mst_accumulation *accumulation);
/* With the lock: whether another thread accumulates the leaf's gradient now. If so, that thread claims it. */
bool mst_accumulates_elsewhere(uint64_t leaf);
/* In a forked child: forget the accumulations of threads that the child does not have. Returns whether there were any.
 */
bool mst_accumulations_forked(void);

/* ---- tensor_claims.c ---- */
void mst_claim_tensor(PyObject *tensor, ms_category category, ms_path path);
/* Claim a tensor by its TensorImpl, where the source of blocks is the allocators. Runs no Python. */
void mst_claim_impl(uint64_t impl, ms_category category, ms_path path);
/* Claim a tensor's block, unless a known object holds it. No block is added. False if the tensor has no storage of its
 * own. Runs no Python. */
bool mst_claim_unheld(uint64_t impl, ms_category category, ms_path path);
/* Claim every tensor in `object`: itself, or in lists, tuples and dicts. */
void mst_claim_object(PyObject *object, ms_category category, ms_path path);

/* ---- gradient_claims.c ---- */

/* A leaf's gradient is now `grad`, a TensorImpl. No GIL needed. */
void mst_claim_new_gradient(uint64_t grad, ms_path path, ms_kind kind);
/* The gradient of a parameter, which this thread alone sets now: a new reference, or NULL; None if it has none. No
 * Python runs while __torch_function__ is disabled. */
PyObject *mst_gradient_object(PyObject *parameter);
/* Claim the gradient that a parameter has, if any. If another thread may be replacing it, it is not read: this pass
 * then keeps all gradients that are claimed already. */
void mst_claim_gradient_of(PyObject *parameter, ms_path path);
/* Claim it with a kind, too. Runs Python for wrapper subclasses. */
void mst_claim_gradient_kind_of(PyObject *parameter, ms_path path, ms_kind kind);
/* At an optimizer step of this thread: claim the gradient that a parameter has, unless it is claimed already. The step
 * itself reads the gradients of its parameters. Runs Python for wrapper subclasses and sparse gradients. */
void mst_claim_gradient_at_step(PyObject *parameter, ms_path path);
/* A ledger was attached: accumulations that run now are not known. */
void mst_gradients_begin(void);
/* Where nodes are not intercepted: register a hook that claims the parameter's new gradients. */
void mst_gradient_hook_register(PyObject *parameter);
void mst_gradient_hooks_remove(void);

/* ---- optimizer_claims.c ---- */

/* Claim the tensors of an optimizer's state; each belongs to the owner of its parameter. */
void mst_claim_optimizer(PyObject *optimizer);
/* Claim the optimizer's parameters that no known module holds, and their gradients. */
void mst_claim_unowned_parameters(PyObject *optimizer);
/* An optimizer step begins or ends on this thread: claim the gradients of the optimizer's parameters. The program may
 * have set them itself, so that no accumulation claimed them. */
void mst_claim_gradients_at_step(PyObject *optimizer, bool begins);

/* ---- module_claims.c ---- */

/* Claim what a module holds if that needs no Python; else set mst.claims.due. */
void mst_claim_module(struct mst_module *known);
/* Claim what all known modules hold. Runs Python for wrapper subclasses. */
void mst_claim_modules(void);

/* ---- module_building.c: claims while a model is being built, from torch's registration hooks ---- */
int mst_building_hooks_register(void); /* -1 with an error set */
void mst_building_hooks_remove(void);

/* ---- claims_at_call.c ---- */

/* Before a call is entered while a ledger is attached: make the claims that are due. `without_grad`: it is a root call,
 * and grad mode is off. */
void mst_claim_at_call(ms_thread *thread, bool without_grad);
/* A ledger was attached: claims are due only for what changes from now on. */
void mst_claims_at_call_begin(void);
/* At some root calls, look for an optimizer, whose steps are then training steps, and for modules that are not called.
 */
void mst_claims_seek(bool seek);
/* An optimizer steps: if it is the first one, and optimizers are looked for, tell the ledger how many there are with
 * parameters of known modules, as these may step in turn. Runs Python. */
void mst_expect_optimizers(void);

/* ---- gradient_claims.c ---- */

/* Whether another thread may be in the middle of setting a tensor's `grad`: no gradient may be read then. */
bool mst_other_thread_may_set_gradient(void);
/* A thread that replaces a gradient during a fork never finishes that in the child: no gradient is read there. */
void mst_gradient_setters_before_fork(void);
void mst_gradient_setters_forked(bool accumulating); /* in the child; whether another thread accumulated a gradient */

/* ---- root_inputs.c: the tensors that go into root calls ---- */

/* Blocks made outside any module are shown as the root's inputs. Memory from outside torch's allocators is counted
 * while its storage lives. */

/* Whether the call that was entered is a root call. */
bool mst_call_is_root(const struct mst_call *call);
/* A tensor goes into a root call of `root`. If its block was made outside any module, it belongs to ROOT.(inputs). */
void mst_claim_root_input(PyObject *tensor, const struct mst_storage *storage, ms_path root);
/* Drop inputs from outside whose storages were freed: a bounded part of them, or with `all` all of them. Runs no
 * Python. */
void mst_outside_inputs_drop_freed(bool all);
/* In a claim pass: drop those that were freed, and claim the others. */
void mst_outside_inputs_claim(void);
/* The ledger is being detached. */
void mst_outside_inputs_clear(void);

#endif
