/* block_stacks.c - the stack that makes a block: the program's own Python frames, and in backward the node.
 *
 * Which frames are kept: a frame is of the program itself, of an installed library or Python's, of torch, or of
 * modscope (enum owner). The innermost frame of the lowest owner that occurs is kept, and the frames around it that are
 * of the same owner, up to mst_stack_depth.
 *
 * A thread remembers the owners of code objects and the stacks of instructions that it has seen, by their addresses.
 * What is seen for the first time is copied and looked up by its contents (ms_stack_add). An address may be that of
 * another code object later: whenever any code object is freed, `generation` changes, and each thread forgets what it
 * remembers. For that the function that frees code objects is intercepted while stacks are read. */
#include "torch/block_stacks.h"

#include "interpose/patch.h"
#include "torch/api.h"
#include "torch/intercept.h"
#include "torch/python_frames.h"
#include "torch/running_operator.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Atomic uint32_t mst_stack_depth;
MST_THREAD_LOCAL const void *mst_running_node;

enum { MOST_FRAMES = 64 };
enum owner { OF_PROGRAM, OF_LIBRARY, OF_TORCH, OF_MODSCOPE }; /* frames of modscope are never kept */

/* ---- code objects that are freed ---- */

static _Atomic uint64_t generation = 1;

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
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    ((destructor)dealloc_patch.previous)(code);
}

static bool dealloc_reaches_us(void)
{
    uint64_t before = atomic_load(&generation);
    Py_XDECREF((PyObject *)PyCode_NewEmpty("<modscope>", "freed", 1));
    PyErr_Clear();
    return atomic_load(&generation) != before;
}

/* ---- whose file it is ---- */

struct folders {
    size_t count;
    struct folder {
        char *prefix;
        size_t length;
        enum owner owner;
    } of[];
};

static _Atomic(struct folders *) folders; /* set once, and never freed: threads read it without a lock */

static enum owner owner_of_file(const char *file)
{
    static const char *const generated[] = {"<frozen ", "<eval_with_key>", "<__array_function__ internals>"};
    for (size_t i = 0; file[0] == '<' && i < sizeof generated / sizeof *generated; i++)
        if (strncmp(file, generated[i], strlen(generated[i])) == 0)
            return OF_TORCH;
    const struct folders *known = atomic_load_explicit(&folders, memory_order_acquire);
    enum owner owner = OF_PROGRAM;
    for (size_t i = 0; known && i < known->count; i++)
        if (known->of[i].owner > owner && strncmp(file, known->of[i].prefix, known->of[i].length) == 0)
            owner = known->of[i].owner;
    return owner;
}

/* ---- what a thread remembers ---- */

/* Sets of two entries, the latest that was seen first: what two code objects or lines of a loop have in common by
 * chance is only where they are searched. The numbers of sets are powers of two. */
enum { WAYS = 2, CODES = 128, PLACES = 512, NODES = 512, LATEST = 24 };

/* Entries of 16 bytes, so that none is in two cache lines. */
struct seen {
    struct seen_code {
        const PyCodeObject *code; /* NULL: nothing is here */
        uint32_t first;           /* how far its first instruction at which a frame counts as begun is behind `code` */
        uint32_t owner;           /* enum owner */
    } codes[CODES][WAYS];
    struct seen_place {
        const void *at; /* an instruction, or the name of an operator; NULL: nothing is here */
        ms_stack outer, stack;
    } places[PLACES][WAYS];
    struct seen_node {
        const void *table; /* the node's table of virtual functions; NULL: nothing is here */
        ms_stack outer, forward, stack;
    } nodes[NODES][WAYS];
    /* The instructions of the frames that were read last, innermost first, and the stack that they are. An operator
     * makes nodes and blocks, and a backward many blocks, in the same frames. */
    struct latest {
        const void *instructions[LATEST];
        uint32_t count; /* 0: nothing is here */
        ms_stack stack;
        bool is_whole; /* there is no frame around them; else the frames around them do not matter */
    } latest;
    uint64_t generation; /* of everything in it */
};

