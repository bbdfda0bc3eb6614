/* guard_page.c - see guard_page.h. */
#define _GNU_SOURCE
#include "guard_page.h"

#include "runner.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

bool refuse_allocations;

static size_t wanted_size, wanted_boundary; /* of the allocation to place; size 0: there is none */
static char *placed;
static void *pages;
static size_t pages_size;
static char *guard_page;
static void (*at_touch)(void); /* NULL after the first access */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *placing_alloc(void *context, size_t bytes)
{
    (void)context;
    if (refuse_allocations)
        return NULL;
    if (bytes != wanted_size || placed)
        return malloc(bytes);
    size_t below = (wanted_boundary / page_size() + 1) * page_size();
    pages_size = below + bytes + 2 * page_size();
    pages = mmap(NULL, pages_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    return placed = (char *)pages + below - wanted_boundary;
}

static void placing_free(void *context, void *memory)
{
    (void)context;
    if (memory != placed)
        free(memory);
}

static void on_touch(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    void (*happens)(void) = at_touch;
    if (!happens)
        _exit(70);
    at_touch = NULL;
    mprotect(guard_page, page_size(), PROT_READ | PROT_WRITE);
    happens();
}

ms_options guard_options(void)
{
    return (ms_options){.alloc = placing_alloc, .free = placing_free};
}

void guard_place(size_t size, size_t boundary)
{
    placed = NULL;
    wanted_size = size;
    wanted_boundary = boundary;
}

void guard(bool below, void (*happens)(void))
{
    CHECK(placed);
    struct sigaction action = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    at_touch = happens;
    guard_page = placed + wanted_boundary - (below ? page_size() : 0);
    CHECK(!mprotect(guard_page, page_size(), PROT_NONE));
}

bool guard_touched(void)
{
    mprotect(guard_page, page_size(), PROT_READ | PROT_WRITE);
    return !at_touch;
}

void guard_forget(void)
{
    munmap(pages, pages_size);
    wanted_size = 0;
}
