/* intercept_collectives.c - the interception points of collectives: entries in the tables of virtual functions of
 * torch's backends (ProcessGroupNCCL, ProcessGroupGloo, ...), which every collective reaches, whether Python, DDP's
 * reducer or a functional collective launched it.
 *
 *     dist.all_reduce ---.
 *     DDP's reducer -----+--> c10d::allreduce_ --> backend->allreduce(tensors) --> ours --> torch's
 *     DTensor -----------'                           `-- through the table of the backend's class
 *
 * Where a function is in the table is learned: all backends derive from c10d::Backend, so it is where the table of a
 * backend whose functions are exported, by names that state their arguments, has that function. A function of a backend
 * may call another one; only the outer one counts. A C++ exception may pass through: see intercept_nodes.c. */
#include "torch/api/api.h"
#include "torch/ranks/ranks.h"

#include "interpose/patch.h"
#include "interpose/read_memory.h"

#include <stdio.h>
#include <string.h>

/* What an argument is: a tensor, a std::vector of tensors, a std::vector of those. */
enum argument { NONE, TENSOR, LIST, LISTS };

#define TENSORS "RSt6vectorIN2at6TensorESaIS3_EE"
#define LISTS_FIRST "RSt6vectorIS1_IN2at6TensorESaIS3_EESaIS5_EERS5_"
#define LISTS_SECOND TENSORS "RS1_IS5_SaIS5_EE"
#define TWO_TENSORS "RN2at6TensorES3_"
#define TWO_LISTS TENSORS "S6_"

/* A function, its kind, those of its first two arguments that count, and how its mangled name goes on after that of the
 * class. torch 2.15 has functions with new names, to which the older ones go on. */
#define FUNCTIONS(X, n)                                                                                                \
    X(n, allreduce, ALL_REDUCE, LIST, NONE, "9allreduceE" TENSORS "RKNS_16AllreduceOptionsE")                          \
    X(n, allreduce_coalesced, ALL_REDUCE, LIST, NONE,                                                                  \
      "19allreduce_coalescedE" TENSORS "RKNS_25AllreduceCoalescedOptionsE")                                            \
    X(n, broadcast, BROADCAST, LIST, NONE, "9broadcastE" TENSORS "RKNS_16BroadcastOptionsE")                           \
    X(n, reduce, REDUCE, LIST, NONE, "6reduceE" TENSORS "RKNS_13ReduceOptionsE")                                       \
    X(n, allgather, ALL_GATHER, LISTS, LIST, "9allgatherE" LISTS_FIRST "RKNS_16AllgatherOptionsE")                     \
    X(n, allgather_base, ALL_GATHER, TENSOR, TENSOR, "15_allgather_baseE" TWO_TENSORS "RKNS_16AllgatherOptionsE")      \
    X(n, all_gather_single, ALL_GATHER, TENSOR, TENSOR, "17all_gather_singleE" TWO_TENSORS "RKNS_16AllgatherOptionsE") \
    X(n, allgather_coalesced, ALL_GATHER, LISTS, LIST,                                                                 \
      "19allgather_coalescedE" LISTS_FIRST "RKNS_16AllgatherOptionsE")                                                 \
    X(n, allgather_into_tensor_coalesced, ALL_GATHER, LIST, LIST,                                                      \
      "31allgather_into_tensor_coalescedE" TWO_LISTS "RKNS_16AllgatherOptionsE")                                       \
    X(n, all_gather_single_coalesced, ALL_GATHER, LIST, LIST,                                                          \
      "27all_gather_single_coalescedE" TWO_LISTS "RKNS_16AllgatherOptionsE")                                           \
    X(n, reduce_scatter, REDUCE_SCATTER, LIST, LISTS, "14reduce_scatterE" LISTS_SECOND "RKNS_20ReduceScatterOptionsE") \
    X(n, reduce_scatter_base, REDUCE_SCATTER, TENSOR, TENSOR,                                                          \
      "20_reduce_scatter_baseE" TWO_TENSORS "RKNS_20ReduceScatterOptionsE")                                            \
    X(n, reduce_scatter_single, REDUCE_SCATTER, TENSOR, TENSOR,                                                        \
      "21reduce_scatter_singleE" TWO_TENSORS "RKNS_20ReduceScatterOptionsE")                                           \
    X(n, reduce_scatter_tensor_coalesced, REDUCE_SCATTER, LIST, NONE,                                                  \
      "31reduce_scatter_tensor_coalescedE" TWO_LISTS "RKNS_20ReduceScatterOptionsE")                                   \
    X(n, reduce_scatter_single_coalesced, REDUCE_SCATTER, LIST, NONE,                                                  \
      "31reduce_scatter_single_coalescedE" TWO_LISTS "RKNS_20ReduceScatterOptionsE")                                   \
    X(n, alltoall, ALL_TO_ALL, LIST, LIST, "8alltoallE" TWO_LISTS "RKNS_15AllToAllOptionsE")                           \
    X(n, alltoall_base, ALL_TO_ALL, TENSOR, TENSOR,                                                                    \
      "13alltoall_baseE" TWO_TENSORS "RSt6vectorIlSaIlEES7_RKNS_15AllToAllOptionsE")                                   \
    X(n, all_to_all_single, ALL_TO_ALL, TENSOR, TENSOR,                                                                \
      "17all_to_all_singleE" TWO_TENSORS "RSt6vectorIlSaIlEES7_RKNS_15AllToAllOptionsE")                               \
    X(n, gather, GATHER, LISTS, LIST, "6gatherE" LISTS_FIRST "RKNS_13GatherOptionsE")                                  \
    X(n, gather_single, GATHER, TENSOR, TENSOR, "13gather_singleE" TWO_TENSORS "RKNS_13GatherOptionsE")                \
    X(n, scatter, SCATTER, LIST, LISTS, "7scatterE" LISTS_SECOND "RKNS_14ScatterOptionsE")                             \
    X(n, send, SEND, LIST, NONE, "4sendE" TENSORS "ii")                                                                \
    X(n, recv, RECV, LIST, NONE, "4recvE" TENSORS "ii")                                                                \
    X(n, recv_any_source, RECV, LIST, NONE, "13recvAnysourceE" TENSORS "i")                                            \
    X(n, barrier, BARRIER, NONE, NONE, "7barrierERKNS_14BarrierOptionsE")

