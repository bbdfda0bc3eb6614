/* refused_malloc.c - malloc and its siblings, which fail when asked to. */
#include "refused_malloc.h"
#include "runner.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);

static long until_refused; /* allocations until one is refused; 0: none is */
static bool is_refused;
static atomic_long live; /* blocks that are not freed yet; only differences count. Threads of captures free, too */

static bool refuse(void)
{
    bool now = until_refused && --until_refused == 0;
    if (now)
        is_refused = true;
    return now;
}

static void *count(void *memory)
{
    live += memory != NULL;
    return memory;
}

void *__wrap_malloc(size_t bytes)
{
    return refuse() ? NULL : count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return refuse() ? NULL : count(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    if (refuse())
        return NULL;
    void *grown = __real_realloc(memory, bytes);
    return memory ? grown : count(grown);
}

void __wrap_free(void *memory)
{
    live -= memory != NULL;
    __real_free(memory);
}

void refuse_each_malloc(int (*function)(void), int error)
{
    for (long n = 1, before = live;; n++, before = live) {
        until_refused = n;
        is_refused = false;
        int returned = function();
        until_refused = 0;
        if (returned != (is_refused ? error : 0))
            FAIL("it returned %d when allocation %ld was %s", returned, n, is_refused ? "refused" : "not reached");
        if (live != before)
            FAIL("%ld blocks were not freed when allocation %ld was refused", live - before, n);
        if (!is_refused)
            return;
    }
}