static pthread_key_t seen_key; /* its destructor frees what a thread remembered */
static MST_THREAD_LOCAL struct seen *seen_here;

static void forget_seen(void *seen)
{
    seen_here = NULL;
    free(seen);
}

static struct seen *open_seen(void)
{
    struct seen *seen = calloc(1, sizeof *seen);
    if (seen && pthread_setspecific(seen_key, seen) != 0) {
        free(seen);
        seen = NULL;
    }
    return seen_here = seen;
}

/* NULL: memory ran out. */
static struct seen *find_seen(void)
{
    struct seen *seen = LIKELY(seen_here != NULL) ? seen_here : open_seen();
    uint64_t now = atomic_load_explicit(&generation, memory_order_relaxed);
    if (seen && UNLIKELY(seen->generation != now)) {
        memset(seen, 0, sizeof *seen);
        seen->generation = now;
    }
    return seen;
}

static __attribute__((noinline)) const struct seen_code *see_code(struct seen_code set[WAYS], const PyCodeObject *code)
{
    char file[MST_CODE_TEXT];
    ptrdiff_t first = (const char *)mst_code_first_instruction(code) - (const char *)code;
    set[1] = set[0];
    set[0] = (struct seen_code){code, (uint32_t)first, owner_of_file(mst_code_file(code, file))};
    return set;
}

static inline const struct seen_code *find_code(struct seen *seen, const PyCodeObject *code)
{
    struct seen_code *set = seen->codes[((uintptr_t)code >> 4 ^ (uintptr_t)code >> 12) & (CODES - 1)];
    if (LIKELY(set[0].code == code))
        return set;
    return LIKELY(set[1].code == code) ? &set[1] : see_code(set, code);
}

static inline struct seen_place *find_places(struct seen *seen, const void *at, ms_stack outer)
{
    uint64_t hash = ((uintptr_t)at ^ (uint64_t)outer << 40) * UINT64_C(0x9E3779B97F4A7C15);
    return seen->places[hash >> 48 & (PLACES - 1)];
}

static inline bool is_place(const struct seen_place *place, const void *at, ms_stack outer)
{
    return place->at == at && place->outer == outer;
}

static ms_stack remember_place(struct seen_place set[WAYS], const void *at, ms_stack outer, ms_stack stack)
{
    set[1] = set[0];
    set[0] = (struct seen_place){at, outer, stack};
    return stack;
}

static __attribute__((noinline)) ms_stack see_frame(struct seen_place set[WAYS], const struct mst_frame *frame,
                                                    ms_stack outer)
{
    struct mst_code_texts texts;
    ms_frame added;
    mst_code_position(frame->code, frame->instruction, &texts, &added);
    added.outer = outer;
    return remember_place(set, frame->instruction, outer, ms_stack_add(mst.watch, &added));
}

static inline ms_stack stack_of_frame(struct seen *seen, const struct mst_frame *frame, ms_stack outer)
{
    struct seen_place *set = find_places(seen, frame->instruction, outer);
    if (LIKELY(is_place(&set[0], frame->instruction, outer)))
        return set[0].stack;
    return LIKELY(is_place(&set[1], frame->instruction, outer)) ? set[1].stack : see_frame(set, frame, outer);
}

/* ---- nodes ---- */

/* The last name in a type's mangled name, which is the class: "N5torch8autograd9generated14AddmmBackward0E". */
static void read_class_name(const char *mangled, char *name, size_t room)
{
    name[0] = '\0';
    for (const char *at = mangled; *at;) {
        char *end = (char *)at;
        unsigned long length = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (!length || strnlen(end, length) < length) {
            at++;
            continue;
        }
        size_t copied = length < room - 1 ? length : room - 1;
        memcpy(name, end, copied);
        name[copied] = '\0';
        at = end + length;
    }
}

