/* pickle.h - writes Python's pickle format, protocol 4, with the few opcodes that torch's own viewer supports. */
#ifndef MS_EXPORT_PICKLE_H
#define MS_EXPORT_PICKLE_H

#include "export/output.h"

enum {
    MSE_PROTO = 0x80,
    MSE_STOP = '.',
    MSE_MARK = '(',
    MSE_DICT = '}',    /* an empty one */
    MSE_LIST = ']',    /* an empty one */
    MSE_ITEMS = 'u',   /* add what was put since the mark to the dict before it... */
    MSE_APPENDS = 'e', /* ...or the list */
    MSE_PAIR = 0x86,
    MSE_FALSE = 0x89,
};

typedef struct mse_pickle {
    mse_output output;
    uint32_t memo_count;
} mse_pickle;

static inline void mse_pickle_op(mse_pickle *pickle, uint8_t op)
{
    mse_put_byte(&pickle->output, op);
}

void mse_pickle_number(mse_pickle *pickle, uint64_t number);
void mse_pickle_text(mse_pickle *pickle, mse_text text);
/* Memoize what was put last; the number returned puts it again by mse_pickle_get. */
uint32_t mse_pickle_memoize(mse_pickle *pickle);
void mse_pickle_get(mse_pickle *pickle, uint32_t memo_index);

#endif
