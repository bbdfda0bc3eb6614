/* chunk_array.h - an array of pointers to chunks. The array grows; the chunks stay where they are. */
#ifndef MS_CHUNK_ARRAY_H
#define MS_CHUNK_ARRAY_H

#include "core/base.h"

/* Make room for chunk number `chunk`; new pointers are NULL. False when memory runs out: nothing changed. */
bool ms__chunk_array_grow(ms_watch *watch, void ***chunks, uint32_t *room, uint32_t chunk);

#endif
