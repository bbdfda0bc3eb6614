/* oom_report.h - the out-of-memory report: which allocation failed, and which modules held the memory. */
#ifndef MST_OOM_REPORT_H
#define MST_OOM_REPORT_H

#include "torch/state.h"

/* A ledger is attached: the first few reports from now on are written to stderr. */
void mst_oom_reports_begin(void);
/* An allocation of this thread failed: make the report. No GIL needed. */
void mst_oom_report(ms_ledger *ledger, const ms_oom *oom);
/* An error passes an interception point: if it comes from the failed allocation, add the report to it
 * as a note. Keeps the error that is set. */
void mst_oom_report_add_note(void);

#endif
