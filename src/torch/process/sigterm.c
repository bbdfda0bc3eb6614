/* sigterm.c - a program that SIGTERM ends completes its capture first, prints a line, and then dies by SIGTERM.
 *
 *     any thread: handle_sigterm only sets end_requested --> the writing thread: the capture's end chunk,
 * die_of_sigterm
 *
 * So it works as well while a thread holds the GIL in a long operator. A program that sets a handler of its own
 * replaces this one; Python's signal.getsignal does not see it. */
#include "torch/process/process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic bool end_requested;
static bool installed;         /* guarded by the GIL */
static pid_t recorded;         /* the process whose capture it is; forked children inherit the handler */
static char before_size[4096]; /* the line, up to the size of the file; "": there is no line */
static char after_size[4096];
static char rank_text[16], world_text[16];
/* The end chunk. The writing thread may read it at any time: its third item, the key of the rank, is set last. */
static const char *end_info[7];

static void handle_sigterm(int number);

static void restore_default(void)
{
    struct sigaction current;
    if (sigaction(SIGTERM, NULL, &current) == 0 && current.sa_handler == handle_sigterm) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(SIGTERM, &plain, NULL);
    }
}

/* A second SIGTERM does not wait for the first. In the handler SIGTERM is blocked: it is delivered when that returns.
 */
static void handle_sigterm(int number)
{
    if (getpid() == recorded && !atomic_exchange(&end_requested, true))
        return;
    restore_default();
    raise(number);
}

static bool is_end_requested(void)
{
    return atomic_load_explicit(&end_requested, memory_order_relaxed);
}

static void print_line(uint64_t bytes)
{
    char size[48], line[sizeof before_size + sizeof after_size + sizeof size];
    ms_size_text((int64_t)bytes, 0, size, sizeof size);
    int length = snprintf(line, sizeof line, "%s%s%s", before_size, size, after_size);
    if (before_size[0] && length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        return; /* stderr is closed: there is nothing to report to. */
}

static void die_of_sigterm(const ms_capture_status *status)
{
    sigset_t only;
    print_line(status->bytes);
    restore_default();
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(SIGTERM);
}

/* The first process of a container does not die by SIGTERM unless it handles it, so it is left alone. */
int mst_sigterm_watch(ms_capture *capture, const char *before, const char *after)
{
    struct sigaction previous, ours = {.sa_handler = handle_sigterm, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (installed || getpid() == 1 || strlen(before) >= sizeof before_size || strlen(after) >= sizeof after_size ||
        sigaction(SIGTERM, NULL, &previous) != 0 || previous.sa_handler != SIG_DFL)
        return 0;
    recorded = getpid();
    atomic_store(&end_requested, false);
    strcpy(before_size, before); /* NOLINT: their lengths were checked */
    strcpy(after_size, after);   /* NOLINT */
    end_info[0] = "how", end_info[1] = "terminated", end_info[2] = NULL;
    ms_capture_end_on_request(capture, is_end_requested, end_info, die_of_sigterm);
    installed = sigaction(SIGTERM, &ours, NULL) == 0;
    return installed;
}

void mst_sigterm_tell_rank(const char *rank, const char *world)
{
    if (end_info[2] || strlen(rank) >= sizeof rank_text || strlen(world) >= sizeof world_text)
        return;
    strcpy(rank_text, rank);   /* NOLINT: their lengths were checked */
    strcpy(world_text, world); /* NOLINT */
    end_info[3] = rank_text, end_info[4] = "world", end_info[5] = world_text;
    __atomic_store_n(&end_info[2], "rank", __ATOMIC_RELEASE);
}

void mst_sigterm_forget(void)
{
    if (installed)
        restore_default();
    installed = false;
}

void mst_sigterm_ended(const ms_capture_status *status)
{
    if (atomic_load(&end_requested) && getpid() == recorded)
        die_of_sigterm(status);
}
