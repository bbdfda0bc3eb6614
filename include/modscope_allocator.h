/* modscope_allocator.h - a model of PyTorch's caching allocator for CUDA: how much memory it takes from the GPU.
 *
 * The caller reports what a program requests and frees, in order. The model decides what torch's allocator would
 * decide: which free block a request gets, when a block is split, when a new segment is taken from the GPU, what is
 * given back when the GPU is full, and when a request fails. No GPU and no memory of a GPU are needed.
 *
 * Words      A segment is memory that the allocator took from the GPU in one piece; reserved is the sum of all
 * segments. A segment consists of blocks, each free or given to the program; allocated is the sum of the latter.
 *            allocated <= reserved <= capacity
 * Versions   torch 2.12 and 2.13 changed which of several equally large free blocks is taken (ms_tie_order). Everything
 *            else modelled here is the same in torch 2.4 to 2.15.
 * Pools      A private pool (of CUDA graphs and torch.cuda.MemPool) has segments of its own; everything else is in the
 * default pool, 0. The number of a request's pool is in the upper bits of its stream (ms_stream_in_pool).
 * Errors     Functions return MS_OK or a negative MS_E* code. After MS_ENOMEM (this process has no memory for the model
 *            itself) the allocated blocks are what they were before.
 * Cost       O(log n) an event, where n is the number of free blocks.
 * Threads    An allocator may be used by one thread at a time. */
#ifndef MODSCOPE_ALLOCATOR_H
#define MODSCOPE_ALLOCATOR_H

#include "modscope.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings ---- */
#define MS_UNLIMITED UINT64_MAX

/* Of several free blocks of the smallest size that fits, torch takes the one ... */
typedef enum ms_tie_order {
    MS_TIES_BY_ADDRESS, /* with the lowest address: torch 2.11 and earlier */
    MS_TIES_BY_BLOCK,   /* whose block object is the oldest: torch 2.12 */
    MS_TIES_BY_SEGMENT  /* in the oldest segment, there with the lowest address: torch 2.13 and later */
} ms_tie_order;

#define MS_ROUNDUP_INTERVALS 16 /* of the requested size: up to 1 MiB, up to 2 MiB, 4 MiB, ... */

typedef struct ms_allocator_settings {
    uint64_t capacity; /* how many bytes the GPU can give; MS_UNLIMITED */
    uint64_t
        total_memory; /* of the GPU, as torch sees it: what memory_fraction refers to. MS_UNLIMITED: it has no effect */
    ms_tie_order ties;
    bool rounds_fraction; /* torch 2.13 and later round memory_fraction * total_memory; earlier ones truncate */

    /* The keys of PYTORCH_CUDA_ALLOC_CONF. */
    uint64_t max_split_size;         /* MS_UNLIMITED: every block may be split */
    uint64_t max_non_split_rounding; /* a block this much larger than a request of max_split_size or more is not used */
    uint64_t large_segment_size;     /* of requests between 1 MiB and 10 MiB; the page size of expandable segments */
    uint32_t roundup_divisions[MS_ROUNDUP_INTERVALS]; /* 0 or 1: round to 512 bytes */
    double garbage_collection_threshold;              /* 0: no garbage collection */
    double memory_fraction;                           /* 1: not set */
    bool expandable_segments;
} ms_allocator_settings;

/* The default settings of a version of torch, such as "2.11.0+cu130"; NULL: the newest one that is known. MS_EINVAL,
 * and *settings has the newest one's, if the text does not begin with two numbers, or the version is below 2.0. */
int ms_allocator_settings_default(ms_allocator_settings *settings, const char *torch_version);
/* Apply the text of PYTORCH_CUDA_ALLOC_CONF, such as "max_split_size_mb:128,expandable_segments:True". Keys that do
 * not change how much memory is reserved are accepted and have no effect. MS_EINVAL, and *settings is unchanged, if
 * torch would refuse the text or the model does not support it; `error`, unless its room is 0, then gets a sentence. */
int ms_allocator_settings_apply(ms_allocator_settings *settings, const char *text, char *error, size_t room);

/* ---- an allocator: one device ---- */
typedef struct ms_allocator ms_allocator;
typedef struct ms_allocation ms_allocation; /* a block that was given to the program; valid until it is freed */

/* `settings` is copied; NULL: the defaults. Of `options`, which may be NULL, only alloc, free and context are used.
 * NULL when memory runs out, or if only one of alloc and free is set. */
ms_allocator *ms_allocator_open(const ms_allocator_settings *settings, const ms_options *options);
/* NULL is allowed. */
void ms_allocator_close(ms_allocator *allocator);
/* Change settings from now on: torch.cuda.set_per_process_memory_fraction(), and as ms_allocator_settings_apply. */
void ms_allocator_set_fraction(ms_allocator *allocator, double memory_fraction);
/* Change how many bytes the GPU can give from now on, for something else takes memory of it. What is reserved stays so.
 */
