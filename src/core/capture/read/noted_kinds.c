/* noted_kinds.c - the kinds of blocks. The file has them in notes (MS_NOTE_BLOCK_KIND), each for the block in a slot
 * since a since_event. They are loaded at once, when the first cursor is opened, from the chunks of notes whose headers
 * say that there are any; so files without kinds cost nothing. The table of later claims is used: its category is the
 * kind. */
#include "core/capture/read/reader.h"

static int add_kind(const ms_reader *reader, const ms_note *note)
{
    uint64_t age = note->value >> MS__KIND_BITS, kind = note->value & MS__KIND_MASK;
    if (note->kind != MS_NOTE_BLOCK_KIND || age > note->event)
        return MS_OK;
    struct ms__later_claim claim = {.since_event = note->event - age,
                                    .slot = note->slot,
                                    .category = kind < MS_KIND_COUNT ? (uint8_t)kind : MS_KIND_NONE};
    return ms__later_claims_append(reader, reader->kinds, &claim);
}

static bool has_kinds(const ms_reader *reader)
{
    bool found = false;
    for (size_t i = 0; i < reader->note_count && !found; i++)
        found = reader->notes[i].oldest_claimed != MS__NO_CLAIM;
    return found;
}

static int load_notes(ms_reader *reader)
{
    ms_notes *notes;
    ms_note note;
    int error = ms_notes_open(reader, &notes);
    if (error)
        return error;
    while (!(error = ms_notes_next(notes, &note)) && !(error = add_kind(reader, &note)))
        continue;
    ms_notes_close(notes);
    return error == MS_EEND ? MS_OK : error;
}

int ms__kinds_load(ms_reader *reader)
{
    if (reader->kinds_loaded || !has_kinds(reader))
        return MS_OK;
    reader->kinds = ms__reader_alloc(reader, sizeof *reader->kinds);
    if (!reader->kinds)
        return MS_ENOMEM;
    *reader->kinds = (struct ms__later_claims){0};
    int error = load_notes(reader);
    if (error) {
        ms__kinds_free(reader);
        return error;
    }
    ms__later_claims_sort(reader->kinds);
    reader->kinds_loaded = true;
    return MS_OK;
}

void ms__kinds_free(ms_reader *reader)
{
    if (!reader->kinds)
        return;
    ms__later_claims_free(reader, reader->kinds);
    ms__reader_free(reader, reader->kinds);
    reader->kinds = NULL;
}

uint8_t ms__noted_kind(const ms_reader *reader, uint64_t since_event, uint32_t slot)
{
    uint8_t kind = MS_KIND_NONE;
    ms_path path = MS_GLOBAL;
    ms__later_claims_apply(reader->kinds, since_event, slot, &kind, &path);
    return kind;
}
