/* held_signals.h - hold the program's signal handlers back while something must not be interrupted half-way.
 *
 * Python runs signal handlers between any two instructions of the main thread, so also while it runs code
 * for us, and what a handler raises ends that code. Between hold and release each handler that was set in
 * Python is replaced by a C function, which only notes that the signal came. */
#ifndef MST_HELD_SIGNALS_H
#define MST_HELD_SIGNALS_H

#include "torch/state.h"

/* Returns what mst_signals_release takes. Holds may be nested. No error is set before and after. */
bool mst_signals_hold(void);
/* Restore the handlers, and call those whose signals came. -1 with an error set if one raised, or if an error was
 * set before: that becomes the context of what a handler raised. A nested release restores nothing. */
int mst_signals_release(bool held);

#endif
