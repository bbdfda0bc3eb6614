/* root_inputs.h - the tensors that go into root calls: blocks made outside any module are shown as the root's inputs,
 * and memory from outside torch's allocators is counted while its storage lives. */
#ifndef MST_ROOT_INPUTS_H
#define MST_ROOT_INPUTS_H

#include "torch/state.h"

struct mst_call;
struct mst_storage;

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
