/* user_hooks.h - the hooks that users register at trackers. */
#ifndef MST_USER_HOOKS_H
#define MST_USER_HOOKS_H

#include "torch/intercept.h"

enum mst_hook { MST_PRE_FW, MST_POST_FW, MST_PRE_BW, MST_POST_BW, MST_HOOK_COUNT };

/* Call hook `which` of every active tracker. -1 with the error of the first hook that raised. */
int mst_user_hooks_call(enum mst_hook which, PyObject *const *args, size_t count);
/* Run an entered call with its forward hooks around it; `next` runs the module. The call stays open. */
PyObject *mst_user_hooks_run(struct mst_call *call, PyObject *func, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames, vectorcallfunc next);

/* ---- tracker_api.c ---- */

/* The active trackers: a borrowed tuple, in the order in which they were entered. */
PyObject *mst_active_trackers(void);
PyObject *mst_tracker_hook(PyObject *tracker, enum mst_hook which); /* borrowed; NULL: none, or inactive */

/* ---- backward_hooks.c: the user's hooks around a call's backward. Neither function raises ---- */

/* Before a call runs: register what reports the gradients of its inputs. Returns what
 * mst_backward_hooks_end takes, or NULL: no backward of this call can be reported. */
PyObject *mst_backward_hooks_begin(struct mst_call *call, PyObject *args, PyObject *kwargs);
/* After it has run: register what reports the gradients of its outputs. */
void mst_backward_hooks_end(PyObject *backward_call, PyObject *output);

#endif
