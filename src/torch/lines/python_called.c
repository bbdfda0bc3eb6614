/* python_called.c - what an instruction calls, by the bytecode around it: the function as it is written in the source,
 * or the operator's name. No source text is needed, so it also works for code that never was in a file.
 *
 * A call takes its function from the stack, below the arguments. Which instruction put it there follows from the
 * positions in the source: of a call, only the function's own expression begins where the call begins, and it ends
 * earlier. So it is the last instruction before the call that begins there and is shorter:
 *
 *     torch.relu(x.t())      LOAD torch [0, 5]   LOAD_ATTR relu [0, 10]   LOAD x [11, 12]   ...   CALL [0, 17]
 *
 * Where positions are not those of real source text, nothing is found, rather than something wrong. */
#define Py_BUILD_CORE 1 /* for the internal headers */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define CODE_IS_KNOWN 1
#include <opcode.h>
#else
#define CODE_IS_KNOWN 0
#endif

#include "torch/lines/lines.h"

#include <string.h>

#if CODE_IS_KNOWN

/* The names that the instructions from `begin` to `last` load, as "torch.relu". */
static bool join_names(const PyCodeObject *code, ptrdiff_t begin, ptrdiff_t last, char text[MST_CODE_TEXT])
{
    struct mst_instruction at = {.after = begin};
    size_t length = 0;
    while (at.after <= last) {
        if (!mst_instruction_read(code, at.after, &at))
            return false;
        PyObject *name = mst_role_of(at.opcode) == MST_NO_OPERATION ? NULL : mst_loaded_name(code, &at);
        if (!name)
            continue;
        if (length && length + 1 < MST_CODE_TEXT)
            text[length++] = '.';
        length += mst_text_copy(name, text + length, MST_CODE_TEXT - length);
    }
    return length;
}

static bool put_name(char text[MST_CODE_TEXT], const char *name)
{
    memcpy(text, name, strlen(name) + 1);
    return true;
}

/* ---- calls ---- */

static bool begins_alike(const ms_frame *a, const ms_frame *b)
{
    return a->line == b->line && a->column == b->column && a->end_line && b->end_line;
}

static bool ends_alike(const ms_frame *a, const ms_frame *b)
{
    return a->end_line == b->end_line && a->end_column == b->end_column;
}

static bool ends_before(const ms_frame *a, const ms_frame *b)
{
    return a->end_line < b->end_line || (a->end_line == b->end_line && a->end_column < b->end_column);
}

/* Instructions that load a variable, and attributes of it one after the other. */
struct chain {
    ptrdiff_t begin, last; /* its first unit, and the unit of its last opcode; begin -1: there is none */
    ms_frame position;     /* of its last instruction */
    bool is_anywhere;      /* the position is not that of this variable */
    bool is_of_other;      /* it is an attribute of something that is not a chain */
};

static void extend_chain(struct chain *chain, enum mst_role role, const struct mst_instruction *at,
                         const ms_frame *position)
{
    bool is_same =
        chain->begin >= 0 && !chain->is_of_other && (chain->is_anywhere || begins_alike(&chain->position, position));
    if (role == MST_NULL_AFTER && chain->begin >= 0)
        *chain = (struct chain){.begin = chain->begin, .last = chain->last, .position = *position};
    else if (role == MST_ATTRIBUTE && is_same)
        *chain = (struct chain){.begin = chain->begin, .last = at->unit, .position = *position};
    else if (role == MST_LOAD || role == MST_LOAD_SECOND || role == MST_ATTRIBUTE || role == MST_SUPER_ATTRIBUTE)
        *chain = (struct chain){at->begin, at->unit, *position, role == MST_LOAD_SECOND, role >= MST_ATTRIBUTE};
    else
        *chain = (struct chain){.begin = -1};
}

struct search {
    struct chain chain;    /* that the latest instruction belongs to */
    struct chain function; /* what begins where the call does; begin -1: it is no chain */
    ptrdiff_t touched;     /* the end of the instruction that set `function` last */
    ptrdiff_t awaited;     /* the call whose result was awaited last; -1: none */
    ptrdiff_t called;      /* the unit of the latest call */
    bool is_exit;          /* the latest instruction loads a constant at the call's own position */
};

