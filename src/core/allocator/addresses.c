/* addresses.c - the addresses that the GPU's driver gives to segments. They matter where torch prefers the lower of two
 * free blocks (MS_TIES_BY_ADDRESS).
 *
 * The driver reserves address space in chunks, each a multiple of 32 MiB and directly below the one before. A segment
 * gets the lowest free addresses where it fits; if it fits nowhere, a new chunk of its size is reserved. At the start
 * there is one chunk, which is partly used. These rules were read off the addresses of real runs. */
#include "core/allocator/model.h"

#include <string.h>

#define CHUNK (UINT64_C(32) << 20)
#define FIRST_FREE (UINT64_C(416) << 20) /* what is free in the first chunk */
#define FIRST_ADDRESS UINT64_C(0x7f0000000000)
#define EXPANDABLE_ADDRESS UINT64_C(0x100000000000)

static bool grow(ms_allocator *allocator, size_t room)
{
    struct ms__addresses *space = &allocator->addresses;
    const ms_options *memory = &allocator->memory;
    struct ms__range *larger = memory->alloc(memory->context, room * sizeof *larger);
    if (!larger)
        return false;
    if (space->free) {
        memcpy(larger, space->free, space->count * sizeof *larger);
        memory->free(memory->context, space->free);
    }
    space->free = larger;
    space->room = room;
    return true;
}

bool ms__reserve_addresses(ms_allocator *allocator)
{
    struct ms__addresses *space = &allocator->addresses;
    if (space->count + 1 < space->room)
        return true;
    bool first = !space->free;
    if (!grow(allocator, first ? 16 : space->room * 2))
        return false;
    if (first) {
        space->count = 1;
        space->free[0] = (struct ms__range){FIRST_ADDRESS, FIRST_FREE};
        space->lowest = FIRST_ADDRESS;
        space->next_expandable = EXPANDABLE_ADDRESS;
    }
    return true;
}

static void remove_range(struct ms__addresses *space, size_t at)
{
    space->count--;
    memmove(&space->free[at], &space->free[at + 1], (space->count - at) * sizeof *space->free);
}

uint64_t ms__take_addresses(ms_allocator *allocator, uint64_t size, bool expandable)
{
    struct ms__addresses *space = &allocator->addresses;
    uint64_t address;
    if (expandable) {
        address = space->next_expandable;
        space->next_expandable += size;
        return address;
    }
    size_t at = 0;
    while (at < space->count && space->free[at].size < size)
        at++;
    if (at == space->count) {
        space->lowest -= (size + CHUNK - 1) / CHUNK * CHUNK;
        uint64_t chunk_rest = (size + CHUNK - 1) / CHUNK * CHUNK - size;
        address = space->lowest;
        if (chunk_rest)
            ms__return_addresses(allocator, address + size, chunk_rest);
        return address;
    }
    address = space->free[at].address;
    space->free[at].address += size;
    space->free[at].size -= size;
    if (!space->free[at].size)
        remove_range(space, at);
    return address;
}

void ms__return_addresses(ms_allocator *allocator, uint64_t address, uint64_t size)
{
    struct ms__addresses *space = &allocator->addresses;
    if (space->count == space->room && !grow(allocator, space->room * 2))
        return; /* The addresses are not used again. */
    size_t at = 0;
    while (at < space->count && space->free[at].address < address)
        at++;
    struct ms__range *after = &space->free[at], *before = at ? after - 1 : NULL;
    bool joins_before = before && before->address + before->size == address;
    bool joins_after = at < space->count && address + size == after->address;
    if (joins_before) {
        before->size += size + (joins_after ? after->size : 0);
        if (joins_after)
            remove_range(space, at);
    } else if (joins_after) {
        after->address = address;
        after->size += size;
    } else {
        memmove(after + 1, after, (space->count - at) * sizeof *after);
        *after = (struct ms__range){address, size};
        space->count++;
    }
}