enum function {
#define X(n, name, kind, first, second, symbol) FUNCTION_##name,
    FUNCTIONS(X, 0)
#undef X
        DESTRUCTOR,
    DELETING_DESTRUCTOR,
    FUNCTION_COUNT
};

static const struct {
    ms_collective_kind kind;
    enum argument first, second;
    const char *symbol;
} functions[FUNCTION_COUNT] = {
#define X(n, name, kind, first, second, symbol) {MS_COLLECTIVE_##kind, first, second, symbol},
    FUNCTIONS(X, 0)
#undef X
        [DESTRUCTOR] = {.symbol = "D1Ev"},
    [DELETING_DESTRUCTOR] = {.symbol = "D0Ev"},
};

enum {
    CLASSES = 8,       /* classes of backends */
    MOST_ENTRIES = 128 /* of a table */
};
static const struct {
    const char *library, *class; /* a class is its length and its name, as in symbols */
} known_classes[] = {
    {"libtorch_cpu", "16ProcessGroupGloo"},
    {"libtorch_cuda", "16ProcessGroupNCCL"},
    {"libtorch_cuda", "5nccl216ProcessGroupNCCL"}, /* of torch 2.15, in a namespace of its own */
    {"libtorch_cuda", "5nccl220ProcessGroupNCCLLazy"},
    {"libtorch_cpu", "15ProcessGroupMPI"},
    {"libtorch_cuda", "15ProcessGroupUCC"},
    {"libtorch_xpu", "16ProcessGroupXCCL"},
};

/* ---- what goes through ---- */
static int32_t (*get_numel)(const void *tensor, int64_t *numel); /* torch's C functions; not 0: an error */
static int32_t (*get_dtype)(const void *tensor, int32_t *dtype);
static size_t (*get_element_size)(int32_t dtype);

struct vector { /* std::vector */
    const char *begin, *end, *capacity;
};

static uint64_t bytes_of_tensor(const void *tensor)
{
    int64_t numel = 0;
    int32_t dtype = 0;
    if (get_numel(tensor, &numel) != 0 || numel <= 0 || get_dtype(tensor, &dtype) != 0)
        return 0;
    return (uint64_t)numel * get_element_size(dtype);
}

static uint64_t bytes_of_list(const struct vector *list)
{
    uint64_t bytes = 0;
    for (const char *tensor = list->begin; tensor < list->end; tensor += sizeof(void *))
        bytes += bytes_of_tensor(tensor);
    return bytes;
}