/* The class of a node by its type information, which the C++ ABI puts before the table of virtual functions. A custom
 * Function of Python has the class PyNode; its Python frames say more. */
static __attribute__((noinline)) ms_stack see_node(const void *table, ms_stack outer, ms_stack forward)
{
    const void *const *type = ((const void *const *const *)table)[-1];
    const char *mangled = type ? type[1] : NULL;
    char name[256] = "";
    if (mangled)
        read_class_name(mangled, name, sizeof name);
    if (!name[0] || strcmp(name, "PyNode") == 0)
        return outer;
    return ms_stack_add(mst.watch, &(ms_frame){.function = name, .outer = outer, .forward = forward});
}

static __attribute__((noinline)) ms_stack remember_node(struct seen_node set[WAYS], struct seen_node node)
{
    node.stack = see_node(node.table, node.outer, node.forward);
    set[1] = set[0];
    set[0] = node;
    return node.stack;
}

static inline bool is_same_node(const struct seen_node *a, const struct seen_node *b)
{
    return a->table == b->table && a->outer == b->outer && a->forward == b->forward;
}

static inline ms_stack stack_of_node(struct seen *seen, const void *node, ms_stack outer)
{
    struct seen_node key = {.table = (const void *)(uintptr_t)mst_node_word(node, 0), .outer = outer};
    key.forward = ms_node_stack(mst_this_thread, mst_node_word(node, mst.node_layout.thread),
                                mst_node_word(node, mst.node_layout.number));
    uint64_t hash = ((uintptr_t)key.table ^ ((uint64_t)outer << 20 ^ key.forward) << 24) * UINT64_C(0x9E3779B97F4A7C15);
    struct seen_node *set = seen->nodes[hash >> 48 & (NODES - 1)];
    if (LIKELY(is_same_node(&set[0], &key)))
        return set[0].stack;
    return LIKELY(is_same_node(&set[1], &key)) ? set[1].stack : remember_node(set, key);
}

/* ---- operators of the dispatcher ---- */

/* The names of operators are never freed, so their addresses identify them. */
static inline ms_stack stack_of_operator(struct seen *seen, const char *name, ms_stack outer)
{
    struct seen_place *set = find_places(seen, name, outer);
    for (int way = 0; way < WAYS; way++)
        if (is_place(&set[way], name, outer))
            return set[way].stack;
    return remember_place(set, name, outer, ms_stack_add(mst.watch, &(ms_frame){.function = name, .outer = outer}));
}

/* ---- reading ---- */

struct frames {
    struct mst_frame of[MOST_FRAMES]; /* innermost first */
    uint32_t count;
    enum owner owner; /* of all of them; OF_MODSCOPE while there is none */
};

/* Whether the frames from `at` on are those that were read last: an instruction identifies its code, too. */
static inline bool is_latest(const struct latest *latest, const void *at)
{
    struct mst_frame frame;
    for (uint32_t i = 0; i < latest->count; at = frame.next) {
        if (!at)
            return false;
        frame = mst_frame_read(at);
        if (frame.is_shim)
            continue;
        if (frame.instruction != latest->instructions[i++])
            return false;
    }
    while (UNLIKELY(latest->is_whole) && at) {
        frame = mst_frame_read(at);
        if (!frame.is_shim)
            return false;
        at = frame.next;
    }
    return latest->count;
}

