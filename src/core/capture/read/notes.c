/* notes.c - goes through the notes of a capture. */
#include "core/capture/read/reader.h"

int ms__notes_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    if (reader->note_count && head->event < reader->notes[reader->note_count - 1].event)
        return MS_EFORMAT;
    struct ms__chunk *notes =
        ms__reader_grow(reader, reader->notes, &reader->note_room, reader->note_count + 1, sizeof *notes);
    if (!notes)
        return MS_ENOMEM;
    reader->notes = notes;
    reader->notes[reader->note_count++] = (struct ms__chunk){.at = at,
                                                             .event = head->event,
                                                             .time = head->time,
                                                             .oldest_claimed = head->oldest_claimed,
                                                             .size = head->size,
                                                             .crc = head->crc};
    return MS_OK;
}

struct ms_notes {
    ms_reader *reader;
    size_t next_chunk;
    struct ms__buffer buffer; /* the payload of the open chunk */
    struct ms__bytes bytes;   /* what is left of it */
    uint64_t event;           /* of the note before */
    uint32_t slot;
};

int ms_notes_open(ms_reader *reader, ms_notes **out)
{
    ms_notes *notes = ms__reader_alloc(reader, sizeof *notes);
    if (!notes)
        return MS_ENOMEM;
    *notes = (ms_notes){.reader = reader};
    *out = notes;
    return MS_OK;
}

void ms_notes_close(ms_notes *notes)
{
    if (!notes)
        return;
    ms__reader_free(notes->reader, notes->buffer.bytes);
    ms__reader_free(notes->reader, notes);
}

/* Open chunks until one has notes left. A damaged chunk is passed over. */
static int reach_note(ms_notes *notes)
{
    while (notes->bytes.at == notes->bytes.end) {
        if (notes->next_chunk == notes->reader->note_count)
            return MS_EEND;
        struct ms__chunk *chunk = &notes->reader->notes[notes->next_chunk++];
        int error = ms__reader_read_payload(notes->reader, chunk, &notes->buffer);
        if (error && error != MS_EFORMAT)
            return error;
        if (error || chunk->event < notes->event)
            continue;
        notes->bytes = (struct ms__bytes){.at = notes->buffer.bytes, .end = notes->buffer.bytes + chunk->size};
        notes->event = chunk->event;
        notes->slot = 0;
    }
    return MS_OK;
}

/* Decode one note. False: the bytes are no note, or one of a kind that a later version added. */
static bool decode_note(ms_notes *notes, ms_note *note)
{
    uint64_t first = ms__get_varint(&notes->bytes);
    int64_t slot = ms__get_zigzag(&notes->bytes);
    uint64_t later = first >> MS__NOTE_KIND_BITS;
    *note = (ms_note){.kind = (ms_note_kind)(first & ((1u << MS__NOTE_KIND_BITS) - 1))};
    if (note->kind >= MS_NOTE_COUNT || later > UINT64_MAX - notes->event || slot > MS__SLOT_MAX ||
        slot < -(int64_t)MS__SLOT_MAX)
        return false;
    slot += notes->slot;
    if (slot < 0 || slot > MS__SLOT_MAX)
        return false;
    notes->slot = note->slot = (uint32_t)slot;
    notes->event = note->event = notes->event + later;
    if (ms__note_has_value(note->kind))
        note->value = ms__get_varint(&notes->bytes);
    return !notes->bytes.bad;
}

int ms_notes_next(ms_notes *notes, ms_note *note)
{
    for (;;) {
        int error = reach_note(notes);
        if (error || decode_note(notes, note))
            return error;
        notes->bytes.at = notes->bytes.end; /* the rest of the chunk cannot be read */
    }
}
