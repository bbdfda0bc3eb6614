/* runner.c - runs each test in a forked process and prints those that failed. */
#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILED_BY_CHECK 99

static struct runner_test *first, **last = &first;
static int reason_fd = -1;

void runner_add(struct runner_test *test)
{
    *last = test;
    last = &test->next;
}

_Noreturn void runner_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    int used = snprintf(text, sizeof text, "%s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    size_t length = (size_t)used + (size_t)(more > 0 ? more : 0);
    ssize_t written = write(reason_fd, text, length < sizeof text ? length : sizeof text - 1);
    /* Not exit(): other threads are still running, and leaks do not matter in a test that failed. */
    _exit(written < 0 ? 1 : FAILED_BY_CHECK);
}

static unsigned seconds_allowed(void)
{
    const char *set = getenv("MS_TEST_SECONDS");
    unsigned seconds = set ? (unsigned)strtoul(set, NULL, 10) : 0;
    return seconds ? seconds : 600;
}

_Noreturn static void be_the_test(const struct runner_test *test, int pipe_end)
{
    setpgid(0, 0);
    reason_fd = pipe_end;
    alarm(seconds_allowed());
    test->run();
    exit(0); /* the leak checker runs at exit */
}

static void read_reason(int fd, char *text, size_t room)
{
    size_t used = 0;
    ssize_t got;
    while (used + 1 < room && (got = read(fd, text + used, room - 1 - used)) != 0) {
        if (got > 0)
            used += (size_t)got;
        else if (errno != EINTR)
            break;
    }
    text[used] = '\0';
}

/* NULL if it passed, else why not. */
static const char *find_failure(int status, char *text, size_t room)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == FAILED_BY_CHECK)
        return text;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(text, room, "still running after %u s", seconds_allowed());
    else if (WIFSIGNALED(status))
        snprintf(text, room, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, room, "exit status %d", WEXITSTATUS(status));
    return text;
}

static int run_one(const struct runner_test *test)
{
    int ends[2];
    if (pipe(ends) != 0) {
        printf("FAIL %s: no pipe: %s\n", test->name, strerror(errno));
        return 0;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        printf("FAIL %s: no process: %s\n", test->name, strerror(errno));
        close(ends[0]);
        close(ends[1]);
        return 0;
    }
    if (pid == 0) {
        close(ends[0]);
        be_the_test(test, ends[1]);
    }
    close(ends[1]);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    /* Processes that the test started and did not end would keep the pipe open. */
    kill(-pid, SIGKILL);
    char text[1100];
    read_reason(ends[0], text, sizeof text);
    close(ends[0]);
    const char *why = find_failure(status, text, sizeof text);
    if (why)
        printf("FAIL %s: %s\n", test->name, why);
    return !why;
}

/* MS_TEST_WITHOUT names tests that are left out, with a space between. */
static bool is_left_out(const struct runner_test *test)
{
    const char *without = getenv("MS_TEST_WITHOUT");
    return without && strstr(without, test->name);
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    for (const struct runner_test *test = first; test; test = test->next) {
        if ((argc > 1 && !strstr(test->name, argv[1])) || is_left_out(test))
            continue;
        if (run_one(test))
            passed++;
        else
            failed++;
    }
    if (passed + failed == 0)
        printf("no test is named like %s\n", argc > 1 ? argv[1] : "that");
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed ? 1 : 0;
}