static void collect_frames(struct seen *seen, const void *at, struct frames *frames, uint32_t depth)
{
    struct mst_frame frame;
    uint32_t read = 0;
    bool is_complete = false;
    for (; at && !is_complete; at = frame.next) {
        frame = mst_frame_read(at);
        if (frame.is_shim)
            continue;
        if (LIKELY(read < LATEST))
            seen->latest.instructions[read] = frame.instruction;
        read++;
        const struct seen_code *code = find_code(seen, frame.code);
        if (code->owner > frames->owner || code->owner == OF_MODSCOPE ||
            UNLIKELY((uintptr_t)frame.instruction < (uintptr_t)frame.code + code->first))
            continue;
        if (code->owner < frames->owner) {
            frames->owner = (enum owner)code->owner;
            frames->count = 0;
        }
        if (frames->count < depth)
            frames->of[frames->count++] = frame;
        is_complete = frames->owner == OF_PROGRAM && frames->count == depth;
    }
    seen->latest.count = read <= LATEST ? read : 0;
    seen->latest.is_whole = !is_complete;
}

static bool is_in_node(void)
{
    return mst_running_node && mst_this_thread && ms_thread_phase(mst_this_thread) == MS_BACKWARD;
}

static __attribute__((noinline)) ms_stack read_other_frames(struct seen *seen, const void *at)
{
    struct frames frames;
    frames.count = 0;
    frames.owner = OF_MODSCOPE;
    collect_frames(seen, at, &frames, atomic_load_explicit(&mst_stack_depth, memory_order_relaxed));
    ms_stack stack = MS_STACK_NONE;
    while (frames.count)
        stack = stack_of_frame(seen, &frames.of[--frames.count], stack);
    return seen->latest.stack = stack;
}

static inline ms_stack read_frames_stack(struct seen *seen)
{
    const void *at = mst_frame_innermost();
    if (!at)
        return MS_STACK_NONE;
    return LIKELY(is_latest(&seen->latest, at)) ? seen->latest.stack : read_other_frames(seen, at);
}

ms_stack mst_frames_stack(void)
{
    struct seen *seen = find_seen();
    return LIKELY(seen != NULL) ? read_frames_stack(seen) : (ms_stack)MS_STACK_LOST;
}

ms_stack mst_stack_read(void)
{
    struct seen *seen = find_seen();
    if (UNLIKELY(!seen))
        return MS_STACK_LOST;
    ms_stack stack = read_frames_stack(seen);
    if (is_in_node())
        stack = stack_of_node(seen, mst_running_node, stack);
    return UNLIKELY(mst_running_operator != NULL) ? stack_of_operator(seen, mst_running_operator, stack) : stack;
}

int mst_stacks_init(void)
{
    if (pthread_key_create(&seen_key, forget_seen) == 0)
        return 0;
    PyErr_SetString(PyExc_ImportError, "modscope: this system does not support thread-specific data");
    return -1;
}

/* ---- from Python ---- */

static PyObject *why_no_stacks(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const char *why = mst_frames_unsupported();
    if (why)
        return PyUnicode_FromString(why);
    Py_RETURN_NONE;
}

void mst_stacks_stop(void)
{
    atomic_store(&mst_stack_depth, 0);
    ms_patch_restore(&dealloc_patch);
    mst_created_nodes_restore();
}

static PyObject *set_stack_depth(PyObject *self, PyObject *argument)
{
    (void)self;
    unsigned long depth = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (depth > MOST_FRAMES)
        return PyErr_Format(PyExc_ValueError, "stacks must be 0 to %d", MOST_FRAMES);
    if (depth && ms_patch_install(&dealloc_patch, dealloc_reaches_us) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "the function that frees code objects cannot be intercepted");
        return NULL;
    }
    atomic_fetch_add(&generation, 1); /* code may have been freed while that was not intercepted */
    if (depth) {
        atomic_store(&mst_stack_depth, (uint32_t)depth);
        mst_created_nodes_intercept();
    } else {
        mst_stacks_stop();
    }
    Py_RETURN_NONE;
}

