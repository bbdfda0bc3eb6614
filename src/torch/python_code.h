/* python_code.h - code objects, read without the GIL: their texts, the position of an instruction, and what it calls.
 *
 * What is read here never changes as long as the code object lives, except that the interpreter replaces opcodes by
 * equivalent ones. No reference count is touched, and nothing is allocated. */
#ifndef MST_PYTHON_CODE_H
#define MST_PYTHON_CODE_H

#include "torch/state.h"

enum { MST_CODE_TEXT = 4096 }; /* bytes; longer names are cut off */
struct mst_code_texts {
    char file[MST_CODE_TEXT], function[MST_CODE_TEXT], called[MST_CODE_TEXT];
};

/* The file of a code object as UTF-8. Returns `text`. */
const char *mst_code_file(const PyCodeObject *code, char text[MST_CODE_TEXT]);
/* Fill in a frame's texts, which will be in `texts`, its position, and what the instruction calls. */
void mst_code_describe(const PyCodeObject *code, const void *instruction, struct mst_code_texts *texts,
                       ms_frame *frame);
/* Whether this is the qualified name of the code's function. */
bool mst_code_is_function(const PyCodeObject *code, const char *name);
/* The code's first instruction at which a frame counts as begun. */
const void *mst_code_first_instruction(const PyCodeObject *code);
enum { MST_CODE_UNIT = 2 }; /* bytes; Py_SIZE of a code object counts units */
/* The instruction at an offset in bytes, as co_code and dis count them. */
const void *mst_code_instruction(const PyCodeObject *code, ptrdiff_t offset);

/* ---- for the files that know how this Python keeps code objects ---- */

/* Copy a str, whose letters never change, as UTF-8, as far as there is room. Returns how many bytes that are; a 0 byte
 * follows them. */
size_t mst_text_copy(PyObject *string, char *text, size_t room);

/* The table of positions, read from its begin. A code unit is two bytes of bytecode. */
struct mst_positions {
    const uint8_t *at, *end;
    int line;        /* of the latest entry that has one */
    ptrdiff_t units; /* that the entries so far are for */
    ms_frame found;  /* the position of the latest entry */
};
struct mst_positions mst_positions_begin(const PyCodeObject *code);
void mst_positions_seek(struct mst_positions *positions, ptrdiff_t unit);

/* What the instruction in this unit calls: the function as it is written there ("torch.relu", "self.norm"), or the
 * operator's name ("matmul", "getitem"). `position`: its position. False: it is not known. */
bool mst_code_called(const PyCodeObject *code, ptrdiff_t unit, const ms_frame *position, char text[MST_CODE_TEXT]);

#endif
