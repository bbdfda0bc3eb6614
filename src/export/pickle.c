/* pickle.c - Python's pickle, protocol 4. */
#include "export/pickle.h"

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

/* Little-endian, so many bytes. */
static void put_bytes(mse_pickle *pickle, uint8_t op, uint64_t number, int count)
{
    uint8_t *to = mse_room(&pickle->sink);
    *to++ = op;
    for (; count; count--, number >>= 8)
        *to++ = (uint8_t)number;
    pickle->sink.at = to;
}

/* The highest bit is the sign: a byte more where it is set. */
static void put_long(mse_pickle *pickle, uint64_t number)
{
    uint8_t *length = mse_room(&pickle->sink) + 1;
    put_bytes(pickle, LONG1, 0, 1);
    for (; number; number >>= 8) {
        *pickle->sink.at++ = (uint8_t)number;
        if (number < 0x100 && number >= 0x80)
            *pickle->sink.at++ = 0;
    }
    *length = (uint8_t)(pickle->sink.at - length - 1);
}

void mse_pickle_number(mse_pickle *pickle, uint64_t number)
{
    if (number <= UINT8_MAX)
        put_bytes(pickle, BININT1, number, 1);
    else if (number <= UINT16_MAX)
        put_bytes(pickle, BININT2, number, 2);
    else if (number <= INT32_MAX)
        put_bytes(pickle, BININT, number, 4);
    else
        put_long(pickle, number);
}

void mse_pickle_text(mse_pickle *pickle, mse_text text)
{
    if (text.size <= UINT8_MAX)
        put_bytes(pickle, SHORT_BINUNICODE, text.size, 1);
    else
        put_bytes(pickle, BINUNICODE, text.size, 4);
    mse_put_text(&pickle->sink, text);
}

uint32_t mse_pickle_keep(mse_pickle *pickle)
{
    mse_put_byte(&pickle->sink, MEMOIZE);
    return pickle->kept++;
}

void mse_pickle_again(mse_pickle *pickle, uint32_t kept)
{
    put_bytes(pickle, kept <= UINT8_MAX ? BINGET : LONG_BINGET, kept, kept <= UINT8_MAX ? 1 : 4);
}
