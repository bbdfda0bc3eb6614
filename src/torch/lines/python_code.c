/* python_code.c - the texts and the positions of a code object, read without the GIL. It is one of three files that
 * know how this Python keeps frames and code objects; the others are python_frames.c and python_called.c. */
#define Py_BUILD_CORE 1 /* for the internal headers */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define CODE_IS_KNOWN 1
#include "internal/pycore_code.h"
#else
#define CODE_IS_KNOWN 0
#endif

#include "torch/lines/lines.h"

#include <string.h>

/* ---- texts ---- */

static char *put_utf8(char *at, uint32_t letter)
{
    if (letter < 0x80) {
        *at++ = (char)letter;
    } else if (letter < 0x800) {
        *at++ = (char)(0xC0 | letter >> 6);
        *at++ = (char)(0x80 | (letter & 0x3F));
    } else if (letter < 0x10000) {
        *at++ = (char)(0xE0 | letter >> 12);
        *at++ = (char)(0x80 | (letter >> 6 & 0x3F));
        *at++ = (char)(0x80 | (letter & 0x3F));
    } else {
        *at++ = (char)(0xF0 | letter >> 18);
        *at++ = (char)(0x80 | (letter >> 12 & 0x3F));
        *at++ = (char)(0x80 | (letter >> 6 & 0x3F));
        *at++ = (char)(0x80 | (letter & 0x3F));
    }
    return at;
}

/* A letter that UTF-8 cannot express is part of a file's name that is not UTF-8 (surrogateescape). */
static uint32_t printable(uint32_t letter)
{
    bool is_surrogate = letter >= 0xD800 && letter < 0xE000;
    return is_surrogate || !letter ? '?' : letter;
}

size_t mst_text_copy(PyObject *string, char *text, size_t room)
{
    enum { LONGEST_LETTER = 4 };
    char *at = text, *end = text + (room > LONGEST_LETTER ? room - LONGEST_LETTER : 0);
    Py_ssize_t length = PyUnicode_GET_LENGTH(string);
    int kind = (int)PyUnicode_KIND(string);
    const void *letters = PyUnicode_DATA(string);
    for (Py_ssize_t i = 0; i < length && at < end; i++)
        at = put_utf8(at, printable(PyUnicode_READ(kind, letters, i)));
    *at = '\0';
    return (size_t)(at - text);
}

static const char *copy_text(PyObject *string, char text[MST_CODE_TEXT])
{
    mst_text_copy(string, text, MST_CODE_TEXT);
    return text;
}

const char *mst_code_file(const PyCodeObject *code, char text[MST_CODE_TEXT])
{
    return copy_text(code->co_filename, text);
}

bool mst_code_is_function(const PyCodeObject *code, const char *name)
{
    char text[MST_CODE_TEXT];
    return (size_t)PyUnicode_GET_LENGTH(code->co_qualname) == strlen(name) &&
           strcmp(copy_text(code->co_qualname, text), name) == 0;
}

/* ---- positions: the location table of a code object, as CPython's Objects/locations.md describes it ---- */

/* An entry's first byte: bits 3 to 6 are its form, bits 0 to 2 how many code units it is for, less 1. */
enum { SHORT_FORMS = 10, ONE_LINE = 10, NO_COLUMNS = 13, LONG = 14, NO_LOCATION = 15 };

static unsigned read_number(const uint8_t **at, const uint8_t *end)
{
    unsigned value = 0, shift = 0;
    while (*at < end) {
        uint8_t byte = *(*at)++;
        value |= (byte & 0x3Fu) << shift;
        shift += 6;
        if (!(byte & 0x40) || shift > 24)
            break;
    }
    return value;
}

static int read_signed(const uint8_t **at, const uint8_t *end)
{
    unsigned value = read_number(at, end);
    return value & 1 ? -(int)(value >> 1) : (int)(value >> 1);
}

static uint8_t read_byte(const uint8_t **at, const uint8_t *end)
{
    return *at < end ? *(*at)++ : 0;
}