static uint64_t bytes_of(enum argument argument, uint64_t address)
{
    uint64_t bytes = 0;
    switch (argument) {
    case NONE:
        return 0;
    case TENSOR:
        return bytes_of_tensor((const void *)address);
    case LIST:
        return bytes_of_list((const struct vector *)address);
    case LISTS: {
        const struct vector *lists = (const struct vector *)address;
        for (const char *list = lists->begin; list < lists->end; list += sizeof(struct vector))
            bytes += bytes_of_list((const struct vector *)list);
    }
    }
    return bytes;
}

/* ---- our functions ---- */
static _Atomic bool noting;
static MST_THREAD_LOCAL unsigned depth; /* functions of backends that this thread is in */

/* What a thread leaves when it leaves a function of a backend, also by an exception. */
struct launching {
    unsigned depth;
    uint64_t number;
};

static void restore_launching(const struct launching *before)
{
    depth = before->depth;
    mst_gloo_set_launching(before->number);
}

static inline uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A function returns its result through a pointer, its first argument on x86-64; `self` is the second one. None has
 * more than seven arguments. What is passed on beyond its own does no harm. */
typedef uint64_t any_function(uint64_t result, uint64_t self, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                              uint64_t g);

static inline uint64_t pass_on(const ms_patch *patch, enum function function, uint64_t a, uint64_t b, uint64_t c,
                               uint64_t d, uint64_t e, uint64_t f, uint64_t g)
{
    any_function *previous = (any_function *)patch->previous;
    if (depth || !atomic_load_explicit(&noting, memory_order_relaxed))
        return previous(a, b, c, d, e, f, g);
    uint64_t number = mst_collective_launched(
        functions[function].kind,
        largest(bytes_of(functions[function].first, c), bytes_of(functions[function].second, d)), b, 0, 0);
    struct launching before
        __attribute__((cleanup(restore_launching), unused)) = {depth++, mst_gloo_set_launching(number)};
    uint64_t result = previous(a, b, c, d, e, f, g);
    if (number)
        mst_gloo_launched(number, *(const uintptr_t *)a);
    return result;
}

struct backend_class {
    uintptr_t table; /* 0: not used */
    ms_elf_slot slots[FUNCTION_COUNT];
    ms_patch patches[FUNCTION_COUNT]; /* `target` is NULL where the function is not intercepted */
};
static struct backend_class classes[CLASSES];

static inline uint64_t end_group(const ms_patch *patch, uint64_t self, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 uint64_t f, uint64_t g)
{
    mst_collective_group_ended(self);
    return ((any_function *)patch->previous)(self, b, c, d, e, f, g);
}

/* Each class needs functions of its own, because each of its functions goes on to another one of torch. */
#define X(n, name, kind, first, second, symbol)                                                                \
    static uint64_t class_##n##_##name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, \
                                       uint64_t g)                                                             \
    {                                                                                                          \
        return pass_on(&classes[n].patches[FUNCTION_##name], FUNCTION_##name, a, b, c, d, e, f, g);            \
    }
#define DESTRUCTORS(n)                                                                                          \
    static uint64_t class_##n##_destroy(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, \
                                        uint64_t g)                                                             \
    {                                                                                                           \
        return end_group(&classes[n].patches[DESTRUCTOR], a, b, c, d, e, f, g);                                 \
    }                                                                                                           \
    static uint64_t class_##n##_delete(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,  \
                                       uint64_t g)                                                              \
    {                                                                                                           \
        return end_group(&classes[n].patches[DELETING_DESTRUCTOR], a, b, c, d, e, f, g);                        \
    }
#define CLASS_FUNCTIONS(n) FUNCTIONS(X, n) DESTRUCTORS(n)
CLASS_FUNCTIONS(0)
CLASS_FUNCTIONS(1)
CLASS_FUNCTIONS(2)
CLASS_FUNCTIONS(3)
CLASS_FUNCTIONS(4)
CLASS_FUNCTIONS(5)
CLASS_FUNCTIONS(6)
CLASS_FUNCTIONS(7)
#undef X

static any_function *const ours[CLASSES][FUNCTION_COUNT] = {
#define X(n, name, kind, first, second, symbol) class_##n##_##name,
#define CLASS_ROW(n)                                            \
    {                                                           \
        FUNCTIONS(X, n) class_##n##_destroy, class_##n##_delete \
    }
    CLASS_ROW(0), CLASS_ROW(1), CLASS_ROW(2), CLASS_ROW(3), CLASS_ROW(4), CLASS_ROW(5), CLASS_ROW(6), CLASS_ROW(7),
#undef X
};

/* ---- find ---- */
static const char *why_not = "no capture has begun yet"; /* NULL: collectives are known */
static bool searched;
static int places[FUNCTION_COUNT]; /* where each function is in a table; -1: not known */