/* Python 3.11 calls in two instructions. */
static bool is_first_part_of_call(int opcode)
{
#if MST_IS_311
    return opcode == PRECALL;
#else
    (void)opcode;
    return false;
#endif
}

static void search_instruction(struct search *search, const struct mst_instruction *at, const ms_frame *position,
                               const ms_frame *call)
{
    enum mst_role role = mst_role_of(at->opcode);
    if (role == MST_NO_OPERATION)
        return;
    extend_chain(&search->chain, role, at, position);
    bool is_function = begins_alike(position, call) && ends_before(position, call) && !search->chain.is_anywhere;
    if ((is_function && role != MST_CONSTANT) || at->opcode == LOAD_ASSERTION_ERROR ||
        (role == MST_ATTRIBUTE && search->touched == at->begin)) {
        search->function = search->chain;
        search->touched = at->after;
    }
    if (!is_first_part_of_call(at->opcode))
        search->is_exit = at->opcode == LOAD_CONST && begins_alike(position, call) && ends_alike(position, call);
    if (at->opcode == GET_AWAITABLE || at->opcode == GET_YIELD_FROM_ITER)
        search->awaited = search->called;
    search->called = role == MST_CALLING ? at->unit : -1;
}

/* Look at the instructions before that of `unit`, which is then in `target`. The unit may be one of those that follow
 * the opcode: Python 3.11 leaves a frame there that calls a function of Python. */
static bool search_before(const PyCodeObject *code, ptrdiff_t unit, const ms_frame *call, struct search *search,
                          struct mst_instruction *target)
{
    struct mst_positions positions = mst_positions_begin(code);
    *search = (struct search){.chain.begin = -1, .function.begin = -1, .touched = -1, .awaited = -1, .called = -1};
    *target = (struct mst_instruction){0};
    while (mst_instruction_read(code, target->after, target)) {
        if (target->after > unit)
            return true;
        mst_positions_seek(&positions, target->unit);
        search_instruction(search, target, &positions.found, call);
    }
    return false;
}

static bool name_call(const PyCodeObject *code, const struct search *search, int opcode, char text[MST_CODE_TEXT])
{
    bool has_keywords = MST_IS_313 && opcode != CALL; /* a constant, too */
    if (search->is_exit && !has_keywords) {           /* of a context manager: exit(None, None, None) */
        return put_name(text, "exit");
    }
    return search->function.begin >= 0 && join_names(code, search->function.begin, search->function.last, text);
}

static bool name_awaited(const PyCodeObject *code, ptrdiff_t unit, char text[MST_CODE_TEXT])
{
    struct mst_positions positions = mst_positions_begin(code);
    struct search search;
    struct mst_instruction target;
    mst_positions_seek(&positions, unit);
    return search_before(code, unit, &positions.found, &search, &target) &&
           name_call(code, &search, target.opcode, text);
}

bool mst_code_called(const PyCodeObject *code, ptrdiff_t unit, const ms_frame *position, char text[MST_CODE_TEXT])
{
    struct search search;
    struct mst_instruction target;
    if (unit < 0 || !search_before(code, unit, position, &search, &target))
        return false;
    enum mst_role role = mst_role_of(target.opcode);
    if (role == MST_CALLING)
        return name_call(code, &search, target.opcode, text);
    if (role == MST_ATTRIBUTE || role == MST_SUPER_ATTRIBUTE) { /* a property */
        extend_chain(&search.chain, role, &target, position);
        return join_names(code, search.chain.begin, search.chain.last, text);
    }
    if (target.opcode == SEND)
        return search.awaited >= 0 && name_awaited(code, search.awaited, text);
    const char *name = mst_operator_method(&target);
    return name && put_name(text, name);
}

#else

bool mst_code_called(const PyCodeObject *code, ptrdiff_t unit, const ms_frame *position, char text[MST_CODE_TEXT])
{
    (void)code, (void)unit, (void)position, (void)text;
    return false;
}

#endif
