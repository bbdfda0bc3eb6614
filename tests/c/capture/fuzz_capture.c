/* fuzz_capture.c - any bytes, as a capture. In half of the cases the checksums are made right first:
 * a program that wants to mislead can do so too. */
#define _GNU_SOURCE /* memfd_create */
#include "capture_exercise.h"
#include "capture_file.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 1 << 16 };

/* Of every chunk that a reader would find. */
static void sign_all(uint8_t *bytes, size_t count)
{
    for (size_t at = 16; at + 48 <= count;) {
        uint32_t size;
        memcpy(&size, bytes + at + 8, 4);
        bool chunk = memcmp(bytes + at, "CHNK", 4) == 0;
        if (chunk)
            file_sign(bytes, count, at);
        at += chunk && size <= count - at - 48 ? 48 + size : 1;
    }
}

static int fd_of(const uint8_t *bytes, size_t count)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes, count, 0) != (ssize_t)count)
        abort();
    return fd;
}

/* Bytes 12 and 13, which no reader looks at, say what goes on: whether checksums are made right, which allocation is
 * refused, and where to look. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static uint8_t copy[MOST];
    if (count > MOST)
        return 0;
    uint8_t how = count > 12 ? bytes[12] : 0, seed = count > 13 ? bytes[13] : 0;
    memcpy(copy, bytes, count);
    if (how & 1) {
        memcpy(copy, "MODSCOPE\1\0\0\0", count < 12 ? count : 12);
        sign_all(copy, count);
    }
    struct heap heap = {.refuse_at = how & 2 ? 1 + seed % 32 : 0, .forever = how & 4};
    const char *wrong = capture_exercise(fd_of(copy, count), seed, &heap);
    if (wrong)
        fuzz_fail(wrong);
    return 0;
}
