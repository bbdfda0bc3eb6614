/* intercept_gloo.c - how long collectives over gloo take.
 *
 *     backend->allreduce(tensors) --> enqueue(work) --> a thread of gloo's: execute(work) --> finishWorkGloo()
 *       `-- number of the collective   `-- number and work   `-- executed from here...         `-- ...until here
 *
 *     backend->send(tensors) --> a SendWork or RecvWork --> wait()
 *       `-- number, and when        `-- number and work       `-- when it returns: waited, since the launch
 *
 * enqueue, execute and finishWorkGloo are called through slots of libtorch_cpu, wait through the tables of the two
 * classes. The mangled names state the arguments, and a torch that has others is left as it is: times are then not
 * known. Only addresses of works are kept, never references. A C++ exception may pass through. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime; before Python.h, which defines it too */
#include "torch/ranks/ranks.h"

#include "interpose/patch.h"
#include "interpose/read_memory.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define GLOO "_ZN4c10d16ProcessGroupGloo"
#define WAIT "4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"

/* ---- works whose end is not known yet ---- */
enum { SETS = 256, WAYS = 4 }; /* where there are more, the time of the oldest is not known */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending {
    uintptr_t work; /* 0: none */
    uint64_t number, launched;
} pending[SETS][WAYS]; /* guarded by lock */

static uint64_t nanoseconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct pending *set_of(uintptr_t work)
{
    return pending[(work >> 4 ^ work >> 12) % SETS];
}

static void add_pending(uintptr_t work, uint64_t number)
{
    struct pending *set = set_of(work), *best = set;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WAYS; i++) {
        if (set[i].work == work) {
            best = &set[i];
            break;
        }
        if (best->work && (!set[i].work || set[i].number < best->number))
            best = &set[i];
    }
    *best = (struct pending){work, number, nanoseconds_now()};
    pthread_mutex_unlock(&lock);
}

