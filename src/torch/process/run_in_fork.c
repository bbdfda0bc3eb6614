/* run_in_fork.c - run a Python function in a forked process, which ends then, so that nothing that it starts stays in
 * this one; and C code in one that stays and answers, until this one ends.
 *
 * The program must not notice it. Python's own fork functions are not called, and so none that the program registered
 * with os.register_at_fork. For that this must be the only thread that uses Python. */
#define _GNU_SOURCE
#include "torch/api/api.h"
#include "torch/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES = 4096, MOST_FILES = 65536 };

/* ---- the forked process ---- */

/* A crash leaves no message and no core file, and there are no devices for which torch could start threads. */
static void make_invisible(void)
{
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere >= 0) {
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
    }
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("HIP_VISIBLE_DEVICES", "", 1);
}

/* Where the program has closed its stdout or stderr, the pipe may have taken their place. */
static _Noreturn void answer_and_exit(PyObject *function, int end)
{
    int to = fcntl(end, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    make_invisible();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    PyObject *result = PyObject_CallNoArgs(function);
    Py_ssize_t length = 0;
    const char *text = result ? PyUnicode_AsUTF8AndSize(result, &length) : NULL;
    bool sent = text && length <= ANSWER_BYTES && write(to, text, (size_t)length) == length;
    _exit(sent ? 0 : 1);
}

/* Nothing of the program stays open in it, and what ends the program by a signal need not end it: the socket does. */
static _Noreturn void run_apart(void (*run)(int, const void *), const void *argument, int end)
{
    enum { OUR_END = STDERR_FILENO + 1 };
    const int ignored[] = {SIGINT, SIGHUP, SIGPIPE}, plain[] = {SIGTERM, SIGALRM, SIGFPE, SIGABRT, SIGSEGV, SIGBUS};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        signal(plain[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    int kept = fcntl(end, F_DUPFD, OUR_END);
    make_invisible();
    dup2(kept, OUR_END);
    for (int other = OUR_END + 1, most = (int)sysconf(_SC_OPEN_MAX); other < most && other < MOST_FILES; other++)
        close(other);
    run(OUR_END, argument);
    _exit(0);
}

/* ---- this process ---- */

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* Read until the other end is closed. Returns the length, or -1 after `limit` milliseconds. */
static ssize_t read_answer(int from, char *answer, int limit)
{
    int64_t until = milliseconds() + limit;
    size_t length = 0;
    while (length < ANSWER_BYTES) {
        int64_t left = until - milliseconds();
        struct pollfd poll_from = {.fd = from, .events = POLLIN};
        if (left <= 0 || (poll(&poll_from, 1, (int)left) < 0 && errno != EINTR))
            return -1;
        if (!poll_from.revents)
            continue;
        ssize_t count = read(from, answer + length, ANSWER_BYTES - length);
        if (count == 0)
            break;
        if (count < 0 && errno != EINTR)
            return -1;
        length += count > 0 ? (size_t)count : 0;
    }
    return (ssize_t)length;
}

/* Whether it exited with status 0. The program may ignore SIGCHLD: then nobody knows the status. */
static bool wait_for(pid_t pid)
{
    int status = 0;
    pid_t ended;
    do
        ended = waitpid(pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    return ended < 0 ? errno == ECHILD : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Whether the program has a child that has ended and that it has not waited for. */
static bool has_ended_child(void)
{
    siginfo_t info = {0};
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* The program's handler of SIGCHLD must not run for our process. Any thread could get the signal, so the handler is
 * removed meanwhile; without one the signal is ignored. */
static void remove_sigchld_handler(struct sigaction *previous)
{
    sigaction(SIGCHLD, NULL, previous);
    if (previous->sa_handler != SIG_IGN)
        sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

/* A child of the program's own may have ended meanwhile: the handler then gets its signal now. */
static void restore_sigchld_handler(const struct sigaction *previous)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigtimedwait(&child, NULL, &(struct timespec){0});
    sigaction(SIGCHLD, previous, NULL);
    if (previous->sa_handler != SIG_IGN && previous->sa_handler != SIG_DFL && has_ended_child())
        kill(getpid(), SIGCHLD);
}

/* Returns the answer's length; -1: there is none. */
static ssize_t ask_fork(PyObject *function, char *answer, int limit)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        answer_and_exit(function, ends[1]);
    close(ends[1]);
    ssize_t length = -1;
    if (pid > 0) {
        Py_BEGIN_ALLOW_THREADS
        length = read_answer(ends[0], answer, limit);
        if (length < 0)
            kill(pid, SIGKILL);
        if (!wait_for(pid))
            length = -1;
        Py_END_ALLOW_THREADS
    }
    close(ends[0]);
    return length;
}

static PyObject *run_in_fork(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *function;
    int limit;
    if (!PyArg_ParseTuple(args, "Oi:run_in_fork", &function, &limit))
        return NULL;
    char answer[ANSWER_BYTES];
    sigset_t all, before;
    struct sigaction previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    remove_sigchld_handler(&previous);
    ssize_t length = ask_fork(function, answer, limit);
    restore_sigchld_handler(&previous);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (length < 0)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(answer, length, "replace");
}

/* The process between ends at once, so that the other is no child of the program, which may wait for all of its own. */
int mst_fork_apart(void (*run)(int end, const void *argument), const void *argument)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    sigset_t all, before;
    struct sigaction previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    remove_sigchld_handler(&previous);
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0)
            run_apart(run, argument, ends[1]);
        _exit(0);
    }
    int error = errno;
    if (between > 0)
        wait_for(between);
    restore_sigchld_handler(&previous);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (between > 0)
        return ends[0];
    close(ends[0]);
    errno = error;
    return -1;
}

PyMethodDef mst_run_in_fork_methods[] = {
    {"run_in_fork", run_in_fork, METH_VARARGS,
     "Call a function in a forked process, which then ends; the str that it returned. None if that is unknown: it\n"
     "raised, the process crashed, or took more than so many milliseconds. Only while no other thread uses Python."},
    {NULL, NULL, 0, NULL},
};
