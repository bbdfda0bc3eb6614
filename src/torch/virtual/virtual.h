/* virtual.h - a virtual CUDA device. Its tensors have shapes, strides, types and addresses, but no memory is behind
 * them, and no operator reads or writes it. There may be several such devices, cuda:0, cuda:1, ...: each has memory of
 * its own, and each thread has a current one, whose streams are its own.
 *
 *     torch's C++ code asks                             and is answered by
 *     c10::impl::device_guard_impl_registry[CUDA]       a guard that knows the devices and streams
 *     at::accelerator::getAccelerator, by ELF slots     CUDA
 *     at::detail::getCUDAHooks, by ELF slots            hooks that say no and do nothing
 *     c10::GetAllocator(CUDA)                           an allocator that asks the model (modscope_allocator.h)
 *     c10d::TimerRegistry, by an ELF slot               no timers (DistributedDataParallel's)
 *
 *     memory.c   the memory, and torch's allocator      stats.c    what Python asks about memory
 *     answers.c  the guard and the hooks                device.c   installs all of it, and removes it
 *     pinned.c   pinned memory                          tensors.c  makes tensors
 *     clock.c    the virtual clock                      log.c      the log of allocations, for replays
 *     pools.c    private pools of memory
 *
 * The operators are in Python (modscope/_virtual). */
#ifndef MST_VIRTUAL_H
#define MST_VIRTUAL_H

#include "torch/process/process.h"

#include "interpose/elf_slot.h"
#include "modscope_allocator.h"

/* A C++ object is a pointer to its table of virtual functions. */
enum { MST_TABLE_SIZE = 256, MST_ALLOCATE = 2 /* c10::Allocator::allocate comes after the two destructors */ };
typedef const ms_function *mst_cxx_object;

typedef struct mst_data_ptr { /* c10::DataPtr: a unique_ptr stores its deleter before its pointer */
    void *data;
    void (*deleter)(void *);
    void *context;
    int8_t device_type, device_index;
} mst_data_ptr;

struct mst_two_words {
    uint64_t first, second;
};

/* ---- clock.c ---- */

/* Nanoseconds that operators took of the device so far. */
double mst_virtual_clock_busy(void);

/* ---- memory.c ---- */

enum {
    MST_MOST_VIRTUAL = 128, /* torch has 8 bits for the index of a device */
    MST_DOUBTS = 8,         /* kinds of sizes that are not sure */
    MST_SOURCES = 5         /* where sizes of workspaces come from; 0: a tensor, which is no workspace */
};

/* Opens a model of the allocator for each of `count` devices, in place of previous ones. MS_OK or MS_ENOMEM. */
int mst_virtual_open(const ms_allocator_settings *settings, int count);
/* The devices have no memory from now on. Their blocks stay, and can still be given back. */
void mst_virtual_close(void);
bool mst_virtual_is_open(void);
int mst_virtual_count(void); /* how many devices there are */

int mst_virtual_device(void); /* this thread's current one */
/* Nothing happens where there is no such device. Returns the previous one. */
int mst_virtual_set_device(int index);

/* torch's c10::Allocator of the virtual device. */
void *mst_virtual_allocator(void);

/* Tensors may outlive the device. Its model is closed after the last of them has died. */
struct mst_virtual_model {
    ms_allocator *allocator;
    uint64_t blocks; /* how many are not given back */
    uint64_t doubts[MST_DOUBTS];
    uint64_t highest; /* the most bytes that were allocated at once */
    /* By source, bytes of blocks: now, when most was allocated, and of all that were ever taken. */
    uint64_t held[MST_SOURCES], at_peak[MST_SOURCES], in_all[MST_SOURCES];
    int device; /* its index */
    bool ended; /* the device is gone */
};

struct mst_virtual_block {
    struct mst_virtual_model *model;
    ms_allocation *allocation; /* NULL: of 0 bytes, or its memory was given back before it */
    uint64_t address;          /* where it was, or is taken to be, if it has no allocation */
    uint64_t logged;           /* its number in the log */
    unsigned source;           /* below MST_SOURCES */
};

/* Memory of this thread's current device, on its current stream. No GIL needed. */
/* MS_EDEVICE: the device is full; the ledger and the captures were told. MS_EINVAL: there is no virtual device. */
int mst_virtual_take(uint64_t bytes, struct mst_virtual_block **block);
/* The same for a workspace, whose size comes from this source: it counts as a tensor if that is not below MST_SOURCES.
 */
