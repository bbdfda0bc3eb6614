/* shut.c - see shut.h. */
#define _GNU_SOURCE
#include "shut.h"

#include "runner.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

bool shut_refuse;

static size_t wanted_size, wanted_boundary; /* of the allocation to place; size 0: none */
static char *placed;
static void *pages;
static size_t pages_size;
static char *shut_page;
static void (*at_touch)(void); /* NULL once it was touched */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *placing_alloc(void *context, size_t bytes)
{
    (void)context;
    if (shut_refuse)
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
    mprotect(shut_page, page_size(), PROT_READ | PROT_WRITE);
    happens();
}

ms_options shut_options(void)
{
    return (ms_options){.alloc = placing_alloc, .free = placing_free};
}

void shut_place(size_t size, size_t boundary)
{
    placed = NULL;
    wanted_size = size;
    wanted_boundary = boundary;
}

void shut(bool below, void (*happens)(void))
{
    CHECK(placed);
    struct sigaction action = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    at_touch = happens;
    shut_page = placed + wanted_boundary - (below ? page_size() : 0);
    CHECK(!mprotect(shut_page, page_size(), PROT_NONE));
}

bool shut_touched(void)
{
    mprotect(shut_page, page_size(), PROT_READ | PROT_WRITE);
    return !at_touch;
}

void shut_forget(void)
{
    munmap(pages, pages_size);
    wanted_size = 0;
}
