/* file_reader.c - opens the file of a capture: finds its chunks by their headers, and reads payloads.
 *
 * It does not decode events or key frames; decoder.c and key_frame_reader.c do. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/read/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- memory ---- */
void *ms__reader_alloc(const ms_reader *reader, size_t bytes)
{
    return reader->memory.alloc ? reader->memory.alloc(reader->memory.context, bytes) : malloc(bytes);
}

void ms__reader_free(const ms_reader *reader, void *memory)
{
    if (!memory)
        return;
    if (reader->memory.free)
        reader->memory.free(reader->memory.context, memory);
    else
        free(memory);
}

void *ms__reader_grow(const ms_reader *reader, void *array, size_t *room, size_t count, size_t size)
{
    if (MS__LIKELY(count <= *room))
        return array;
    size_t wanted = *room * 2 > count ? *room * 2 : count;
    wanted = wanted < 16 ? 16 : wanted;
    void *grown = wanted <= SIZE_MAX / size ? ms__reader_alloc(reader, wanted * size) : NULL;
    if (!grown)
        return NULL;
    if (*room)
        memcpy(grown, array, *room * size);
    ms__reader_free(reader, array);
    *room = wanted;
    return grown;
}

/* ---- bytes of the file ---- */

/* Read `count` bytes, or fewer at the end of the file. Returns how many; -1: an error, in errno. */
static ssize_t read_at(const ms_reader *reader, void *bytes, size_t count, uint64_t at)
{
    size_t done = 0;
    while (done < count) {
        ssize_t got = pread(reader->fd, (uint8_t *)bytes + done, count - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

void ms__reader_mark_damaged(ms_reader *reader, struct ms__chunk *chunk, uint64_t bytes)
{
    if (!chunk->damaged)
        reader->damaged += bytes;
    chunk->damaged = true;
}

/* Read a payload into `bytes`, and check it. MS_EIO, MS_EFORMAT. */
static int read_payload(const ms_reader *reader, uint64_t at, uint32_t size, uint32_t crc, uint8_t *bytes)
{
    ssize_t got = read_at(reader, bytes, size, at);
    if (got < 0)
        return MS_EIO;
    return (size_t)got == size && ms__crc32c(0, bytes, size) == crc ? MS_OK : MS_EFORMAT;
}

int ms__reader_read_payload(ms_reader *reader, struct ms__chunk *chunk, struct ms__buffer *buffer)
{
    uint8_t *bytes = ms__reader_grow(reader, buffer->bytes, &buffer->room, (size_t)chunk->size + 1, 1);
    if (!bytes)
        return MS_ENOMEM;
    buffer->bytes = bytes;
    int error = read_payload(reader, chunk->at, chunk->size, chunk->crc, buffer->bytes);
    if (error == MS_EFORMAT)
        ms__reader_mark_damaged(reader, chunk, (uint64_t)chunk->size + MS__CHUNK_HEAD);
    return error;
}

/* ---- chunks ---- */

/* START_BYTES hold the header of a chunk and the three numbers with which a key frame begins. */
enum { START_BYTES = MS__CHUNK_HEAD + 3 * MS__VARINT_MAX, WINDOW = 64 * 1024 };

/* Whether these bytes are a valid header, and the whole payload is in the file. */
static bool is_chunk(const ms_reader *reader, uint64_t at, const uint8_t *bytes, struct ms__chunk_head *head)
{
    return ms__head_get(bytes, head) && head->size <= reader->bytes - at - MS__CHUNK_HEAD;
}

/* Find the first chunk that begins at or after `at`; the file's size if there is none. The file is searched in windows
 * that overlap by one byte less than a header, so that a header on the border of two windows is found. */
static int find_chunk(const ms_reader *reader, uint64_t at, uint64_t *found)
{
    struct ms__chunk_head head;
    uint8_t *window = ms__reader_alloc(reader, WINDOW);
    ssize_t got = window ? 0 : -1;
    *found = reader->bytes;
    for (; window && *found == reader->bytes; at += WINDOW - MS__CHUNK_HEAD + 1) {
        got = at < reader->bytes ? read_at(reader, window, WINDOW, at) : 0;
        if (got < MS__CHUNK_HEAD)
            break;
        const uint8_t *last = window + got - MS__CHUNK_HEAD;
        for (const uint8_t *c = window; (c = memchr(c, 'C', (size_t)(last - c) + 1)) != NULL;) {
            uint64_t here = at + (uint64_t)(c - window);
            if (here + MS__CHUNK_HEAD <= reader->bytes && is_chunk(reader, here, c, &head)) {
                *found = here;
                break;
            }
            if (c++ == last)
                break;
        }
    }
    ms__reader_free(reader, window);
    return got >= 0 ? MS_OK : window ? MS_EIO : MS_ENOMEM;
}

/* Whether the last bytes of the file are the beginning of a chunk: the writer was killed, or is still writing. `bytes`:
 * as much of the header as the file has. */
static bool is_cut_off(const uint8_t *bytes, size_t count)
{
    uint8_t magic[4];
    struct ms__chunk_head head;
    ms__put_u32(magic, MS__CHUNK_MAGIC);
    if (count >= MS__CHUNK_HEAD)
        return ms__head_get(bytes, &head);
    return memcmp(bytes, magic, count < 4 ? count : 4) == 0;
}

static int keep_metadata(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    struct ms__payload *payload = ms__reader_alloc(reader, sizeof *payload + head->size);
    if (!payload)
        return MS_ENOMEM;
    int error = read_payload(reader, at, head->size, head->crc, payload->bytes);
    if (error) {
        ms__reader_free(reader, payload);
        return error;
    }
    payload->next = reader->payloads;
    reader->payloads = payload;
    reader->ended |= head->kind == MS__CHUNK_END;
    return ms__metadata_read(reader, head->kind, payload->bytes, head->size);
}

/* Read the numbers with which a key frame begins. A loss of events is recorded nowhere else, so a key frame that
 * reports a new loss is checked at once, and the others when they are loaded. */
static int check_key_frame_start(ms_reader *reader, struct ms__chunk *chunk, const uint8_t *start)
{
    uint32_t limit = START_BYTES - MS__CHUNK_HEAD;
    struct ms__bytes bytes = {.at = start, .end = start + (chunk->size < limit ? chunk->size : limit)};
    chunk->step = ms__get_varint(&bytes);
    ms__get_varint(&bytes);
    chunk->lost = ms__get_varint(&bytes);
    if (chunk->lost <= reader->lost)
        return MS_OK;
    uint8_t *payload = ms__reader_alloc(reader, chunk->size);
    int error = payload ? read_payload(reader, chunk->at, chunk->size, chunk->crc, payload) : MS_ENOMEM;
    ms__reader_free(reader, payload);
    if (!error)
        reader->lost = chunk->lost;
    return error;
}

/* Add a chunk of events, or a key frame, to the list. Event numbers only grow in a file: a chunk whose first event
 * is too low is damaged. */
static int list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head, const uint8_t *start)
{
    bool is_key_frame = head->kind == MS__CHUNK_KEY;
    uint32_t events = is_key_frame ? 0 : head->events;
    if (head->event < reader->events || head->event > UINT64_MAX - 1 - events)
        return MS_EFORMAT;
    struct ms__chunk *chunks =
        ms__reader_grow(reader, reader->chunks, &reader->room, reader->count + 1, sizeof *chunks);
    if (!chunks)
        return MS_ENOMEM;
    reader->chunks = chunks;
    struct ms__chunk chunk = {.at = at,
                              .event = head->event,
                              .time = head->time,
                              .oldest_claimed = head->oldest_claimed,
                              .size = head->size,
                              .crc = head->crc,
                              .events = events,
                              .is_key_frame = is_key_frame};
    int error = is_key_frame ? check_key_frame_start(reader, &chunk, start) : MS_OK;
    if (error)
        return error;
    reader->chunks[reader->count++] = chunk;
    reader->events = head->event + events;
    return MS_OK;
}

int ms__reader_list_chunk(ms_reader *reader, struct ms__chunk **list, size_t *count, size_t *room, uint64_t at,
                          const struct ms__chunk_head *head)
{
    struct ms__chunk *chunks = ms__reader_grow(reader, *list, room, *count + 1, sizeof *chunks);
    if (!chunks)
        return MS_ENOMEM;
    *list = chunks;
    chunks[(*count)++] =
        (struct ms__chunk){.at = at, .event = head->event, .time = head->time, .size = head->size, .crc = head->crc};
    return MS_OK;
}

static int read_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head, const uint8_t *start)
{
    int error = MS_OK;
    if (head->kind == MS__CHUNK_KEY || head->kind == MS__CHUNK_EVENTS)
        error = list_chunk(reader, at, head, start);
    else if ((head->kind >= MS__CHUNK_INFO && head->kind <= MS__CHUNK_END) || head->kind == MS__CHUNK_STACKS ||
             head->kind == MS__CHUNK_CALLED || head->kind == MS__CHUNK_SOURCES || head->kind == MS__CHUNK_MODEL_FRAMES)
        error = keep_metadata(reader, at, head);
    else if (head->kind == MS__CHUNK_NOTES)
        error = ms__notes_list_chunk(reader, at, head);
    else if (head->kind == MS__CHUNK_TIMES)
        error = ms__times_list_chunk(reader, at, head);
    else if (head->kind == MS__CHUNK_OPERATORS)
        error = ms__operators_list_chunk(reader, at, head);
    else if (head->kind == MS__CHUNK_INPUTS)
        error = ms__inputs_list_chunk(reader, at, head);
    else if (head->kind == MS__CHUNK_COLLECTIVES)
        error = ms__collectives_list_chunk(reader, at, head);
    else if (head->kind == MS__CHUNK_ADD_STACKS || head->kind == MS__CHUNK_KEY_STACKS)
        error = ms__stacks_list_chunk(reader, at, head);
    else
        return MS_OK;
    if (error == MS_OK && head->time > reader->duration)
        reader->duration = head->time;
    if (error != MS_EFORMAT)
        return error;
    reader->damaged += (uint64_t)head->size + MS__CHUNK_HEAD;
    return MS_OK;
}

static int find_chunks(ms_reader *reader)
{
    while (reader->scanned < reader->bytes) {
        uint64_t at = reader->scanned;
        uint8_t start[START_BYTES];
        memset(start, 0, sizeof start);
        ssize_t got = read_at(reader, start, START_BYTES, at);
        if (got < 0)
            return MS_EIO;
        size_t available = reader->bytes - at < (size_t)got ? (size_t)(reader->bytes - at) : (size_t)got;
        struct ms__chunk_head head;
        if (available >= MS__CHUNK_HEAD && is_chunk(reader, at, start, &head)) {
            at += MS__CHUNK_HEAD;
            int error = read_chunk(reader, at, &head, start + MS__CHUNK_HEAD);
            if (error)
                return error;
            reader->scanned = at + head.size;
            continue;
        }
        uint64_t next;
        int error = find_chunk(reader, at + 1, &next);
        if (error)
            return error;
        if (next == reader->bytes && is_cut_off(start, available))
            break;
        reader->damaged += next - at;
        reader->scanned = next;
    }
    return MS_OK;
}

int ms_reader_refresh(ms_reader *reader)
{
    struct stat found;
    if (fstat(reader->fd, &found) != 0)
        return MS_EIO;
    if ((uint64_t)found.st_size < reader->bytes)
        return MS_EFORMAT;
    reader->bytes = (uint64_t)found.st_size;
    return find_chunks(reader);
}

/* ---- opening and closing ---- */
static uint64_t make_seed(const ms_reader *reader)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uintptr_t)reader) * UINT64_C(0xD6E8FEB86659FD93);
}

