/* pickle.h - Python's pickle, protocol 4, as it grows: the few opcodes that torch's own viewer reads, too. */
#ifndef MS_EXPORT_PICKLE_H
#define MS_EXPORT_PICKLE_H

#include "export/sink.h"

enum {
    MSE_PROTO = 0x80,
    MSE_STOP = '.',
    MSE_MARK = '(',
    MSE_DICT = '}',    /* an empty one */
    MSE_LIST = ']',    /* an empty one */
    MSE_ITEMS = 'u',   /* what was put since the mark goes into the dict before it... */
    MSE_APPENDS = 'e', /* ...or the list */
    MSE_PAIR = 0x86,
    MSE_FALSE = 0x89,
};

typedef struct mse_pickle {
    mse_sink sink;
    uint32_t kept; /* things that can be put again */
} mse_pickle;

static inline void mse_pickle_op(mse_pickle *pickle, uint8_t op)
{
    mse_put_byte(&pickle->sink, op);
}

void mse_pickle_number(mse_pickle *pickle, uint64_t number);
void mse_pickle_text(mse_pickle *pickle, mse_text text);
/* What was put last can be put again by this number. */
uint32_t mse_pickle_keep(mse_pickle *pickle);
void mse_pickle_again(mse_pickle *pickle, uint32_t kept);

#endif
