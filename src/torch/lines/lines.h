/* lines.h - the lines of the program that make a block: Python's frames and code objects, read without the GIL. */
#ifndef MST_LINES_H
#define MST_LINES_H

#include "torch/process/process.h"

/* ---- file_owners.c: whether a source file is the program's own, a library's or Python's, torch's, or modscope's ----
 */

enum mst_owner { MST_OF_PROGRAM, MST_OF_LIBRARY, MST_OF_TORCH, MST_OF_MODSCOPE };

/* For any thread, with or without the GIL. */
enum mst_owner mst_owner_of_file(const char *file);
/* A method for Python. */
PyObject *mst_set_stack_folders(PyObject *self, PyObject *args);

/* ---- python_frames.c: the Python frames of this thread, read without the GIL ---- */

/* While a thread is inside a C function, its frames do not change, and each holds its code object. So the thread can
 * read them itself: no reference count is touched, and nothing is allocated. Only memory is read whose layout the
 * headers of this Python describe (3.11 to 3.13); the Python side verifies it at start. */

struct mst_frame {
    const void *next;        /* the frame around it, for mst_frame_read */
    PyCodeObject *code;      /* alive as long as the frame */
    const void *instruction; /* in the code object, so it identifies the code too */
    bool is_shim;            /* the interpreter's own: neither code nor instruction is set */
};

/* NULL, or why frames cannot be read in this Python. */
const char *mst_frames_unsupported(void);
/* This thread's innermost frame, for mst_frame_read; NULL: it runs no Python. */
const void *mst_frame_innermost(void);
struct mst_frame mst_frame_read(const void *frame);
/* The variables of a frame, in the order of its code's co_localsplusnames: each is borrowed, NULL or a cell. NULL: how
 * this Python keeps them is not known. */
PyObject *const *mst_frame_variables(const PyFrameObject *frame);

/* ---- python_code.c: the texts of code objects, the position of an instruction, and what it calls ---- */

/* What is read here never changes as long as the code object lives, except that the interpreter replaces opcodes by
 * equivalent ones. No reference count is touched, and nothing is allocated. */

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

/* ---- python_opcodes.c: the instructions of a code object, read without the GIL, for Python 3.11 to 3.13 ---- */
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

/* ---- generated_code.c: functions that a compiler generated, and whose code modscope was told about. No GIL needed
 * ---- */
extern _Atomic uint32_t mst_generated_count; /* how many functions are known */
bool mst_is_generated(const PyCodeObject *code);
/* The line of the program that asked for what an instruction of such a function does. False: it is not known. */
bool mst_generated_describe(const PyCodeObject *code, const void *instruction, ms_frame *frame);
/* The path that owns what this thread allocates now, by its frames; `here`, its innermost path, if that is not known.
 */
ms_path mst_generated_owner(ms_path here);
extern PyMethodDef mst_generated_code_methods[];

/* ---- freed_code.c: which code objects were freed: what is remembered by their addresses is no longer true ---- */
/* It changes whenever any code object is freed, while that is intercepted. */
extern _Atomic uint64_t mst_code_generation;

struct mst_freed_code {
    uintptr_t begin, end; /* the addresses from its first byte to the one after its last instruction */
};
enum { MST_MOST_FREED = 16 };
/* What was freed since the generation was `since`, and what it is now. False: too much to list; all code may have been.
 */
bool mst_freed_code_since(uint64_t since, uint64_t *now, struct mst_freed_code freed[MST_MOST_FREED], size_t *count);

bool mst_freed_code_intercept(void); /* false: it is not possible */
void mst_freed_code_restore(void);

/* ---- block_stacks.c: the stack that makes a block: the program's own Python frames, and in backward the node ---- */
enum { MST_MOST_FRAMES = 64 };
/* How many frames are kept for a block; 0: stacks are not read. */
extern _Atomic uint32_t mst_stack_depth;
/* The node that runs on this thread, or NULL. The interception point of nodes sets it. */
extern MST_THREAD_LOCAL const void *mst_running_node;

/* The Python frames of this thread, without node and operator. For any thread, like mst_stack_read. */
ms_stack mst_frames_stack(void);
/* The stack of this thread. It needs no GIL, and does not wait for a thread that does. */
ms_stack mst_stack_read(void);

static inline ms_stack mst_stack_here(void)
{
    return atomic_load_explicit(&mst_stack_depth, memory_order_relaxed) ? mst_stack_read() : (ms_stack)MS_STACK_NONE;
}

/* (file, function, line, end line, column, end column, what is called) of each frame, innermost first. A new list. */
PyObject *mst_stack_list(ms_stack stack);
/* From now on keep so many frames, at most MST_MOST_FRAMES. False: what must be intercepted for it cannot be. */
bool mst_stacks_start(uint32_t depth);
void mst_stacks_stop(void); /* read no more stacks, and restore what is intercepted for them */
int mst_stacks_init(void);  /* -1 with an error set */
extern PyMethodDef mst_block_stacks_methods[];

#endif