static int open_file(ms_reader *reader)
{
    uint8_t head[MS__FILE_HEAD];
    ssize_t got = read_at(reader, head, sizeof head, 0);
    struct stat found;
    if (got < 0 || fstat(reader->fd, &found) != 0)
        return MS_EIO;
    if (got < MS__FILE_HEAD || found.st_size < MS__FILE_HEAD)
        return MS_EFORMAT;
    reader->bytes = (uint64_t)found.st_size;
    reader->scanned = MS__FILE_HEAD;
    int error = ms__file_head_check(head);
    return error ? error : find_chunks(reader);
}

int ms_reader_open(int fd, const ms_options *options, ms_reader **out)
{
    ms_reader empty = {.fd = fd};
    if (options)
        empty.memory = (ms_options){.alloc = options->alloc, .free = options->free, .context = options->context};
    if (!empty.memory.alloc != !empty.memory.free)
        return MS_EINVAL;
    ms_reader *reader = ms__reader_alloc(&empty, sizeof *reader);
    if (!reader)
        return MS_ENOMEM;
    *reader = empty;
    reader->seed = make_seed(reader);
    int error = open_file(reader);
    if (error) {
        ms_reader_close(reader);
        return error;
    }
    *out = reader;
    return MS_OK;
}

void ms_reader_close(ms_reader *reader)
{
    if (!reader)
        return;
    ms__metadata_free(reader);
    ms__reader_free(reader, reader->chunks);
    ms__reader_free(reader, reader->notes);
    ms__reader_free(reader, reader->times);
    ms__reader_free(reader, reader->operators);
    ms__reader_free(reader, reader->inputs);
    ms__reader_free(reader, reader->collectives);
    ms__kinds_free(reader);
    ms__reader_free(reader, reader->stack_chunks[0].at);
    ms__reader_free(reader, reader->stack_chunks[1].at);
    ms_reader last = *reader;
    ms__reader_free(&last, reader);
}

ms_reader_status ms_reader_get_status(const ms_reader *reader)
{
    return (ms_reader_status){.bytes = reader->bytes,
                              .damaged = reader->damaged,
                              .events = reader->events,
                              .lost = reader->lost,
                              .duration = reader->duration,
                              .ended = reader->ended};
}
