/* capture_file.c - a capture made by hand. */
#define _GNU_SOURCE /* memfd_create */
#include "capture_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void file_append(struct file *file, const void *bytes, size_t count)
{
    while (file->count + count > file->room) {
        file->room = file->room ? file->room * 2 : 4096;
        file->bytes = realloc(file->bytes, file->room);
        if (!file->bytes)
            abort();
    }
    if (count)
        memcpy(file->bytes + file->count, bytes, count);
    file->count += count;
}

void file_byte(struct file *file, uint8_t byte)
{
    file_append(file, &byte, 1);
}

static void little(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void file_u32(struct file *file, uint32_t value)
{
    uint8_t bytes[4];
    little(bytes, value, 4);
    file_append(file, bytes, 4);
}

void file_varint(struct file *file, uint64_t value)
{
    for (; value > 127; value /= 128)
        file_byte(file, (uint8_t)(value % 128 + 128));
    file_byte(file, (uint8_t)value);
}

/* 0, -1, 1, -2... are 0, 1, 2, 3... */
void file_zigzag(struct file *file, int64_t value)
{
    file_varint(file, value < 0 ? (uint64_t) - (value + 1) * 2 + 1 : (uint64_t)value * 2);
}

void file_string(struct file *file, const char *text)
{
    file_varint(file, strlen(text));
    file_append(file, text, strlen(text));
}

/* ---- the file and its chunks ---- */
void file_open(struct file *file)
{
    *file = (struct file){0};
    file_append(file, "MODSCOPE\1\0\0\0\0\0\0\0", 16);
}

void file_begin(struct file *file)
{
    uint8_t *bytes = file->bytes;
    size_t room = file->room;
    *file = (struct file){.bytes = bytes, .room = room};
    file_append(file, "MODSCOPE\1\0\0\0\0\0\0\0", 16);
}

void file_free(struct file *file)
{
    free(file->bytes);
}

/* Bit by bit, as the polynomial says. */
static uint32_t checksum(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

void file_sign(uint8_t *bytes, size_t count, size_t chunk)
{
    uint8_t *head = bytes + chunk;
    uint32_t size = head[8] | (uint32_t)head[9] << 8 | (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24;
    if (size <= count - chunk - 48)
        little(head + 12, checksum(head + 48, size), 4);
    little(head + 44, checksum(head, 44), 4);
}

void file_chunk(struct file *file, uint32_t kind)
{
    uint8_t head[48] = {'C', 'H', 'N', 'K', (uint8_t)kind};
    little(head + 4, kind, 4);
    little(head + 16, file->event, 8);
    little(head + 24, file->time, 8);
    file->chunk = file->count;
    file_append(file, head, sizeof head);
    file->events = file->slot = file->device = file->path = 0;
    file->oldest = UINT64_MAX;
}

void file_close(struct file *file)
{
    uint8_t *head = file->bytes + file->chunk;
    little(head + 8, file->count - file->chunk - 48, 4);
    little(head + 32, file->oldest, 8);
    little(head + 40, file->events, 4);
    file_sign(file->bytes, file->count, file->chunk);
    file->chunk = 0;
}

int file_fd(const struct file *file)
{
    int fd = memfd_create("capture", 0);
    if (fd < 0 || write(fd, file->bytes, file->count) != (ssize_t)file->count)
        abort();
    return fd;
}

/* ---- metadata and key frames ---- */
void file_pairs(struct file *file, uint32_t kind, const char *const *strings)
{
    file_chunk(file, kind);
    for (; *strings; strings++)
        file_string(file, *strings);
    file_close(file);
}

void file_devices(struct file *file, const char *const *names)
{
    file_chunk(file, DEVICES);
    for (uint32_t i = 0; names[i]; i++) {
        file_varint(file, i);
        file_string(file, names[i]);
    }
    file_close(file);
}

void file_names(struct file *file, uint32_t first, const char *const *names)
{
    file_chunk(file, NAMES);
    file_varint(file, first);
    for (; *names; names++) {
        file_varint(file, 0);
        file_varint(file, 0);
        file_string(file, *names);
    }
    file_close(file);
}

void file_key_begin(struct file *file, struct file_key key)
{
    file_chunk(file, KEY);
    file_varint(file, key.step);
    file_varint(file, key.optimizer_steps);
    file_varint(file, key.lost);
}

void file_key_empty(struct file *file)
{
    file_key_begin(file, (struct file_key){0});
    for (int part = 0; part < 3; part++)
        file_varint(file, 0);
    file_close(file);
}

/* ---- events ---- */
void file_op(struct file *file, uint8_t first)
{
    file_byte(file, file->later ? first | 0x80 : first);
    if (file->later)
        file_varint(file, file->later);
    file->time += file->later;
    file->later = 0;
    file->events++;
    file->event++;
}

static void relative(struct file *file, uint32_t *latest, uint32_t value)
{
    file_zigzag(file, (int64_t)value - (int64_t)*latest);
    *latest = value;
}

static void begin_add(struct file *file, uint8_t bits, uint32_t slot, uint64_t bytes, uint32_t device)
{
    bool other = device != file->device;
    file_op(file, (uint8_t)(bits | (other ? 16 : 0)));
    relative(file, &file->slot, slot);
    file_varint(file, bytes);
    if (other)
        file_varint(file, device);
    file->device = device;
}

void file_add(struct file *file, uint32_t slot, uint64_t bytes, uint32_t device)
{
    begin_add(file, 0, slot, bytes, device);
}

void file_add_as(struct file *file, uint32_t slot, uint64_t bytes, uint32_t device, uint8_t what, uint32_t path)
{
    begin_add(file, 32, slot, bytes, device);
    file_byte(file, what);
    relative(file, &file->path, path);
}

void file_drop(struct file *file, uint32_t slot)
{
    file_op(file, 1);
    relative(file, &file->slot, slot);
}

void file_claim(struct file *file, uint32_t slot, uint8_t category, uint32_t path, uint64_t since_event,
                bool from_now_on)
{
    uint64_t number = file->event;
    file_op(file, from_now_on ? 2 | 16 : 2);
    relative(file, &file->slot, slot);
    file_byte(file, category);
    relative(file, &file->path, path);
    file_varint(file, number - since_event);
    if (!from_now_on && since_event < file->oldest)
        file->oldest = since_event;
}

void file_position(struct file *file, uint8_t phase, uint32_t path)
{
    file_op(file, (uint8_t)(3 | phase << 4));
    relative(file, &file->path, path);
}

void file_thread(struct file *file, uint32_t number)
{
    file_op(file, 4);
    file_varint(file, number);
}

void file_thread_new(struct file *file, uint32_t number, uint64_t id)
{
    file_op(file, 4 | 16);
    file_varint(file, number);
    file_varint(file, id);
}

void file_step(struct file *file, uint64_t number)
{
    file_op(file, 5);
    file_varint(file, number);
}

void file_optimizer_step(struct file *file)
{
    file_op(file, 6);
}

void file_reserved(struct file *file, uint32_t device, uint64_t bytes)
{
    file_op(file, 7);
    file_varint(file, file->device = device);
    file_varint(file, bytes);
}

void file_oom(struct file *file, uint32_t device, uint64_t asked, uint64_t allocated, uint64_t reserved)
{
    file_op(file, 8);
    file_varint(file, file->device = device);
    file_varint(file, asked);
    file_varint(file, allocated);
    file_varint(file, reserved);
}
