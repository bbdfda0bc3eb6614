/* source_file.c - what a source file was like when the program ran, so that it is known later whether it has changed.
 * Writing and reading share it. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/format.h"
#include "core/system.h"

#include <fcntl.h>
#include <unistd.h>

/* What has more bytes is no source text that anyone wrote. */
enum { SOURCE_MAX = 16 << 20 };

static bool read_checksum(int fd, ms_source *source)
{
    uint8_t bytes[16384];
    ssize_t count = 0;
    source->bytes = 0;
    source->checksum = 0;
    while (source->bytes <= SOURCE_MAX && (count = read(fd, bytes, sizeof bytes)) > 0) {
        source->bytes += (uint64_t)count;
        source->checksum = ms__crc32c(source->checksum, bytes, (size_t)count);
    }
    return count == 0;
}

bool ms_source_read(const char *file, ms_source *source)
{
    struct stat found;
    if (file[0] == '<' || stat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > SOURCE_MAX)
        return false;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* it may be a FIFO by now */
    if (fd < 0)
        return false;
    *source = (ms_source){.file = file};
    source->modified = ms__modified(&found);
    bool is_read = read_checksum(fd, source);
    close(fd);
    return is_read;
}