int mst_virtual_take_workspace(uint64_t bytes, unsigned source, struct mst_virtual_block **block);
void mst_virtual_give(struct mst_virtual_block *block);
/* A block at an address of the current device, which has no memory of its own; NULL when memory runs out. */
struct mst_virtual_block *mst_virtual_borrow_address(uint64_t address);
uint64_t mst_virtual_address(const struct mst_virtual_block *block);
/* The block of a storage with this deleter and context; NULL if it is not of the virtual device. */
struct mst_virtual_block *mst_virtual_block_of(uint64_t deleter, uint64_t context);
/* torch's Tensor.record_stream. */
void mst_virtual_use_on(struct mst_virtual_block *block, uint64_t stream);
/* The next storage that torch allocates on this thread gets this block. */
void mst_virtual_hand_over(struct mst_virtual_block *block);
/* The model of a device, and nobody else uses any until it is returned; NULL, and nothing to return, if there is none.
 */
ms_allocator *mst_virtual_borrow(int device);
void mst_virtual_return(void);

void mst_virtual_lock(void); /* around fork */
void mst_virtual_unlock(void);

/* ---- for pools.c; the caller holds the lock ---- */

/* Give back a block's memory. The block stays, at its address. */
void mst_virtual_drop_memory(struct mst_virtual_block *block);
/* Memory at an address of a device, in a free block of a stream and its pool. */
int mst_virtual_take_at(int device, uint64_t bytes, uint64_t stream, uint64_t address,
                        struct mst_virtual_block **taken);
/* Give the memory of one block to another, and free the first. */
void mst_virtual_move_memory(struct mst_virtual_block *from, struct mst_virtual_block *to);

/* ---- pools.c ---- */

/* The stream of a request with the private pool in which the calling thread allocates, if any. The caller holds the
 * lock. */
uint64_t mst_virtual_stream_in_pool(int device, uint64_t stream);
/* Nothing allocates in a pool from now on. */
void mst_virtual_forget_pools(void);

/* ---- what is not sure: sizes of several kinds, whose numbers the rules in Python choose ---- */

/* An operator begins on the current device whose workspace or result, of this kind, may be so large that it takes
 * `bytes` in all. */
void mst_virtual_doubt(unsigned kind, uint64_t bytes);
/* For each kind, the most that would have been allocated at once on a device if it had taken that; 0: there is nothing
 * of the kind. */
void mst_virtual_doubts(int device, uint64_t peaks[MST_DOUBTS]);

/* By source, the bytes of a device's workspaces when most was allocated, and of all that were ever taken. */
void mst_virtual_workspaces(int device, uint64_t at_peak[MST_SOURCES], uint64_t in_all[MST_SOURCES]);

/* ---- streams: numbers, 0 is the default one ---- */

/* This thread's current one of a device, which must exist. */
uint64_t mst_virtual_stream(int device);
void mst_virtual_set_stream(int device, uint64_t stream);

/* ---- the guard, the hooks and pinned memory ---- */
void mst_virtual_fill_tables(void);
const void *mst_virtual_guard(void);
const void *mst_virtual_hooks(void);
/* An empty registry of the timers of DistributedDataParallel, if torch's own has the layout that is expected. */
const void *mst_virtual_timers(void);
bool mst_virtual_knows_timers(const void *registry);
/* Allocator::allocate of pinned memory, which is ordinary memory, and hooks' isPinnedPtr. */
mst_data_ptr *mst_virtual_allocate_pinned(mst_data_ptr *result, void *self, size_t bytes);
bool mst_virtual_is_pinned(const void *self, const void *data);

/* ---- log.c: what the program asked of the virtual device's allocator ---- */

/* The same requests can be replayed on a device of another size (Allocator.replay of modscope._capture). The log is an
 * array of 64-bit numbers (ms_log_kind). */
#define MST_NOT_LOGGED UINT64_MAX

/* Each device has a log. The caller holds the virtual devices' lock. Nothing happens unless the logs were begun. */

/* The allocation's number for mst_virtual_log_free, or MST_NOT_LOGGED. */
uint64_t mst_virtual_log_malloc(int device, uint64_t bytes, uint64_t stream);
void mst_virtual_log_free(int device, uint64_t number);
void mst_virtual_log_empty_cache(int device);
void mst_virtual_log_pool(int device, ms_log_kind kind, uint64_t pool, unsigned flags);

#endif
