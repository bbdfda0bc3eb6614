/* python_opcodes.c - the instructions of a code object, for Python 3.11 to 3.13: what each one loads, or which special
 * method it calls. The interpreter replaces opcodes by specialized and by instrumented ones; here they are as the
 * compiler wrote them. */
#define Py_BUILD_CORE 1 /* for the internal headers */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#include "internal/pycore_code.h"
#include <opcode.h>
#if PY_VERSION_HEX < 0x030D0000
#define NEED_OPCODE_TABLES
#include "internal/pycore_opcode.h"
#else
#define NEED_OPCODE_METADATA
#include "internal/pycore_opcode_metadata.h"
#endif

#include "torch/lines/lines.h"

/* ---- instructions ---- */

#if MST_IS_311
static int without_instrumentation(const PyCodeObject *code, ptrdiff_t unit, int opcode)
{
    (void)code, (void)unit;
    return opcode;
}
#else
/* sys.monitoring, and with it sys.settrace, replace opcodes. */
static int without_instrumentation(const PyCodeObject *code, ptrdiff_t unit, int opcode)
{
    const _PyCoMonitoringData *data = code->_co_monitoring;
    if (opcode == INSTRUMENTED_LINE)
        opcode = data && data->lines ? data->lines[unit].original_opcode : NOP;
    if (opcode == INSTRUMENTED_INSTRUCTION)
        opcode = data && data->per_instruction_opcodes ? data->per_instruction_opcodes[unit] : NOP;
    switch (opcode) {
#define REPLACED(name)        \
    case INSTRUMENTED_##name: \
        return name;
        REPLACED(CALL)
        REPLACED(CALL_FUNCTION_EX)
        REPLACED(END_FOR)
        REPLACED(END_SEND)
        REPLACED(FOR_ITER)
        REPLACED(JUMP_BACKWARD)
        REPLACED(JUMP_FORWARD)
        REPLACED(LOAD_SUPER_ATTR)
        REPLACED(POP_JUMP_IF_FALSE)
        REPLACED(POP_JUMP_IF_NONE)
        REPLACED(POP_JUMP_IF_NOT_NONE)
        REPLACED(POP_JUMP_IF_TRUE)
        REPLACED(RESUME)
        REPLACED(RETURN_CONST)
        REPLACED(RETURN_VALUE)
        REPLACED(YIELD_VALUE)
#if MST_IS_313
        REPLACED(CALL_KW)
#endif
#undef REPLACED
    default:
        return opcode;
    }
}
#endif

bool mst_instruction_read(const PyCodeObject *code, ptrdiff_t begin, struct mst_instruction *found)
{
    const uint8_t *bytes = (const uint8_t *)_PyCode_CODE(code);
    ptrdiff_t count = Py_SIZE(code);
    *found = (struct mst_instruction){.begin = begin};
    for (ptrdiff_t unit = begin; unit < count; unit++) {
        int opcode = _PyOpcode_Deopt[without_instrumentation(code, unit, bytes[2 * unit])];
        found->argument = found->argument << 8 | bytes[2 * unit + 1];
        if (opcode == EXTENDED_ARG)
            continue;
        found->opcode = opcode;
        found->unit = unit;
        found->after = unit + 1 + _PyOpcode_Caches[opcode];
#if MST_IS_313
        return opcode != ENTER_EXECUTOR; /* compiled code, whose original opcode is elsewhere */
#else
        return true;
#endif
    }
    return false;
}

/* ---- names ---- */

enum mst_role mst_role_of(int opcode)
{
    switch (opcode) {
    case NOP:
        return MST_NO_OPERATION;
    case LOAD_FAST:
    case LOAD_GLOBAL:
    case LOAD_NAME:
    case LOAD_DEREF:
#if MST_IS_311
    case LOAD_CLASSDEREF:
#else
    case LOAD_FAST_CHECK:
    case LOAD_FROM_DICT_OR_GLOBALS:
    case LOAD_FROM_DICT_OR_DEREF:
#endif
        return MST_LOAD;
#if MST_IS_313
    case LOAD_FAST_LOAD_FAST:
    case STORE_FAST_LOAD_FAST:
        return MST_LOAD_SECOND;
    case PUSH_NULL:
        return MST_NULL_AFTER;
    case CALL_KW:
        return MST_CALLING;
#endif
#if MST_IS_311
    case LOAD_METHOD:
    case PRECALL:
        return opcode == PRECALL ? MST_CALLING : MST_ATTRIBUTE;
#else
    case LOAD_SUPER_ATTR:
        return MST_SUPER_ATTRIBUTE;
#endif
    case LOAD_ATTR:
        return MST_ATTRIBUTE;
#if !MST_IS_313
    case KW_NAMES:
#endif
    case LOAD_CONST:
        return MST_CONSTANT;
    case CALL:
    case CALL_FUNCTION_EX:
        return MST_CALLING;
    default:
        return MST_OTHER;
    }
}