/* Read an entry after its first byte. `*line` is that of the entry before; it becomes this entry's. */
static void read_entry(const uint8_t **at, const uint8_t *end, unsigned form, int *line, ms_frame *frame)
{
    frame->end_line = frame->column = frame->end_column = 0;
    if (form < SHORT_FORMS) {
        uint8_t byte = read_byte(at, end);
        frame->column = form * 8 + (byte >> 4 & 7);
        frame->end_column = frame->column + (byte & 15);
        frame->end_line = (uint32_t)*line;
    } else if (form < NO_COLUMNS) {
        *line += (int)form - ONE_LINE;
        frame->column = read_byte(at, end);
        frame->end_column = read_byte(at, end);
        frame->end_line = (uint32_t)*line;
    } else if (form == NO_COLUMNS) {
        *line += read_signed(at, end);
    } else if (form == LONG) {
        *line += read_signed(at, end);
        unsigned lines = read_number(at, end), column = read_number(at, end), end_column = read_number(at, end);
        if (column && end_column) { /* 0: not known */
            frame->end_line = (uint32_t)*line + lines;
            frame->column = column - 1;
            frame->end_column = end_column - 1;
        }
    }
    frame->line = form == NO_LOCATION ? 0 : (uint32_t)*line;
}

/* Go on to the entry of this code unit, which is not before the latest one. */
void mst_positions_seek(struct mst_positions *positions, ptrdiff_t unit)
{
    while (positions->at < positions->end && positions->units <= unit) {
        uint8_t first = *positions->at++;
        read_entry(&positions->at, positions->end, first >> 3 & 15, &positions->line, &positions->found);
        positions->units += (first & 7) + 1;
    }
}

#if CODE_IS_KNOWN

struct mst_positions mst_positions_begin(const PyCodeObject *code)
{
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(code->co_linetable);
    return (struct mst_positions){
        .at = bytes, .end = bytes + PyBytes_GET_SIZE(code->co_linetable), .line = code->co_firstlineno};
}

static void find_position(const PyCodeObject *code, ptrdiff_t unit, ms_frame *frame)
{
    if (unit < 0) { /* as PyCode_Addr2Line: before the first instruction */
        frame->line = (uint32_t)code->co_firstlineno;
        return;
    }
    struct mst_positions positions = mst_positions_begin(code);
    mst_positions_seek(&positions, unit);
    frame->line = positions.found.line;
    frame->end_line = positions.found.end_line;
    frame->column = positions.found.column;
    frame->end_column = positions.found.end_column;
}

void mst_code_describe(const PyCodeObject *code, const void *instruction, struct mst_code_texts *texts, ms_frame *frame)
{
    ptrdiff_t unit = (const _Py_CODEUNIT *)instruction - _PyCode_CODE(code);
    *frame = (ms_frame){.file = copy_text(code->co_filename, texts->file),
                        .function = copy_text(code->co_qualname, texts->function)};
    find_position(code, unit, frame);
    frame->called = mst_code_called(code, unit, frame, texts->called) ? texts->called : NULL;
}

const void *mst_code_first_instruction(const PyCodeObject *code)
{
    return _PyCode_CODE(code) + code->_co_firsttraceable;
}

const void *mst_code_instruction(const PyCodeObject *code, ptrdiff_t offset)
{
    return (const char *)_PyCode_CODE(code) + offset;
}

#else

void mst_code_describe(const PyCodeObject *code, const void *instruction, struct mst_code_texts *texts, ms_frame *frame)
{
    (void)instruction;
    *frame = (ms_frame){.file = copy_text(code->co_filename, texts->file),
                        .function = copy_text(code->co_qualname, texts->function)};
}

const void *mst_code_first_instruction(const PyCodeObject *code)
{
    return code;
}

const void *mst_code_instruction(const PyCodeObject *code, ptrdiff_t offset)
{
    (void)offset;
    return code;
}

#endif