void ms_allocator_set_capacity(ms_allocator *allocator, uint64_t capacity);
int ms_allocator_apply(ms_allocator *allocator, const char *text, char *error, size_t room);

/* The program requests memory on a stream. On MS_OK *allocation is what it gets; NULL for 0 bytes, which no memory is
 * taken for. MS_EDEVICE: the request fails, as it would with torch.OutOfMemoryError. */
int ms_allocator_malloc(ms_allocator *allocator, uint64_t bytes, uint64_t stream, ms_allocation **allocation);
/* As ms_allocator_malloc, at this address, which must be in a free block with enough room: a pool becomes again what it
 * was before. MS_EINVAL: it is not. */
int ms_allocator_malloc_at(ms_allocator *allocator, uint64_t bytes, uint64_t stream, uint64_t address,
                           ms_allocation **allocation);
/* The program frees it. NULL is allowed. */
void ms_allocator_free(ms_allocator *allocator, ms_allocation *allocation);
/* torch's Tensor.record_stream: when the allocation is freed, it cannot be used again before the next request, or,
 * with ms_allocator_delay_events, before ms_allocator_synchronize. */
void ms_allocator_record_stream(ms_allocation *allocation, uint64_t stream);
/* Whether freed allocations that were used on other streams wait for ms_allocator_synchronize: the later bound of when
 * a GPU finishes their use. By default they wait for the next request: the earlier bound. */
void ms_allocator_delay_events(ms_allocator *allocator, bool delay);
void ms_allocator_synchronize(ms_allocator *allocator);
/* torch.cuda.empty_cache(): give every segment that is free back to the GPU. */
int ms_allocator_empty_cache(ms_allocator *allocator);

/* ---- private pools ---- */
/* While a program allocates in one, torch gives nothing back to the GPU to make room, and what was freed but is used on
 * another stream stays so. A pool that has users keeps its memory; that of others goes back as that of the default
 * pool. A pool has one user from its first request on, unless it had others before. */
#define MS_POOL_SHIFT 48
#define MS_MOST_POOLS ((UINT64_C(1) << 13) - 1)
static inline uint64_t ms_stream_in_pool(uint64_t stream, uint64_t pool)
{
    return stream | pool << MS_POOL_SHIFT;
}
static inline uint64_t ms_pool_of_stream(uint64_t stream)
{
    return stream >> MS_POOL_SHIFT;
}

typedef enum ms_pool_flags {
    MS_POOL_ON_OOM = 1,  /* its free blocks serve requests for the default pool for which the GPU has no memory */
    MS_POOL_NO_SPLIT = 2 /* a request gets a whole segment */
} ms_pool_flags;

/* The pool has one more user. `flags`, of ms_pool_flags, count where they are set first. MS_ENOMEM: nothing changes. */
int ms_allocator_hold_pool(ms_allocator *allocator, uint64_t pool, unsigned flags);
/* It has one user less. */
void ms_allocator_release_pool(ms_allocator *allocator, uint64_t pool);
/* Give the free segments of a pool without users back to the GPU: what torch does when a MemPool dies. */
int ms_allocator_empty_pool(ms_allocator *allocator, uint64_t pool);

/* The size of the block, which is the request or more, its virtual address, and what was requested. */
uint64_t ms_allocation_bytes(const ms_allocation *allocation);
uint64_t ms_allocation_address(const ms_allocation *allocation);
uint64_t ms_allocation_requested(const ms_allocation *allocation);

/* Call a function with each block that has memory, in no particular order. It must not use the allocator. */
typedef enum ms_block_state {
    MS_BLOCK_FREE,
    MS_BLOCK_GIVEN,  /* to the program */
    MS_BLOCK_WAITING /* freed by the program, and maybe still used on another stream */
} ms_block_state;
typedef struct ms_block_info {
    uint64_t address, bytes, requested; /* requested: 0 unless the block is given or waiting */
    uint64_t stream, pool, segment_address, segment_bytes;
    uint64_t name; /* what the caller calls it (ms_allocation_set_name) */
    ms_block_state state;
    bool is_small;      /* of the pool for small requests */
    bool is_expandable; /* its segment is */
} ms_block_info;
typedef void ms_block_function(void *context, const ms_block_info *block);
void ms_allocator_each_block(const ms_allocator *allocator, ms_block_function *function, void *context);

/* ---- segments ---- */
typedef enum ms_segment_change {
    MS_SEGMENT_TAKEN,
    MS_SEGMENT_GIVEN_BACK,
    MS_PAGES_MAPPED,
    MS_PAGES_UNMAPPED
} ms_segment_change;
/* Called at each change of what is reserved. It must not use the allocator. */
typedef void ms_segment_function(void *context, ms_segment_change change, uint64_t address, uint64_t bytes,
                                 uint64_t stream);
