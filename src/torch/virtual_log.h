/* virtual_log.h - what a program asked of the virtual device's allocator, so that the same can be asked of a device of
 * another size (Allocator.replay of modscope._capture).
 *
 * The log is an array of 64-bit numbers. The two low bits of each are what was asked, the rest is of what:
 *
 *     0  allocate so many bytes; allocations are numbered from 0
 *     1  free the allocation of this number
 *     2  empty the cache
 *     3  the next allocation is on this stream; without it, on stream 0 */
#ifndef MST_VIRTUAL_LOG_H
#define MST_VIRTUAL_LOG_H

#include <stdint.h>

#define MST_NOT_LOGGED UINT64_MAX

/* The caller holds the virtual device's lock. Nothing happens unless a log was begun. */

/* The allocation's number for mst_virtual_log_free, or MST_NOT_LOGGED. */
uint64_t mst_virtual_log_malloc(uint64_t bytes, uint64_t stream);
void mst_virtual_log_free(uint64_t number);
void mst_virtual_log_empty_cache(void);

#endif