PyObject *mst_loaded_name(const PyCodeObject *code, const struct mst_instruction *at)
{
    PyObject *names = code->co_names;
    uint32_t index = at->argument;
    switch (at->opcode) {
    case LOAD_GLOBAL:
        index >>= 1;
        break;
    case LOAD_ATTR:
        index >>= MST_IS_311 ? 0 : 1;
        break;
#if !MST_IS_311
    case LOAD_SUPER_ATTR:
        index >>= 2;
        break;
    case LOAD_FAST_CHECK:
    case LOAD_FROM_DICT_OR_DEREF:
#else
    case LOAD_CLASSDEREF:
#endif
    case LOAD_FAST:
    case LOAD_DEREF:
        names = code->co_localsplusnames;
        break;
#if MST_IS_313
    case LOAD_FAST_LOAD_FAST:
    case STORE_FAST_LOAD_FAST:
        names = code->co_localsplusnames;
        index &= 15;
        break;
#endif
    default:
        break;
    }
    return index < (size_t)PyTuple_GET_SIZE(names) ? PyTuple_GET_ITEM(names, (Py_ssize_t)index) : NULL;
}

/* ---- operators ---- */

static const char *arithmetic_name(uint32_t argument)
{
    static const char *const names[] = {
        [NB_ADD] = "add",
        [NB_AND] = "and",
        [NB_FLOOR_DIVIDE] = "floordiv",
        [NB_LSHIFT] = "lshift",
        [NB_MATRIX_MULTIPLY] = "matmul",
        [NB_MULTIPLY] = "mul",
        [NB_REMAINDER] = "mod",
        [NB_OR] = "or",
        [NB_POWER] = "pow",
        [NB_RSHIFT] = "rshift",
        [NB_SUBTRACT] = "sub",
        [NB_TRUE_DIVIDE] = "div",
        [NB_XOR] = "xor",
        [NB_INPLACE_ADD] = "iadd",
        [NB_INPLACE_AND] = "iand",
        [NB_INPLACE_FLOOR_DIVIDE] = "ifloordiv",
        [NB_INPLACE_LSHIFT] = "ilshift",
        [NB_INPLACE_MATRIX_MULTIPLY] = "imatmul",
        [NB_INPLACE_MULTIPLY] = "imul",
        [NB_INPLACE_REMAINDER] = "imod",
        [NB_INPLACE_OR] = "ior",
        [NB_INPLACE_POWER] = "ipow",
        [NB_INPLACE_RSHIFT] = "irshift",
        [NB_INPLACE_SUBTRACT] = "isub",
        [NB_INPLACE_TRUE_DIVIDE] = "idiv",
        [NB_INPLACE_XOR] = "ixor",
    };
    return argument < sizeof names / sizeof *names ? names[argument] : NULL;
}

static const char *comparison_name(uint32_t argument)
{
    static const char *const names[] = {"lt", "le", "eq", "ne", "gt", "ge"};
    uint32_t index = argument >> (MST_IS_311 ? 0 : MST_IS_313 ? 5 : 4);
    return index < sizeof names / sizeof *names ? names[index] : NULL;
}

const char *mst_operator_method(const struct mst_instruction *at)
{
    switch (at->opcode) {
    case BINARY_OP:
        return arithmetic_name(at->argument);
    case COMPARE_OP:
        return comparison_name(at->argument);
    case BINARY_SUBSCR:
#if !MST_IS_311
    case BINARY_SLICE:
#endif
        return "getitem";
    case STORE_SUBSCR:
#if !MST_IS_311
    case STORE_SLICE:
#endif
        return "setitem";
    case DELETE_SUBSCR:
        return "delitem";
    case UNARY_NEGATIVE:
        return "neg";
    case UNARY_INVERT:
        return "invert";
#if MST_IS_311
    case UNARY_POSITIVE:
        return "pos";
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
#else
    case CALL_INTRINSIC_1: {
        enum { UNARY_PLUS = 5 };
        return at->argument == UNARY_PLUS ? "pos" : NULL;
    }
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
#endif
#if MST_IS_313
    case TO_BOOL:
#endif
    case UNARY_NOT:
        return "bool";
    case CONTAINS_OP:
        return "contains";
    case FOR_ITER:
        return "next";
    case GET_ITER:
    case UNPACK_SEQUENCE:
    case UNPACK_EX:
    case LIST_EXTEND:
        return "iter";
#if MST_IS_313
    case FORMAT_SIMPLE:
    case FORMAT_WITH_SPEC:
#else
    case FORMAT_VALUE:
#endif
        return "format";
    case STORE_ATTR:
        return "setattr";
    case DELETE_ATTR:
        return "delattr";
    case IMPORT_NAME:
        return "import";
    case BEFORE_WITH:
        return "enter";
    case WITH_EXCEPT_START:
        return "exit";
    default:
        return NULL;
    }
}

#else

typedef int mst_no_opcodes; /* a file must not be empty */

#endif
