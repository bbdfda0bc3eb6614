/* state.c - the state that all files of the extension share. */
#include "torch/process/state.h"

#define X(field) .field = -1,
struct mst_state mst = {
    .layout = {MST_LAYOUT(X)},
    .node_layout = {.number = -1, .thread = -1, .function = -1, .object = -1},
};
#undef X

MST_THREAD_LOCAL ms_thread *mst_this_thread;
MST_THREAD_LOCAL struct mst_call *mst_open_call;
