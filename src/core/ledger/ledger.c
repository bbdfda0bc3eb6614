/* ledger.c - opening, attaching, detaching and closing a ledger. */
#include "core/ledger/ledger.h"
#include "core/ledger/call_events.h"
#include "core/ledger/call_spans.h"
#include "core/ledger/kinds.h"
#include "core/ledger/reported_backwards.h"

#include <string.h>

/* A closed ledger is not freed but used again: a thread that read its address earlier may still call with it. */
ms_ledger *ms_ledger_open(ms_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    ms_ledger *ledger = watch->closed_ledgers;
    if (ledger) {
        watch->closed_ledgers = ledger->next;
    } else if ((ledger = ms__alloc(watch, sizeof *ledger))) {
        memset(ledger, 0, sizeof *ledger);
        ledger->watch = watch;
    } else {
        ms__count_lost(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    return ledger;
}

int ms_ledger_attach(ms_ledger *ledger)
{
    ms_watch *watch = ledger->watch;
    pthread_mutex_lock(&watch->lock);
    ms_ledger *other = MS__PEEK(watch->ledger);
    if (!other) {
        ms__lock(&ledger->lock);
        MS__STORE(ledger->attached, true);
        ms__unlock(&ledger->lock);
        MS__STORE(watch->ledger, ledger);
    }
    pthread_mutex_unlock(&watch->lock);
    return !other || other == ledger ? MS_OK : MS_EINVAL;
}

/* With watch->lock held. */
static void detach_ledger(ms_ledger *ledger)
{
    if (!MS__PEEK(ledger->attached))
        return;
    MS__STORE(ledger->watch->ledger, NULL);
    ms__lock(&ledger->lock);
    MS__STORE(ledger->attached, false);
    ms__spans_detach_all(ledger);
    ms__unlock(&ledger->lock);
}

void ms_ledger_detach(ms_ledger *ledger)
{
    pthread_mutex_lock(&ledger->watch->lock);
    detach_ledger(ledger);
    pthread_mutex_unlock(&ledger->watch->lock);
}

void ms_ledger_close(ms_ledger *ledger)
{
    if (!ledger)
        return;
    ms_watch *watch = ledger->watch;
    pthread_mutex_lock(&watch->lock);
    detach_ledger(ledger);
    ms__lock(&ledger->lock);
    ms__trackers_close(ledger);
    ms__path_stats_close(ledger);
    ms__reported_backwards_close(ledger);
    ms__kinds_close(ledger);
    ms__totals_close(ledger);
    memset(ledger->outside, 0, sizeof ledger->outside);
    memset(ledger->reserved, 0, sizeof ledger->reserved);
    ms__block_table_close(watch, &ledger->blocks);
    ledger->device_count = 0;
    ledger->time = ledger->step = ledger->parameters_dropped = 0;
    ledger->optimizer_expected = ledger->step_open = false;
    memset(&ledger->turns, 0, sizeof ledger->turns);
    memset(&ledger->inputs, 0, sizeof ledger->inputs);
    MS__STORE(ledger->without_call_snapshots, false);
    atomic_store(&ledger->lost, 0);
    ms__unlock(&ledger->lock);
    ledger->next = watch->closed_ledgers;
    watch->closed_ledgers = ledger;
    pthread_mutex_unlock(&watch->lock);
}

void ms__ledgers_free(ms_watch *watch)
{
    while (watch->closed_ledgers) {
        ms_ledger *ledger = watch->closed_ledgers;
        watch->closed_ledgers = ledger->next;
        ms__free(watch, ledger);
    }
}

void ms__ledger_lock(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
}

void ms__ledger_unlock(ms_ledger *ledger)
{
    ms__unlock(&ledger->lock);
}
