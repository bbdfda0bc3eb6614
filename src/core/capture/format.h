/* format.h - the bytes of a capture, as docs/capture-format.md defines them: numbers, flags and headers. The
 * writer and the reader share it. It knows nothing about files. */
#ifndef MS_FORMAT_H
#define MS_FORMAT_H

#include "core/base.h"
#include "modscope_capture.h"

#include <string.h>

/* ---- constants ---- */
#define MS__CHUNK_MAGIC 0x4B4E4843u
#define MS__NO_CLAIM UINT64_MAX /* the oldest_claimed of a chunk without retroactive claims */

enum {
    MS__FILE_MAJOR = 1,
    MS__FILE_MINOR = 7,
    MS__FILE_HEAD = 16,       /* bytes of the file's header */
    MS__CHUNK_HEAD = 48,      /* bytes of a chunk's header */
    MS__VARINT_MAX = 10,      /* bytes; no varint is longer */
    MS__EVENT_MAX = 64,       /* bytes; no event is longer */
    MS__SLOT_MAX = 0x7FFFFFFF /* the highest slot */
};

enum ms__chunk_kind {
    MS__CHUNK_INFO = 1,
    MS__CHUNK_NAMES,
    MS__CHUNK_DEVICES,
    MS__CHUNK_KEY,
    MS__CHUNK_EVENTS,
    MS__CHUNK_END,
    MS__CHUNK_NOTES,
    MS__CHUNK_TIMES,
    MS__CHUNK_COLLECTIVES,
    MS__CHUNK_STACKS,     /* the table of stacks */
    MS__CHUNK_ADD_STACKS, /* which stack made each block that the chunk of events with the same first event adds */
    MS__CHUNK_KEY_STACKS, /* the same of each block of the key frame at the same event */
    MS__CHUNK_CALLED,     /* what is called in frames of the table of stacks */
    MS__CHUNK_SOURCES,    /* the source files of the table of stacks */
    MS__CHUNK_OPERATORS,
    MS__CHUNK_MODEL_FRAMES, /* which frames of the table of stacks are of models in libraries */
    MS__CHUNK_INPUTS        /* the shapes of the inputs of root calls */
};

/* What an entry of the table of stacks is. */
enum { MS__STACK_OPERATOR, MS__STACK_FRAME, MS__STACK_NODE /* an operator whose `forward` is known */ };

/* What is called in a frame: nothing that is known, a text, or from here on the number of stacks to go back, plus this.
 */
enum { MS__CALLED_NONE, MS__CALLED_TEXT };

/* The first byte of an event: an ms_op, and flags that depend on it. */
enum {
    MS__EVENT_OP = 0x0F,
    MS__EVENT_TIMED = 0x80,
    MS__ADD_DEVICE = 0x10,
    MS__ADD_EXPLICIT = 0x20,
    MS__CLAIM_FROM_NOW_ON = 0x10,
    MS__POSITION_PHASE = 4, /* the phase is shifted by so many bits */
    MS__PHASE_MAX = 7,      /* the highest phase for which positions and attributes have room */
    MS__THREAD_NEW = 0x10
};

/* A note begins with a number: its kind in the lowest bits, and above them how many events later it is than the note
 * before. */
enum { MS__NOTE_KIND_BITS = 3, MS__NOTE_MAX = 3 * MS__VARINT_MAX };
enum { MS__TIME_MAX = 3 * MS__VARINT_MAX }; /* bytes; no time of a call is longer */
/* No operator takes more bytes, and no chunk has more names of them. */
enum { MS__OPERATOR_MAX = MS_OPERATOR_NAME_MAX + 8 * MS__VARINT_MAX, MS__OPERATOR_NAMES = 256 };
/* An input begins with what its elements are, and above these bits how many dimensions it has. No root call takes more
 * bytes, and no chunk has more lists of inputs. */
enum {
    MS__ELEMENT_BITS = 2,
    MS__INPUTS_MAX = (3 + MS_INPUTS * (1 + MS_INPUT_DIMS)) * MS__VARINT_MAX,
    MS__INPUT_LISTS = 256
};
/* A collective begins with its kind from 1 on, and below it the bits of the phase; a group has kind 0. No collective
 * and no group takes more than MS__COLLECTIVE_MAX bytes. */
enum { MS__COLLECTIVE_PHASE_BITS = 3, MS__COLLECTIVE_MAX = 320 };
/* The time of an earlier collective has the form of a collective of this kind, which earlier readers leave out. Its
 * phase is the timing, its bytes are how many collectives were launched after the one that it is about. */
enum { MS__COLLECTIVE_TIME = 31 };

static inline bool ms__note_has_value(uint32_t kind)
{
    return kind == MS_NOTE_REQUESTED || kind == MS_NOTE_STREAM || kind == MS_NOTE_SEGMENT || kind == MS_NOTE_BLOCK_KIND;
}
/* The value of MS_NOTE_BLOCK_KIND has the kind in its lowest bits. */
enum { MS__KIND_BITS = 4, MS__KIND_MASK = (1 << MS__KIND_BITS) - 1 };
_Static_assert(MS_KIND_COUNT <= MS__KIND_MASK + 1, "captures have four bits for a kind");

