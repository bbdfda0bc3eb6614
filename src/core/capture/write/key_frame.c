/* key_frame.c - key frames: all that is known, so that reading can begin there. */
#include "core/capture/write/writer.h"
#include "core/ledger/block_table.h"

struct key {
    struct ms__page *page;
    uint8_t *at;
};

/* Room for `bytes` more. False when memory runs out. */
static bool key_room(ms_capture *capture, struct key *key, size_t bytes)
{
    size_t used = key->page ? (size_t)(key->at - key->page->bytes) : MS__CHUNK_HEAD;
    if (key->page && used + bytes <= MS__CHUNK_HEAD + (size_t)key->page->room)
        return true;
    size_t room = key->page ? (size_t)key->page->room * 2 : MS__PAGE;
    struct ms__page *page =
        room <= UINT32_MAX / 2 ? ms__alloc(capture->watch, sizeof *page + MS__CHUNK_HEAD + room) : NULL;
    if (!page)
        return false;
    if (key->page)
        memcpy(page->bytes, key->page->bytes, used);
    ms__free(capture->watch, key->page);
    page->room = (uint32_t)room;
    *key = (struct key){page, page->bytes + used};
    return true;
}

static bool key_threads(ms_capture *capture, struct key *key)
{
    uint64_t known = 0;
    for (uint32_t i = 0; i < capture->place_room; i++)
        known += capture->places[i].known;
    if (!key_room(capture, key, MS__EVENT_MOST))
        return false;
    key->at = ms__put_varint(key->at, known);
    for (uint32_t i = 0; i < capture->place_room; i++) {
        const struct ms__place *place = &capture->places[i];
        if (!place->known)
            continue;
        if (!key_room(capture, key, MS__EVENT_MOST))
            return false;
        key->at = ms__put_varint(key->at, i);
        key->at = ms__put_varint(key->at, place->id);
        key->at = ms__put_varint(key->at, place->phase);
        key->at = ms__put_varint(key->at, place->path);
    }
    return true;
}

static bool key_devices(ms_capture *capture, struct key *key)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++)
        count += capture->reserved[i] != 0;
    if (!key_room(capture, key, (size_t)(count + 1) * 2 * MS__VARINT_MOST))
        return false;
    key->at = ms__put_varint(key->at, count);
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++) {
        if (!capture->reserved[i])
            continue;
        key->at = ms__put_varint(key->at, i);
        key->at = ms__put_varint(key->at, capture->reserved[i]);
    }
    return true;
}

static bool key_blocks(ms_capture *capture, struct key *key)
{
    const struct ms__block_table *blocks = &capture->ledger->blocks;
    if (!key_room(capture, key, MS__EVENT_MOST))
        return false;
    key->at = ms__put_varint(key->at, blocks->count);
    const struct ms__block *block;
    uint32_t next = 0;
    for (uint32_t at = 0; (block = ms__block_next(blocks, &at)) != NULL; next = at) {
        if (!key_room(capture, key, (size_t)2 * MS__EVENT_MOST))
            return false;
        struct ms__birth birth = ms__birth_of(capture, at - 1);
        key->at = ms__put_varint(key->at, at - 1 - next);
        key->at = ms__put_varint(key->at, block->bytes);
        key->at = ms__put_varint(key->at, block->device);
        *key->at++ = ms__what(block->category, block->outside, birth.phase);
        key->at = ms__put_varint(key->at, block->path);
        key->at = ms__put_varint(key->at, capture->event - birth.since_event);
        key->at = ms__put_varint(key->at, capture->ledger->step - birth.step);
        key->at = ms__put_varint(key->at, capture->time - birth.time);
    }
    return true;
}

static bool make_key(ms_capture *capture)
{
    struct key key = {0};
    uint64_t now = ms__microseconds(capture);
    capture->time = now > capture->time ? now : capture->time; /* blocks are younger than it */
    bool made = key_room(capture, &key, MS__EVENT_MOST);
    if (made) {
        key.at = ms__put_varint(key.at, capture->ledger->step);
        key.at = ms__put_varint(key.at, capture->optimizer_steps);
        key.at = ms__put_varint(key.at, atomic_load_explicit(&capture->lost, memory_order_relaxed));
        made = key_threads(capture, &key) && key_devices(capture, &key) && key_blocks(capture, &key);
    }
    if (!made) {
        ms__free(capture->watch, key.page);
        return false;
    }
    key.page->head = (struct ms__chunk_head){.kind = MS__CHUNK_KEY,
                                             .size = (uint32_t)(key.at - key.page->bytes) - MS__CHUNK_HEAD,
                                             .event = capture->event,
                                             .time = capture->time,
                                             .oldest = MS__NO_CLAIM};
    ms__page_give(capture, key.page);
    capture->key_event = capture->event;
    return true;
}

static bool key_due(const ms_capture *capture)
{
    uint64_t since = capture->event - capture->key_event;
    return capture->broken ||
           (since >= MS__KEY_EVENTS && since >= (uint64_t)MS__KEY_BLOCKS * capture->ledger->blocks.count);
}

void ms__capture_key(ms_capture *capture)
{
    if (MS__LIKELY(!key_due(capture)) || (capture->broken && (capture->halted || !ms__pages_calm(capture))))
        return;
    ms__capture_seal(capture);
    if (make_key(capture))
        capture->broken = false;
}
