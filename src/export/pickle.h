/* pickle.h - writes Python's pickle format, protocol 4, with the few opcodes that torch's own viewer supports. */
#ifndef MS_EXPORT_PICKLE_H
#define MS_EXPORT_PICKLE_H

#include "export/output.h"

enum {
    MS_EXPORT_PROTO = 0x80,
    MS_EXPORT_STOP = '.',
    MS_EXPORT_MARK = '(',
    MS_EXPORT_DICT = '}',    /* an empty one */
    MS_EXPORT_LIST = ']',    /* an empty one */
    MS_EXPORT_ITEMS = 'u',   /* add what was put since the mark to the dict before it... */
    MS_EXPORT_APPENDS = 'e', /* ...or the list */
    MS_EXPORT_PAIR = 0x86,
    MS_EXPORT_FALSE = 0x89,
};

typedef struct ms__export_pickle {
    ms__export_output output;
    uint32_t memo_count;
} ms__export_pickle;

static inline void ms__export_pickle_op(ms__export_pickle *pickle, uint8_t op)
{
    ms__export_put_byte(&pickle->output, op);
}

void ms__export_pickle_number(ms__export_pickle *pickle, uint64_t number);
void ms__export_pickle_text(ms__export_pickle *pickle, ms_export_text text);
/* Memoize what was put last; the number returned puts it again by ms__export_pickle_get. */
uint32_t ms__export_pickle_memoize(ms__export_pickle *pickle);
void ms__export_pickle_get(ms__export_pickle *pickle, uint32_t memo_index);

#endif
