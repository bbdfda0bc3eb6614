/* python_opcodes.h - the instructions of a code object, read without the GIL, for Python 3.11 to 3.13. */
#ifndef MST_PYTHON_OPCODES_H
#define MST_PYTHON_OPCODES_H

#include "torch/python_code.h"

#define MST_IS_311 (PY_VERSION_HEX < 0x030C0000)
#define MST_IS_313 (PY_VERSION_HEX >= 0x030D0000)

struct mst_instruction {
    ptrdiff_t begin;       /* its first code unit, which may be an EXTENDED_ARG */
    ptrdiff_t unit, after; /* the unit of the opcode itself, and the first one of the next instruction */
    int opcode;            /* as the compiler wrote it */
    uint32_t argument;
};

/* False: the code ends here, or is not understood. */
bool mst_instruction_read(const PyCodeObject *code, ptrdiff_t begin, struct mst_instruction *found);

enum mst_role {
    MST_OTHER,
    MST_NO_OPERATION,
    MST_LOAD,        /* of a variable */
    MST_LOAD_SECOND, /* of two variables; its position is that of the first one */
    MST_ATTRIBUTE,   /* of what was loaded just before */
    MST_SUPER_ATTRIBUTE,
    MST_NULL_AFTER, /* PUSH_NULL after the function; its position is the function's */
    MST_CONSTANT,
    MST_CALLING
};

enum mst_role mst_role_of(int opcode);
/* The name of the variable or attribute that the instruction loads; NULL: there is none. */
PyObject *mst_loaded_name(const PyCodeObject *code, const struct mst_instruction *at);
/* The special method that the instruction calls, without its underscores; NULL: none. */
const char *mst_operator_method(const struct mst_instruction *at);

#endif
