/* freed_code.c - the interception point of code objects that are freed: the function of their type that frees one. */
#include "torch/lines/lines.h"

#include "interpose/patch.h"

_Atomic uint64_t mst_code_generation = 1;

/* The code objects that were freed last: `ring[g % RING]` before the generation became g + 1. */
enum { RING = 32 };
static struct {
    _Atomic uintptr_t begin, end;
} ring[RING];

/* Called with the GIL. */
static void count_freed(uintptr_t begin, uintptr_t end)
{
    uint64_t now = atomic_load_explicit(&mst_code_generation, memory_order_relaxed);
    atomic_store_explicit(&ring[now % RING].begin, begin, memory_order_relaxed);
    atomic_store_explicit(&ring[now % RING].end, end, memory_order_relaxed);
    atomic_store_explicit(&mst_code_generation, now + 1, memory_order_release);
}

bool mst_freed_code_since(uint64_t since, uint64_t *now, struct mst_freed_code freed[MST_MOST_FREED], size_t *count)
{
    *now = atomic_load_explicit(&mst_code_generation, memory_order_acquire);
    *count = 0;
    if (*now - since > MST_MOST_FREED)
        return false;
    for (uint64_t at = since; at != *now; at++)
        freed[(*count)++] = (struct mst_freed_code){atomic_load_explicit(&ring[at % RING].begin, memory_order_relaxed),
                                                    atomic_load_explicit(&ring[at % RING].end, memory_order_relaxed)};
    atomic_thread_fence(memory_order_acquire);
    /* The next one is written before it is counted. */
    return atomic_load_explicit(&mst_code_generation, memory_order_relaxed) - since < RING;
}

static void intercept_code_dealloc(PyObject *code);
static ms_function read_dealloc(const void *type)
{
    return (ms_function)((const PyTypeObject *)type)->tp_dealloc;
}

static int write_dealloc(void *type, ms_function function)
{
    ((PyTypeObject *)type)->tp_dealloc = (destructor)function;
    return 0;
}

static ms_patch dealloc_patch = {
    .ours = (ms_function)intercept_code_dealloc, .target = &PyCode_Type, .read = read_dealloc, .write = write_dealloc};

/* With the GIL: a thread that runs other code at the same address took the GIL later. */
static void intercept_code_dealloc(PyObject *code)
{
    const PyCodeObject *freed = (const PyCodeObject *)code;
    count_freed((uintptr_t)code, (uintptr_t)mst_code_instruction(freed, Py_SIZE(freed) * MST_CODE_UNIT));
    ((destructor)dealloc_patch.previous)(code);
}

static bool dealloc_reaches_us(void)
{
    uint64_t before = atomic_load(&mst_code_generation);
    Py_XDECREF((PyObject *)PyCode_NewEmpty("<modscope>", "freed", 1));
    PyErr_Clear();
    return atomic_load(&mst_code_generation) != before;
}

bool mst_freed_code_intercept(void)
{
    bool done = ms_patch_install(&dealloc_patch, dealloc_reaches_us) == 0;
    for (int i = 0; i <= RING; i++)
        count_freed(0, UINTPTR_MAX); /* any code may have been freed while that was not intercepted */
    return done;
}

void mst_freed_code_restore(void)
{
    ms_patch_restore(&dealloc_patch);
}