static uintptr_t find_symbol(const char *library, const char *format, const char *class, const char *rest)
{
    char symbol[256];
    snprintf(symbol, sizeof symbol, format, class, rest);
    return (uintptr_t)ms_elf_symbol_find(library, symbol);
}

/* The table of a class, where its objects point to. */
static uintptr_t find_class_table(const char *library, const char *class)
{
    enum { BEFORE = 2 * sizeof(uintptr_t) }; /* the offset to the object, and its type */
    uintptr_t table = find_symbol(library, "_ZTVN4c10d%sE%s", class, "");
    return table ? table + BEFORE : 0;
}

/* Learn from a class whose functions are exported where those are in its table that are not yet known. A class has only
 * the functions that it overrides: gloo's has no alltoall before torch 2.12. */
static void learn_places(const char *library, const char *class)
{
    uintptr_t table = find_class_table(library, class);
    for (int i = 0; table && i < FUNCTION_COUNT; i++) {
        uintptr_t address = places[i] < 0 ? find_symbol(library, "_ZN4c10d%s%s", class, functions[i].symbol) : 0;
        uintptr_t entry = 1;
        for (int at = 0; address && entry && places[i] < 0 && at < MOST_ENTRIES; at++) {
            if (!ms_read_memory(table + (uintptr_t)at * sizeof entry, &entry, sizeof entry))
                break;
            if (entry == address)
                places[i] = at;
        }
    }
}

/* Whether a function of this kind is known. */
static bool is_kind_known(ms_collective_kind kind)
{
    for (int i = 0; i < DESTRUCTOR; i++)
        if (functions[i].kind == kind && places[i] >= 0)
            return true;
    return false;
}

static bool is_any_kind_known(void)
{
    for (int kind = 0; kind < MS_COLLECTIVE_COUNT; kind++)
        if (is_kind_known((ms_collective_kind)kind))
            return true;
    return false;
}

/* Prepare to intercept the functions of a class. False: it is not a table of this library, or there are too many. */
static bool add_class(const char *library, uintptr_t table)
{
    int n = 0;
    while (n < CLASSES && classes[n].table && classes[n].table != table)
        n++;
    if (n == CLASSES || !table || !ms_elf_contains(library, table))
        return false;
    if (classes[n].table)
        return true;
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        ms_elf_slot *slot = &classes[n].slots[i];
        if (places[i] < 0 || ms_elf_slot_at(library, table + (uintptr_t)places[i] * sizeof(ms_function), slot) != 0)
            continue;
        classes[n].patches[i] = (ms_patch)MS_PATCH_ELF_SLOT(ours[n][i], slot);
    }
    classes[n].table = table;
    return true;
}

#if defined(__x86_64__)
enum { ARE_ARGUMENTS_KNOWN = true }; /* how a function gets them */
#else
enum { ARE_ARGUMENTS_KNOWN = false };
#endif

static void find_classes(void)
{
    searched = true;
    if (!ARE_ARGUMENTS_KNOWN) {
        why_not = "this is known only of x86-64";
        return;
    }
    enum { KNOWN = sizeof known_classes / sizeof *known_classes };
    get_numel = (int32_t(*)(const void *, int64_t *))ms_elf_symbol_find("libtorch_cpu", "aoti_torch_get_numel");
    get_dtype = (int32_t(*)(const void *, int32_t *))ms_elf_symbol_find("libtorch_cpu", "aoti_torch_get_dtype");
    get_element_size = (size_t(*)(int32_t))ms_elf_symbol_find("libtorch_cpu", "aoti_torch_dtype_element_size");
    for (int i = 0; i < FUNCTION_COUNT; i++)
        places[i] = -1;
    for (int i = 0; i < KNOWN; i++)
        learn_places(known_classes[i].library, known_classes[i].class);
    if (!get_numel || !get_dtype || !get_element_size)
        why_not = "libtorch_cpu lacks a function for the sizes of tensors";
    else if (!is_any_kind_known())
        why_not = "torch exports no backend of torch.distributed";
    else
        why_not = NULL;
    for (int i = 0; i < KNOWN && !why_not; i++)
        add_class(known_classes[i].library, find_class_table(known_classes[i].library, known_classes[i].class));
}

/* ---- install and restore ---- */

/* If another tool replaced our function, we assume that it calls it. */
static bool function_reaches_us(void)
{
    return true;
}

static void install(struct backend_class *class)
{
    for (int i = 0; i < FUNCTION_COUNT; i++)
        if (class->patches[i].target && ms_patch_install(&class->patches[i], function_reaches_us) != 0)
            why_not = "the table of functions of a backend cannot be written";
}

