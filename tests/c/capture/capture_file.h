/* capture_file.h - a capture made by hand, after docs/capture-format.md and nothing else: it shares no
 * code with the writer or the reader. */
#ifndef MS_TEST_CAPTURE_FILE_H
#define MS_TEST_CAPTURE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INFO = 1, NAMES, DEVICES, KEY, EVENTS, END };

struct file {
    uint8_t *bytes;
    size_t count, room;
    size_t chunk;         /* where the open chunk begins; 0: none is open */
    uint64_t event, time; /* the next event's number, the last one's time */
    uint64_t later;       /* microseconds to the next event */
    uint32_t events;      /* in the open chunk */
    uint64_t oldest;
    uint32_t slot, device, path; /* the latest in the open chunk */
};

/* An empty file, and a file with a header only. */
void file_open(struct file *file);
void file_begin(struct file *file);
void file_free(struct file *file);
/* Bytes at the end. */
void file_byte(struct file *file, uint8_t byte);
void file_u32(struct file *file, uint32_t value);
void file_varint(struct file *file, uint64_t value);
void file_zigzag(struct file *file, int64_t value);
void file_string(struct file *file, const char *text);
void file_append(struct file *file, const void *bytes, size_t count);
/* A chunk of this kind begins; its header is written when it is closed. */
void file_chunk(struct file *file, uint32_t kind);
void file_close(struct file *file);
/* Correct the checksums of the chunk that begins here. */
void file_sign(uint8_t *bytes, size_t count, size_t chunk);
/* The capture in a file of its own, to be closed. */
int file_fd(const struct file *file);

/* Whole chunks. The strings end with NULL. */
void file_pairs(struct file *file, uint32_t kind, const char *const *strings);
void file_devices(struct file *file, const char *const *names);
/* Names from path `first` on, each in MS_GLOBAL. */
void file_names(struct file *file, uint32_t first, const char *const *names);

struct file_key { /* the numbers with which a key frame begins */
    uint64_t step, optimizer_steps, lost;
};
/* A key frame in parts: threads, devices and blocks are counted by the caller. */
void file_key_begin(struct file *file, struct file_key key);
/* A key frame without threads, devices and blocks. */
void file_key_empty(struct file *file);

/* Events, in an open chunk. */
void file_op(struct file *file, uint8_t first);
void file_add(struct file *file, uint32_t slot, uint64_t bytes, uint32_t device);
void file_add_as(struct file *file, uint32_t slot, uint64_t bytes, uint32_t device, uint8_t what, uint32_t path);
void file_drop(struct file *file, uint32_t slot);
void file_claim(struct file *file, uint32_t slot, uint8_t category, uint32_t path, uint64_t since_event,
                bool from_now_on);
void file_position(struct file *file, uint8_t phase, uint32_t path);
void file_thread(struct file *file, uint32_t number);
void file_thread_new(struct file *file, uint32_t number, uint64_t id);
void file_step(struct file *file, uint64_t number);
void file_optimizer_step(struct file *file);
void file_reserved(struct file *file, uint32_t device, uint64_t bytes);
void file_oom(struct file *file, uint32_t device, uint64_t asked, uint64_t allocated, uint64_t reserved);

#endif
