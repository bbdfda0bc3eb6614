/* chunk_array.c - growing an array of pointers to chunks. */
#include "core/ledger/chunk_array.h"
#include "core/watch/watch.h"

#include <string.h>

bool ms__chunk_array_grow(ms_watch *watch, void ***chunks, uint32_t *room, uint32_t chunk)
{
    if (MS__LIKELY(chunk < *room))
        return true;
    uint32_t wanted = *room ? *room * 2 : 8;
    while (wanted <= chunk)
        wanted *= 2;
    void **grown = ms__alloc(watch, wanted * sizeof *grown);
    if (!grown)
        return false;
    memset(grown, 0, wanted * sizeof *grown);
    if (*room)
        memcpy(grown, *chunks, *room * sizeof *grown);
    ms__free(watch, *chunks);
    *chunks = grown;
    *room = wanted;
    return true;
}