void mst_backends_intercept(void)
{
    if (!searched)
        find_classes();
    if (why_not)
        return;
    for (int n = 0; n < CLASSES && !why_not; n++)
        install(&classes[n]);
    atomic_store(&noting, true);
    if (why_not)
        mst_backends_restore();
    else
        mst_gloo_intercept();
}

void mst_backends_restore(void)
{
    if (!atomic_exchange(&noting, false))
        return; /* a patch that is not installed must not be restored: it would count as chained */
    mst_gloo_restore();
    for (int n = 0; n < CLASSES; n++)
        for (int i = 0; i < FUNCTION_COUNT; i++)
            if (classes[n].patches[i].target)
                ms_patch_restore(&classes[n].patches[i]);
}

/* ---- from Python ---- */

/* The object of C++ that one of pybind11's Python objects is for; 0: it cannot be read. */
static uintptr_t backend_of(PyObject *object)
{
    uintptr_t backend = 0;
    bool has = Py_TYPE(object)->tp_basicsize >= (Py_ssize_t)(sizeof(PyObject) + sizeof backend);
    return has && ms_read_memory((uintptr_t)object + sizeof(PyObject), &backend, sizeof backend) ? backend : 0;
}

static PyObject *backend_key(PyObject *self, PyObject *object)
{
    (void)self;
    return PyLong_FromUnsignedLongLong(backend_of(object));
}

static PyObject *add_backend_class(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *object;
    const char *library;
    if (!PyArg_ParseTuple(args, "Os:add_backend_class", &object, &library))
        return NULL;
    uintptr_t backend = backend_of(object), table = 0;
    if (!searched)
        find_classes();
    bool added = !why_not && backend && ms_read_memory(backend, &table, sizeof table) && add_class(library, table);
    if (added && atomic_load(&noting))
        mst_backends_intercept();
    return PyBool_FromLong(added);
}

static PyObject *finds_collective(PyObject *self, PyObject *name)
{
    static const char *const names[FUNCTION_COUNT] = {
#define X(n, name, kind, first, second, symbol) #name,
        FUNCTIONS(X, 0)
#undef X
    };
    (void)self;
    const char *asked = PyUnicode_AsUTF8(name);
    for (int i = 0; asked && i < FUNCTION_COUNT; i++)
        if (names[i] && strcmp(names[i], asked) == 0)
            return PyBool_FromLong(searched && places[i] >= 0);
    return asked ? PyErr_Format(PyExc_ValueError, "no function of a backend is called %s", asked) : NULL;
}

static PyObject *collectives_unknown(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return Py_BuildValue("z", why_not);
}

static PyObject *collectives_not_found(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (int kind = 0; list && searched && kind < MS_COLLECTIVE_COUNT; kind++)
        if (!is_kind_known((ms_collective_kind)kind) &&
            mst_append_new(list, PyUnicode_FromString(ms_collective_name((ms_collective_kind)kind))) != 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *forget_collectives(PyObject *self, PyObject *why)
{
    static char kept[128];
    (void)self;
    const char *text = PyUnicode_AsUTF8(why);
    if (!text)
        return NULL;
    mst_backends_restore();
    snprintf(kept, sizeof kept, "%s", text);
    why_not = kept;
    searched = true;
    Py_RETURN_NONE;
}

static PyObject *intercept_collectives(PyObject *self, PyObject *is_on)
{
    (void)self;
    if (is_on == Py_True)
        mst_backends_intercept();
    else
        mst_backends_restore();
    Py_RETURN_NONE;
}

PyMethodDef mst_intercept_collectives_methods[] = {
    {"add_backend_class", add_backend_class, METH_VARARGS,
     "Intercept the collectives of this backend's class too, which is in this library. Whether that is possible."},
    {"backend_key", backend_key, METH_O, "The key of a backend's group."},
    {"collectives_not_found", collectives_not_found, METH_NOARGS,
     "The kinds of collectives of which no function is found in the tables of backends."},
    {"collectives_unknown", collectives_unknown, METH_NOARGS, "Why collectives of real runs are not known, or None."},
    {"finds_collective", finds_collective, METH_O, "Whether this function of backends is found in their tables."},
    {"forget_collectives", forget_collectives, METH_O,
     "Do not intercept collectives in this process, for this reason."},
    {"intercept_collectives", intercept_collectives, METH_O,
     "Begin or end to intercept them while there is no capture, to verify it."},
    {NULL, NULL, 0, NULL},
};
