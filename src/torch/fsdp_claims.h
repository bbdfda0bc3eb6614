/* fsdp_claims.h - claims of what FSDP2's objects hold: sharded and unsharded parameters and gradients, and the buffers
 * of its collectives. Only plain attributes of its objects are read, so no Python runs, except where a comment says so.
 * Nothing here raises. */
#ifndef MST_FSDP_CLAIMS_H
#define MST_FSDP_CLAIMS_H

#include "torch/state.h"

/* Claim the blocks of a tensor with this kind. A block that is not known is added, as for other claims. */
void mst_claim_tensor_kind(PyObject *tensor, ms_kind kind, ms_path path);

/* The path of a module to which bytes with a kind are attributed, called or not; MS_GLOBAL: it is not known. */
ms_path mst_kind_owner(PyObject *module);

/* An FSDPState is about to unshard: claim the sharded parameters of its groups. */
void mst_claim_fsdp_state(PyObject *state);
/* An FSDPParamGroup has unsharded its parameters: claim these, and note that their gradients will be unsharded. */
void mst_claim_fsdp_unsharded(PyObject *group);
/* After a forward or backward: claim what the groups of a state, or a group, keep until later: parameters that are
 * sharded over fewer ranks, gradients that are accumulated without a reduction. */
void mst_claim_fsdp_kept(PyObject *state);
void mst_claim_fsdp_group_kept(PyObject *group);
/* The module whose parameters these are, a list of FSDPParam; MS_GLOBAL: it is not known. */
ms_path mst_fsdp_owner(PyObject *params);
/* foreach_all_gather(params, ...) has returned `result`: claim the gather's output. */
void mst_claim_fsdp_gathered(PyObject *params, PyObject *result);
/* foreach_reduce(params, gradients, ...) begins, and has returned `result`. The latter reads gradients of DTensors. */
void mst_claim_fsdp_reducing(PyObject *params, PyObject *gradients);
void mst_claim_fsdp_reduced(PyObject *params, PyObject *result);

/* In a pass: claim everything that FSDP2 holds for the modules of the registry. Runs Python. */
void mst_claim_fsdp_modules(void);

#endif