void ms_allocator_on_segment(ms_allocator *allocator, ms_segment_function *function, void *context);
/* The next segment that is taken gets this address, if the GPU's is known and no segment is there: with
 * MS_TIES_BY_ADDRESS addresses matter. 0: it gets the one that the model chooses. */
void ms_allocator_place_next(ms_allocator *allocator, uint64_t address);

/* ---- statistics, as torch.cuda.memory_stats() counts them ---- */
typedef struct ms_allocator_stat {
    int64_t now, peak, total_added, total_removed;
} ms_allocator_stat;

typedef enum ms_pool_choice { MS_BOTH_POOLS, MS_SMALL_POOL, MS_LARGE_POOL, MS_POOL_CHOICES } ms_pool_choice;

typedef struct ms_allocator_stats {
    ms_allocator_stat allocations[MS_POOL_CHOICES], segments[MS_POOL_CHOICES], active[MS_POOL_CHOICES],
        inactive_split[MS_POOL_CHOICES];
    ms_allocator_stat allocated_bytes[MS_POOL_CHOICES], reserved_bytes[MS_POOL_CHOICES], active_bytes[MS_POOL_CHOICES],
        inactive_split_bytes[MS_POOL_CHOICES], requested_bytes[MS_POOL_CHOICES];
    ms_allocator_stat oversize_allocations, oversize_segments;
    int64_t retries;                     /* requests for which everything free was given back first */
    int64_t failures;                    /* requests that failed */
    int64_t synchronizations;            /* of all streams */
    int64_t device_allocs, device_frees; /* cudaMalloc and cudaFree, or maps and unmaps */
} ms_allocator_stats;

/* torch's names for them (torch.cuda.memory_stats_as_nested_dict): X(name, member) for those by pool, those without
 * pools and the numbers. */
#define MS_STATS_BY_POOL(X)                         \
    X("allocation", allocations)                    \
    X("segment", segments)                          \
    X("active", active)                             \
    X("inactive_split", inactive_split)             \
    X("allocated_bytes", allocated_bytes)           \
    X("reserved_bytes", reserved_bytes)             \
    X("active_bytes", active_bytes)                 \
    X("inactive_split_bytes", inactive_split_bytes) \
    X("requested_bytes", requested_bytes)
#define MS_STATS_WITHOUT_POOLS(X)                   \
    X("oversize_allocations", oversize_allocations) \
    X("oversize_segments", oversize_segments)
#define MS_STATS_NUMBERS(X)                     \
    X("num_alloc_retries", retries)             \
    X("num_ooms", failures)                     \
    X("num_sync_all_streams", synchronizations) \
    X("num_device_alloc", device_allocs)        \
    X("num_device_free", device_frees)

const ms_allocator_stats *ms_allocator_read(const ms_allocator *allocator);
void ms_allocator_reset_peaks(ms_allocator *allocator);
void ms_allocator_reset_accumulated(ms_allocator *allocator);

/* ---- a log: what a program asked of the allocator, as numbers ---- */
/* An entry is a value and, in its lowest MS_LOG_KIND_BITS bits, its kind. Allocations are numbered from 0. */
typedef enum ms_log_kind {
    MS_LOG_ALLOCATE, /* value: the bytes that were requested */
    MS_LOG_FREE,     /* value: the number of the allocation */
    MS_LOG_EMPTY_CACHE,
    MS_LOG_STREAM,   /* value: the stream of the next allocation, which is 0 unless it is said */
    MS_LOG_OPERATOR, /* value: a number for the operator that allocates from now on; 0: not known */
    MS_LOG_HOLD,     /* a private pool has one more user; value: the pool, and above MS_LOG_POOL_BITS its flags */
    MS_LOG_RELEASE   /* ... one user less. With a flag: its free segments are given back */
} ms_log_kind;
#define MS_LOG_KIND_BITS 3
#define MS_LOG_POOL_BITS 16
/* Do what an entry of MS_LOG_HOLD or MS_LOG_RELEASE says. */
int ms_allocator_log_pool(ms_allocator *allocator, ms_log_kind kind, uint64_t value);

/* What decides how the allocator answers from now on, as numbers: its blocks, which of them lie beside each other, and
 * in which order it prefers them. If two states are equal, and with them the names that the caller gave to the
 * allocations, then equal requests, and frees of the allocations of equal names, have equal figures from then on, if
 * the settings are the same. `numbers` has the room that ms_allocator_state_room says; returns how many were written.
 */
void ms_allocation_set_name(ms_allocation *allocation, uint64_t name); /* NULL is allowed */
size_t ms_allocator_state_room(const ms_allocator *allocator);
size_t ms_allocator_state(ms_allocator *allocator, uint64_t *numbers);

/* NULL if the model's structures are right, else the invariant that does not hold. It reads every block: for tests. */
const char *ms_allocator_check(const ms_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif
