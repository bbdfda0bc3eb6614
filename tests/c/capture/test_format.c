/* test_format.c - the numbers and headers of a capture, written and read back. */
#include "core/capture/format.h"
#include "random.h"
#include "runner.h"

static const uint64_t numbers[] = {
    0, 1, 127, 128, 16383, 16384, UINT32_MAX, (uint64_t)UINT32_MAX + 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX,
};

TEST(a_varint_is_read_as_it_was_written_and_not_if_it_is_cut_off)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint8_t bytes[MS__VARINT_MAX];
        const uint8_t *end = ms__put_varint(bytes, numbers[i]);
        CHECK_EQ(end - bytes, ms__varint_size(numbers[i]));
        struct ms__bytes in = {.at = bytes, .end = end};
        CHECK(ms__get_varint(&in) == numbers[i] && !in.bad && in.at == end);
        in = (struct ms__bytes){.at = bytes, .end = end - 1};
        CHECK(ms__get_varint(&in) == 0 && in.bad);
        CHECK(ms__get_varint(&in) == 0 && ms__get_byte(&in) == 0 && !ms__get_bytes(&in, 0));
    }
}

TEST(a_varint_of_more_than_64_bits_is_none)
{
    uint8_t bytes[12] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1};
    struct ms__bytes in = {.at = bytes, .end = bytes + 10};
    CHECK(ms__get_varint(&in) == UINT64_MAX && !in.bad);
    bytes[9] = 2;
    in = (struct ms__bytes){.at = bytes, .end = bytes + 10};
    CHECK(ms__get_varint(&in) == 0 && in.bad);
    bytes[9] = 0x80;
    in = (struct ms__bytes){.at = bytes, .end = bytes + 12};
    CHECK(ms__get_varint(&in) == 0 && in.bad);
}

TEST(small_numbers_of_either_sign_are_small_zigzags)
{
    static const int64_t in_order[] = {0, -1, 1, -2, 2, -3, 3};
    for (size_t i = 0; i < 7; i++)
        CHECK_EQ(ms__zigzag(in_order[i]), i);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK_EQ(ms__unzigzag(ms__zigzag((int64_t)numbers[i])), (int64_t)numbers[i]);
    CHECK(ms__zigzag(INT64_MIN) == UINT64_MAX);
}

static uint32_t crc_of(const uint8_t *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

TEST(a_checksum_is_that_of_the_bits_however_it_is_cut)
{
    CHECK_EQ(ms__crc32c(0, "123456789", 9), 0xE3069283u);
    CHECK_EQ(ms__crc32c(0, "", 0), 0);
    uint8_t bytes[100];
    uint64_t random = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_next(&random);
    for (size_t from = 0; from < 9; from++)
        for (size_t count = 0; count + from <= sizeof bytes; count++) {
            uint32_t wanted = crc_of(bytes + from, count);
            CHECK_EQ(ms__crc32c(0, bytes + from, count), wanted);
            CHECK_EQ(ms__crc32c(ms__crc32c(0, bytes + from, count / 3), bytes + from + count / 3, count - count / 3),
                     wanted);
        }
}

TEST(a_header_is_read_as_it_was_written_and_not_with_a_bit_flipped)
{
    struct ms__chunk_head head = {5, 1000, 77, UINT64_C(1) << 40, 99, MS__NO_CLAIM, 12}, got;
    uint8_t bytes[MS__CHUNK_HEAD];
    ms__head_put(bytes, &head);
    CHECK(ms__head_get(bytes, &got));
    CHECK(got.kind == 5 && got.size == 1000 && got.crc == 77 && got.event == UINT64_C(1) << 40);
    CHECK(got.time == 99 && got.oldest_claimed == MS__NO_CLAIM && got.events == 12);
    CHECK(memcmp(bytes, "CHNK\5\0\0\0", 8) == 0);
    for (int bit = 0; bit < MS__CHUNK_HEAD * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!ms__head_get(bytes, &got));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