/* A block's category, phase and whether it is from outside, in one byte: its attributes. */
enum { MS__ATTRIBUTES_CATEGORY = 0x07, MS__ATTRIBUTES_OUTSIDE = 0x08, MS__ATTRIBUTES_PHASE = 4 };

static inline uint8_t ms__attributes(uint32_t category, bool outside, uint32_t phase)
{
    return (uint8_t)(category | (outside ? MS__ATTRIBUTES_OUTSIDE : 0u) | phase << MS__ATTRIBUTES_PHASE);
}

/* ---- numbers of fixed size, little-endian. ms__put_* return the byte after what they wrote ---- */
static inline uint8_t *ms__put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
    return at + 2;
}

static inline uint8_t *ms__put_u32(uint8_t *at, uint32_t value)
{
    return ms__put_u16(ms__put_u16(at, (uint16_t)value), (uint16_t)(value >> 16));
}

static inline uint8_t *ms__put_u64(uint8_t *at, uint64_t value)
{
    return ms__put_u32(ms__put_u32(at, (uint32_t)value), (uint32_t)(value >> 32));
}

static inline uint16_t ms__u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t ms__u32(const uint8_t *at)
{
    return ms__u16(at) | (uint32_t)ms__u16(at + 2) << 16;
}

static inline uint64_t ms__u64(const uint8_t *at)
{
    return ms__u32(at) | (uint64_t)ms__u32(at + 4) << 32;
}

/* ---- varints and zigzags. The caller provides MS__VARINT_MAX bytes ---- */
MS__INLINE uint8_t *ms__put_varint(uint8_t *at, uint64_t value)
{
    while (MS__UNLIKELY(value >= 0x80)) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static inline uint64_t ms__zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0);
}

static inline int64_t ms__unzigzag(uint64_t coded)
{
    return (int64_t)(coded >> 1 ^ (coded & 1 ? UINT64_MAX : 0));
}

MS__INLINE uint8_t *ms__put_zigzag(uint8_t *at, int64_t value)
{
    return ms__put_varint(at, ms__zigzag(value));
}

/* The number of bytes that ms__put_varint writes. */
static inline size_t ms__varint_size(uint64_t value)
{
    size_t size = 1;
    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

/* ---- reading: the bytes from `at` to `end`. A number that is cut off or has more than 64 bits sets `bad`; from then
 * on every read returns 0. A caller may therefore check `bad` once, after its last read ---- */
struct ms__bytes {
    const uint8_t *at, *end;
    bool bad;
};

static inline uint64_t ms__bytes_bad(struct ms__bytes *bytes)
{
    bytes->bad = true;
    bytes->at = bytes->end;
    return 0;
}

static inline uint8_t ms__get_byte(struct ms__bytes *bytes)
{
    return MS__LIKELY(bytes->at < bytes->end) ? *bytes->at++ : (uint8_t)ms__bytes_bad(bytes);
}

MS__INLINE uint64_t ms__get_varint(struct ms__bytes *bytes)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; bytes->at < bytes->end; shift += 7) {
        uint64_t part = *bytes->at & 0x7Fu;
        if (shift == 63 && *bytes->at > 1)
            break;
        value |= part << shift;
        if (*bytes->at++ < 0x80)
            return value;
    }
    return ms__bytes_bad(bytes);
}

MS__INLINE int64_t ms__get_zigzag(struct ms__bytes *bytes)
{
    return ms__unzigzag(ms__get_varint(bytes));
}

/* The next `size` bytes, in place; NULL if fewer are left. */
static inline const uint8_t *ms__get_bytes(struct ms__bytes *bytes, uint64_t size)
{
    if (bytes->bad || size > (uint64_t)(bytes->end - bytes->at)) {
        ms__bytes_bad(bytes);
        return NULL;
    }
    const uint8_t *at = bytes->at;
    bytes->at += size;
    return at;
}

/* ---- CRC-32C. `crc` is 0 at first; to continue, pass the result for the bytes before ---- */
uint32_t ms__crc32c(uint32_t crc, const void *bytes, size_t count);

/* ---- headers ---- */
struct ms__chunk_head {
    uint32_t kind, size, crc; /* size and crc of what follows the header */
    uint64_t event, time;     /* of its first event, or of the next event if it has none */
    uint64_t oldest_claimed;  /* the lowest since_event that a retroactive claim in it refers to, or MS__NO_CLAIM */
    uint32_t events;
};

void ms__head_put(uint8_t out[MS__CHUNK_HEAD], const struct ms__chunk_head *head);
/* False if the bytes are no header, or a damaged one. */
bool ms__head_get(const uint8_t bytes[MS__CHUNK_HEAD], struct ms__chunk_head *head);
void ms__file_head_put(uint8_t out[MS__FILE_HEAD]);
/* MS_OK, MS_EFORMAT or MS_ENEWER. */
int ms__file_head_check(const uint8_t bytes[MS__FILE_HEAD]);

#endif
