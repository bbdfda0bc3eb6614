/* format.c - checksums, and the headers of a capture and its chunks. */
#include "core/capture/format.h"

#include <pthread.h>

/* crc_table[k][b] is what byte b contributes to the checksum when k bytes follow it. Eight lookups therefore add
 * eight bytes at once. */
static uint32_t crc_table[8][256];
static pthread_once_t crc_table_filled = PTHREAD_ONCE_INIT;

static void fill_crc_table(void)
{
    const uint32_t polynomial = 0x82F63B78u;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        crc_table[0][byte] = crc;
    }
    for (int after = 1; after < 8; after++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc_table[after][byte] = crc_table[after - 1][byte] >> 8 ^ crc_table[0][crc_table[after - 1][byte] & 0xFF];
}

static uint32_t add_eight_bytes(uint32_t crc, const uint8_t *at)
{
    uint32_t low = crc ^ ms__u32(at), high = ms__u32(at + 4);
    return crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
           crc_table[4][low >> 24] ^ crc_table[3][high & 0xFF] ^ crc_table[2][high >> 8 & 0xFF] ^
           crc_table[1][high >> 16 & 0xFF] ^ crc_table[0][high >> 24];
}

uint32_t ms__crc32c(uint32_t crc, const void *bytes, size_t count)
{
    pthread_once(&crc_table_filled, fill_crc_table);
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; count >= 8; count -= 8, at += 8)
        crc = add_eight_bytes(crc, at);
    for (; count; count--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xFF];
    return ~crc;
}

void ms__head_put(uint8_t out[MS__CHUNK_HEAD], const struct ms__chunk_head *head)
{
    uint8_t *at = ms__put_u32(out, MS__CHUNK_MAGIC);
    at = ms__put_u32(at, head->kind);
    at = ms__put_u32(at, head->size);
    at = ms__put_u32(at, head->crc);
    at = ms__put_u64(at, head->event);
    at = ms__put_u64(at, head->time);
    at = ms__put_u64(at, head->oldest_claimed);
    at = ms__put_u32(at, head->events);
    ms__put_u32(at, ms__crc32c(0, out, MS__CHUNK_HEAD - 4));
}

bool ms__head_get(const uint8_t bytes[MS__CHUNK_HEAD], struct ms__chunk_head *head)
{
    if (ms__u32(bytes) != MS__CHUNK_MAGIC || ms__u32(bytes + 44) != ms__crc32c(0, bytes, MS__CHUNK_HEAD - 4))
        return false;
    *head = (struct ms__chunk_head){
        .kind = ms__u32(bytes + 4),
        .size = ms__u32(bytes + 8),
        .crc = ms__u32(bytes + 12),
        .event = ms__u64(bytes + 16),
        .time = ms__u64(bytes + 24),
        .oldest_claimed = ms__u64(bytes + 32),
        .events = ms__u32(bytes + 40),
    };
    return true;
}

static const uint8_t file_magic[8] = {'M', 'O', 'D', 'S', 'C', 'O', 'P', 'E'};

void ms__file_head_put(uint8_t out[MS__FILE_HEAD])
{
    memcpy(out, file_magic, sizeof file_magic);
    ms__put_u16(out + 8, MS__FILE_MAJOR);
    ms__put_u16(out + 10, MS__FILE_MINOR);
    ms__put_u32(out + 12, 0);
}

int ms__file_head_check(const uint8_t bytes[MS__FILE_HEAD])
{
    if (memcmp(bytes, file_magic, sizeof file_magic) != 0)
        return MS_EFORMAT;
    uint16_t major = ms__u16(bytes + 8);
    if (major > MS__FILE_MAJOR)
        return MS_ENEWER;
    return major == MS__FILE_MAJOR ? MS_OK : MS_EFORMAT;
}
