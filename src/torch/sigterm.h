/* sigterm.h - SIGTERM while a capture is written, for capture_api.c. */
#ifndef MST_SIGTERM_H
#define MST_SIGTERM_H

#include "modscope_capture.h"

/* Complete this capture when SIGTERM comes, write `before`, the size of the file and `after` to stderr (nothing if
 * `before` is ""), and die by the signal. For one capture of the process. 0: another one is watched, or the program
 * handles or ignores SIGTERM, or the line is too long; SIGTERM then does what it did before. */
int mst_sigterm_watch(ms_capture *capture, const char *before, const char *after);
/* The capture that is watched also states this rank and world size, as the program's process group knows them. */
void mst_sigterm_tell_rank(const char *rank, const char *world);
/* Before the capture ends: restore the default action, unless the program has set another. */
void mst_sigterm_forget(void);
/* After the capture has ended: die if SIGTERM came before mst_sigterm_forget. */
void mst_sigterm_ended(const ms_capture_status *status);

#endif