/* The folders come in three lists of bytes: of installed libraries and Python's, of torch, and of modscope. */
static PyObject *set_stack_folders(PyObject *self, PyObject *args)
{
    (void)self;
    static const enum owner owners[] = {OF_LIBRARY, OF_TORCH, OF_MODSCOPE};
    PyObject *lists[3];
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &lists[0], &PyList_Type, &lists[1], &PyList_Type, &lists[2]))
        return NULL;
    if (atomic_load(&folders))
        Py_RETURN_NONE;
    size_t count = (size_t)(PyList_GET_SIZE(lists[0]) + PyList_GET_SIZE(lists[1]) + PyList_GET_SIZE(lists[2]));
    struct folders *made = calloc(1, sizeof *made + count * sizeof made->of[0]);
    for (int list = 0; made && list < 3; list++) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists[list]); i++) {
            const char *prefix = PyBytes_AsString(PyList_GET_ITEM(lists[list], i));
            struct folder *folder = &made->of[made->count];
            folder->prefix = prefix ? strdup(prefix) : NULL;
            if (!folder->prefix)
                continue;
            folder->length = strlen(folder->prefix);
            folder->owner = owners[list];
            made->count++;
        }
    }
    if (PyErr_Occurred() || !made)
        return made ? NULL : PyErr_NoMemory();
    atomic_store(&folders, made);
    Py_RETURN_NONE;
}

static PyObject *tuple_of_frame(const ms_frame *frame)
{
    return Py_BuildValue("(zsIIII)", frame->file, frame->function, frame->line, frame->end_line, frame->column,
                         frame->end_column);
}

PyObject *mst_stack_list(ms_stack stack)
{
    PyObject *list = PyList_New(0);
    ms_frame frame;
    for (; list && ms_stack_frame(mst.watch, stack, &frame); stack = frame.outer)
        if (mst_append_new(list, tuple_of_frame(&frame)) != 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *read_stack(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return mst_stack_list(mst_stack_here());
}

static PyObject *read_frames(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    struct mst_frame frame;
    for (const void *at = mst_frame_innermost(); list && at; at = frame.next) {
        struct mst_code_texts texts;
        ms_frame shown;
        frame = mst_frame_read(at);
        if (frame.is_shim || (uintptr_t)frame.instruction < (uintptr_t)mst_code_first_instruction(frame.code))
            continue;
        mst_code_position(frame.code, frame.instruction, &texts, &shown);
        if (mst_append_new(list, tuple_of_frame(&shown)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stacks_lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(ms_stacks_lost(mst.watch));
}

static PyObject *stack_files(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *files = PySet_New(NULL);
    ms_frame frame;
    for (uint32_t stack = 0; files && stack < ms_stack_count(mst.watch); stack++) {
        if (!ms_stack_frame(mst.watch, stack, &frame) || !frame.file)
            continue;
        PyObject *file = PyUnicode_DecodeUTF8(frame.file, (Py_ssize_t)strlen(frame.file), "replace");
        if (!file || PySet_Add(files, file) != 0)
            Py_CLEAR(files);
        Py_XDECREF(file);
    }
    PyObject *list = files ? PySequence_List(files) : NULL;
    Py_XDECREF(files);
    return list;
}

PyMethodDef mst_block_stacks_methods[] = {
    {"why_no_stacks", why_no_stacks, METH_NOARGS, "None, or why this Python's frames cannot be read."},
    {"set_stack_depth", set_stack_depth, METH_O, "How many frames are kept for each block; 0: none are read."},
    {"set_stack_folders", set_stack_folders, METH_VARARGS,
     "Which files are not the program's own: lists of prefixes, as bytes, of installed libraries and Python's, of\n"
     "torch, and of modscope. They are set once."},
    {"read_stack", read_stack, METH_NOARGS,
     "The stack that a block made here would have: (file, function, line, end line, column, end column) of each "
     "frame,\n"
     "innermost first."},
    {"read_frames", read_frames, METH_NOARGS, "The same of all Python frames of this thread."},
    {"stack_files", stack_files, METH_NOARGS, "The files of all frames that stacks have, each once."},
    {"stacks_lost", stacks_lost, METH_NOARGS, "How many times the table of stacks was full."},
    {NULL, NULL, 0, NULL},
};
