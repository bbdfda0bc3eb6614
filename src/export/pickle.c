/* pickle.c - writes Python's pickle format. */
#include "export/torch_snapshot.h"

enum {
    BININT1 = 'K',
    BININT2 = 'M',
    BININT = 'J',
    LONG1 = 0x8a,
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE = 'X',
    MEMOIZE = 0x94,
    BINGET = 'h',
    LONG_BINGET = 'j',
};

/* Put an opcode and the lowest `count` bytes of a number, little-endian. */
static void put_op_with_bytes(ms__export_pickle *pickle, uint8_t op, uint64_t number, int count)
{
    uint8_t *to = ms__export_output_reserve(&pickle->output);
    *to++ = op;
    for (; count; count--, number >>= 8)
        *to++ = (uint8_t)number;
    pickle->output.at = to;
}

/* The highest bit of the last byte is the sign; where it would be set, a 0 byte follows. */
static void put_long(ms__export_pickle *pickle, uint64_t number)
{
    uint8_t *length = ms__export_output_reserve(&pickle->output) + 1;
    put_op_with_bytes(pickle, LONG1, 0, 1);
    for (; number; number >>= 8) {
        *pickle->output.at++ = (uint8_t)number;
        if (number < 0x100 && number >= 0x80)
            *pickle->output.at++ = 0;
    }
    *length = (uint8_t)(pickle->output.at - length - 1);
}

void ms__export_pickle_number(ms__export_pickle *pickle, uint64_t number)
{
    if (number <= UINT8_MAX)
        put_op_with_bytes(pickle, BININT1, number, 1);
    else if (number <= UINT16_MAX)
        put_op_with_bytes(pickle, BININT2, number, 2);
    else if (number <= INT32_MAX)
        put_op_with_bytes(pickle, BININT, number, 4);
    else
        put_long(pickle, number);
}

void ms__export_pickle_text(ms__export_pickle *pickle, ms_export_text text)
{
    if (text.size <= UINT8_MAX)
        put_op_with_bytes(pickle, SHORT_BINUNICODE, text.size, 1);
    else
        put_op_with_bytes(pickle, BINUNICODE, text.size, 4);
    ms__export_put_text(&pickle->output, text);
}

uint32_t ms__export_pickle_memoize(ms__export_pickle *pickle)
{
    ms__export_put_byte(&pickle->output, MEMOIZE);
    return pickle->memo_count++;
}

void ms__export_pickle_get(ms__export_pickle *pickle, uint32_t memo_index)
{
    put_op_with_bytes(pickle, memo_index <= UINT8_MAX ? BINGET : LONG_BINGET, memo_index,
                      memo_index <= UINT8_MAX ? 1 : 4);
}