/* Its number is 0 if the work is not known. */
static struct pending take_pending(uintptr_t work)
{
    struct pending found = {0}, *set = set_of(work);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WAYS && !found.number; i++)
        if (set[i].work == work) {
            found = set[i];
            set[i].work = 0;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static void forget_pending(void)
{
    pthread_mutex_lock(&lock);
    memset(pending, 0, sizeof pending);
    pthread_mutex_unlock(&lock);
}

/* ---- our functions ---- */
static uint64_t intercept_enqueue(uint64_t self, const uintptr_t *work);
static uint64_t intercept_execute(const uintptr_t *work);
static uint64_t intercept_finish(uintptr_t work);
static uint64_t intercept_send_wait(uintptr_t work, uint64_t timeout);
static uint64_t intercept_recv_wait(uintptr_t work, uint64_t timeout);

enum point { ENQUEUE, EXECUTE, FINISH, SEND_WAIT, RECV_WAIT, POINT_COUNT };
static ms_elf_slot slots[POINT_COUNT];
static ms_patch patches[POINT_COUNT] = {
    [ENQUEUE] = MS_PATCH_ELF_SLOT(intercept_enqueue, &slots[ENQUEUE]),
    [EXECUTE] = MS_PATCH_ELF_SLOT(intercept_execute, &slots[EXECUTE]),
    [FINISH] = MS_PATCH_ELF_SLOT(intercept_finish, &slots[FINISH]),
    [SEND_WAIT] = MS_PATCH_ELF_SLOT(intercept_send_wait, &slots[SEND_WAIT]),
    [RECV_WAIT] = MS_PATCH_ELF_SLOT(intercept_recv_wait, &slots[RECV_WAIT]),
};
static uintptr_t send_table, recv_table; /* where objects of the two classes point to; 0: not known */
static _Atomic bool timing;

static MST_THREAD_LOCAL uint64_t launching;

uint64_t mst_gloo_set_launching(uint64_t number)
{
    uint64_t before = launching;
    launching = number;
    return before;
}

/* The argument is an intrusive_ptr, which is passed by its address. */
static uint64_t intercept_enqueue(uint64_t self, const uintptr_t *work)
{
    if (launching && *work)
        add_pending(*work, launching);
    return ((uint64_t(*)(uint64_t, const uintptr_t *))patches[ENQUEUE].previous)(self, work);
}

/* What this thread of gloo's executes; number 0: nothing whose time is wanted. */
static MST_THREAD_LOCAL struct {
    uint64_t number, began;
} executing;

static uint64_t intercept_execute(const uintptr_t *work)
{
    if (atomic_load_explicit(&timing, memory_order_relaxed)) {
        executing.number = take_pending(*work).number;
        executing.began = nanoseconds_now();
    }
    uint64_t result = ((uint64_t(*)(const uintptr_t *))patches[EXECUTE].previous)(work);
    executing.number = 0; /* It failed. */
    return result;
}

/* The time is noted before whoever waits for the work can go on, and end the capture. */
static uint64_t intercept_finish(uintptr_t work)
{
    if (executing.number)
        mst_collective_took(executing.number, MS_COLLECTIVE_EXECUTED, nanoseconds_now() - executing.began);
    executing.number = 0;
    return ((uint64_t(*)(uintptr_t))patches[FINISH].previous)(work);
}

static inline uint64_t wait_for_message(const ms_patch *patch, uintptr_t work, uint64_t timeout)
{
    uint64_t result = ((uint64_t(*)(uintptr_t, uint64_t))patch->previous)(work, timeout);
    if (!atomic_load_explicit(&timing, memory_order_relaxed))
        return result;
    struct pending of = take_pending(work);
    if (of.number)
        mst_collective_took(of.number, MS_COLLECTIVE_WAITED, nanoseconds_now() - of.launched);
    return result;
}

static uint64_t intercept_send_wait(uintptr_t work, uint64_t timeout)
{
    return wait_for_message(&patches[SEND_WAIT], work, timeout);
}

static uint64_t intercept_recv_wait(uintptr_t work, uint64_t timeout)
{
    return wait_for_message(&patches[RECV_WAIT], work, timeout);
}

void mst_gloo_launched(uint64_t number, uintptr_t work)
{
    uintptr_t table = work ? *(const uintptr_t *)work : 0;
    if (table && (table == send_table || table == recv_table))
        add_pending(work, number);
}

/* ---- find, install and restore ---- */

/* The entry of a class's table that holds its function `wait`. The table; 0: there is none. */
static uintptr_t find_wait(const char *table_symbol, const char *wait_symbol, ms_elf_slot *slot)
{
    enum { BEFORE = 2 * sizeof(uintptr_t), MOST_ENTRIES = 64 };
    uintptr_t table = (uintptr_t)ms_elf_symbol_find("libtorch_cpu", table_symbol);
    uintptr_t wait = (uintptr_t)ms_elf_symbol_find("libtorch_cpu", wait_symbol), entry = 1;
    if (!table || !wait)
        return 0;
    table += BEFORE;
    for (uintptr_t at = table; at < table + MOST_ENTRIES * sizeof entry && entry; at += sizeof entry) {
        if (!ms_read_memory(at, &entry, sizeof entry))
            return 0;
        if (entry == wait)
            return ms_elf_slot_at("libtorch_cpu", at, slot) == 0 ? table : 0;
    }
    return 0;
}

static bool found[POINT_COUNT];

static void find_points(void)
{
    static bool searched;
    if (searched)
        return;
    searched = true;
    found[ENQUEUE] = ms_elf_slot_find("libtorch_cpu", GLOO "7enqueueEN3c1013intrusive_ptrI", &slots[ENQUEUE]) == 0;
    found[EXECUTE] = ms_elf_slot_find("libtorch_cpu", GLOO "9AsyncWork7executeE", &slots[EXECUTE]) == 0;
    found[FINISH] = ms_elf_slot_find("libtorch_cpu", GLOO "9AsyncWork14finishWorkGlooEv", &slots[FINISH]) == 0;
    found[ENQUEUE] = found[EXECUTE] = found[FINISH] = found[ENQUEUE] && found[EXECUTE] && found[FINISH];
    send_table = find_wait("_ZTVN4c10d16ProcessGroupGloo8SendWorkE", GLOO "8SendWork" WAIT, &slots[SEND_WAIT]);
    recv_table = find_wait("_ZTVN4c10d16ProcessGroupGloo8RecvWorkE", GLOO "8RecvWork" WAIT, &slots[RECV_WAIT]);
    found[SEND_WAIT] = send_table != 0;
    found[RECV_WAIT] = recv_table != 0;
}

/* If another tool replaced our function, we assume that it calls it. */
static bool point_reaches_us(void)
{
    return true;
}

void mst_gloo_intercept(void)
{
    find_points();
    for (int i = 0; i < POINT_COUNT; i++)
        if (found[i] && ms_patch_install(&patches[i], point_reaches_us) != 0)
            found[i] = false;
    atomic_store(&timing, true);
}

void mst_gloo_restore(void)
{
    if (!atomic_exchange(&timing, false))
        return;
    for (int i = 0; i < POINT_COUNT; i++)
        if (found[i])
            ms_patch_restore(&patches[i]);
    forget_pending();
}

void mst_gloo_forked(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* Another thread of the parent may have held it. */
}
