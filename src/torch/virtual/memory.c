/* memory.c - the memory of the virtual devices: blocks of the allocator's model, and torch's allocator object. */
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards every model, and `current` */
static struct mst_virtual_model *current[MST_MOST_VIRTUAL]; /* of the installed devices */
static _Atomic int device_count;
static _Thread_local struct mst_virtual_block *handed_over;
static _Thread_local int current_device;
static _Thread_local uint64_t current_streams[MST_MOST_VIRTUAL];

int mst_virtual_count(void)
{
    return device_count;
}

int mst_virtual_device(void)
{
    return current_device < device_count ? current_device : 0;
}

int mst_virtual_set_device(int index)
{
    int previous = mst_virtual_device();
    if (index >= 0 && index < device_count)
        current_device = index;
    return previous;
}

uint64_t mst_virtual_stream(int device)
{
    return current_streams[device];
}

void mst_virtual_set_stream(int device, uint64_t stream)
{
    current_streams[device] = stream;
}

/* ---- blocks ---- */

enum { DEVICE_SHIFT = 52 }; /* a model uses fewer bits of an address */

/* Each model gives the same addresses; as on real GPUs, two devices have none in common. */
static uint64_t address_of(const struct mst_virtual_block *block)
{
    return ms_allocation_address(block->allocation) + ((uint64_t)block->model->device << DEVICE_SHIFT);
}

/* The caller holds the lock. The ledger gets each block as from a real allocator. */
static void report_block(const struct mst_virtual_block *block, bool added)
{
    const ms_allocator_stats *stats = ms_allocator_read(block->model->allocator);
    int64_t bytes = (int64_t)ms_allocation_bytes(block->allocation);
    mst_blocks_report(address_of(block), added ? bytes : -bytes, (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now,
                      MST_CUDA, (int8_t)block->model->device);
}

static void report_added(const struct mst_virtual_block *block, uint64_t requested, uint64_t stream)
{
    report_block(block, true);
    mst_blocks_report_request(address_of(block), requested, stream);
}

/* The caller holds the lock. */
static void count_source(const struct mst_virtual_block *block)
{
    struct mst_virtual_model *model = block->model;
    uint64_t bytes = ms_allocation_bytes(block->allocation);
    model->held[block->source] += bytes;
    model->in_all[block->source] += bytes;
    uint64_t allocated = (uint64_t)ms_allocator_read(model->allocator)->allocated_bytes[MS_BOTH_POOLS].now;
    if (allocated > model->highest) {
        model->highest = allocated;
        memcpy(model->at_peak, model->held, sizeof model->at_peak);
    }
}

static void note_taken(struct mst_virtual_block *block, uint64_t bytes, uint64_t stream)
{
    count_source(block);
    ms_allocation_set_name(block->allocation, (uintptr_t)block);
    block->logged = mst_virtual_log_malloc(block->model->device, bytes, stream);
    report_added(block, bytes, stream);
}

static void report_failure(const struct mst_virtual_model *model, uint64_t bytes)
{
    const ms_allocator_stats *stats = ms_allocator_read(model->allocator);
    mst_blocks_report_failure(bytes, (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now,
                              (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now, MST_CUDA, (int8_t)model->device);
}

int mst_virtual_take(uint64_t bytes, struct mst_virtual_block **taken)
{
    return mst_virtual_take_workspace(bytes, 0, taken);
}

int mst_virtual_take_workspace(uint64_t bytes, unsigned source, struct mst_virtual_block **taken)
{
    struct mst_virtual_block *block = malloc(sizeof *block);
    if (!block)
        return MS_ENOMEM;
    pthread_mutex_lock(&lock);
    int device = mst_virtual_device();
    struct mst_virtual_model *model = current[device];
    uint64_t stream = mst_virtual_stream_in_pool(device, current_streams[device]);
    *block = (struct mst_virtual_block){.model = model, .source = source < MST_SOURCES ? source : 0};
    int error = model ? ms_allocator_malloc(model->allocator, bytes, stream, &block->allocation) : MS_EINVAL;
    if (!error) {
        model->blocks++;
        if (block->allocation)
            note_taken(block, bytes, stream);
    } else if (error == MS_EDEVICE) {
        report_failure(model, bytes);
    }
    pthread_mutex_unlock(&lock);
    if (error)
        free(block);
    else
        *taken = block;
    return error;
}

void mst_virtual_doubt(unsigned kind, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    struct mst_virtual_model *model = current[mst_virtual_device()];
    if (model && kind < MST_DOUBTS) {
        const ms_allocator_stats *stats = ms_allocator_read(model->allocator);
        uint64_t most = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now + bytes;
        if (most > model->doubts[kind])
            model->doubts[kind] = most;
    }
    pthread_mutex_unlock(&lock);
}

void mst_virtual_doubts(int device, uint64_t peaks[MST_DOUBTS])
{
    pthread_mutex_lock(&lock);
    const struct mst_virtual_model *model = device >= 0 && device < MST_MOST_VIRTUAL ? current[device] : NULL;
    for (int kind = 0; kind < MST_DOUBTS; kind++)
        peaks[kind] = model ? model->doubts[kind] : 0;
    pthread_mutex_unlock(&lock);
}

void mst_virtual_workspaces(int device, uint64_t at_peak[MST_SOURCES], uint64_t in_all[MST_SOURCES])
{
    pthread_mutex_lock(&lock);
    const struct mst_virtual_model *model = device >= 0 && device < MST_MOST_VIRTUAL ? current[device] : NULL;
    for (int source = 0; source < MST_SOURCES; source++) {
        at_peak[source] = model ? model->at_peak[source] : 0;
        in_all[source] = model ? model->in_all[source] : 0;
    }
    pthread_mutex_unlock(&lock);
}

/* The caller holds the lock. */
static void close_if_unused(struct mst_virtual_model *model)
{
    if (!model->ended || model->blocks)
        return;
    ms_allocator_close(model->allocator);
    free(model);
}

void mst_virtual_drop_memory(struct mst_virtual_block *block)
{
    if (!block->allocation)
        return;
    if (!block->model->ended) {
        mst_virtual_log_free(block->model->device, block->logged);
        report_block(block, false);
    }
    block->address = address_of(block);
    block->model->held[block->source] -= ms_allocation_bytes(block->allocation);
    ms_allocator_free(block->model->allocator, block->allocation);
    block->allocation = NULL;
}

/* The caller holds the lock. */
static void free_block(struct mst_virtual_block *block)
{
    block->model->blocks--;
    close_if_unused(block->model);
    free(block);
}

void mst_virtual_give(struct mst_virtual_block *block)
{
    pthread_mutex_lock(&lock);
    mst_virtual_drop_memory(block);
    free_block(block);
    pthread_mutex_unlock(&lock);
}

struct mst_virtual_block *mst_virtual_borrow_address(uint64_t address)
{
    struct mst_virtual_block *block = malloc(sizeof *block);
    pthread_mutex_lock(&lock);
    struct mst_virtual_model *model = current[mst_virtual_device()];
    if (block && model) {
        *block = (struct mst_virtual_block){.model = model, .address = address};
        model->blocks++;
    }
    pthread_mutex_unlock(&lock);
    if (!model) {
        free(block);
        return NULL;
    }
    return block;
}

int mst_virtual_take_at(int device, uint64_t bytes, uint64_t stream, uint64_t address, struct mst_virtual_block **taken)
{
    struct mst_virtual_model *model = current[device];
    struct mst_virtual_block *block = malloc(sizeof *block);
    if (!block)
        return MS_ENOMEM;
    *block = (struct mst_virtual_block){.model = model};
    uint64_t own = address - ((uint64_t)device << DEVICE_SHIFT);
    int error = ms_allocator_malloc_at(model->allocator, bytes, stream, own, &block->allocation);
    if (error) {
        free(block);
        return error;
    }
    model->blocks++;
    note_taken(block, bytes, stream);
    *taken = block;
    return MS_OK;
}

void mst_virtual_move_memory(struct mst_virtual_block *from, struct mst_virtual_block *to)
{
    to->allocation = from->allocation;
    to->logged = from->logged;
    to->source = from->source;
    ms_allocation_set_name(to->allocation, (uintptr_t)to);
    free_block(from);
}

uint64_t mst_virtual_address(const struct mst_virtual_block *block)
{
    return block->allocation ? address_of(block) : block->address;
}

void mst_virtual_hand_over(struct mst_virtual_block *block)
{
    handed_over = block;
}

/* ---- the model ---- */
static struct mst_virtual_model *open_model(const ms_allocator_settings *settings, int device)
{
    struct mst_virtual_model *model = calloc(1, sizeof *model);
    if (!model)
        return NULL;
    *model = (struct mst_virtual_model){.allocator = ms_allocator_open(settings, NULL), .device = device};
    if (model->allocator)
        return model;
    free(model);
    return NULL;
}

int mst_virtual_open(const ms_allocator_settings *settings, int count)
{
    mst_virtual_close();
    pthread_mutex_lock(&lock);
    bool failed = false;
    for (int i = 0; i < count && !failed; i++)
        failed = !(current[i] = open_model(settings, i));
    device_count = count;
    pthread_mutex_unlock(&lock);
    if (failed)
        mst_virtual_close();
    return failed ? MS_ENOMEM : MS_OK;
}

void mst_virtual_close(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MST_MOST_VIRTUAL; i++) {
        struct mst_virtual_model *model = current[i];
        current[i] = NULL;
        if (model) {
            model->ended = true;
            close_if_unused(model);
        }
    }
    device_count = 0;
    mst_virtual_forget_pools();
    pthread_mutex_unlock(&lock);
}

bool mst_virtual_is_open(void)
{
    return device_count;
}

ms_allocator *mst_virtual_borrow(int device)
{
    pthread_mutex_lock(&lock);
    if (device >= 0 && device < MST_MOST_VIRTUAL && current[device])
        return current[device]->allocator;
    pthread_mutex_unlock(&lock);
    return NULL;
}

void mst_virtual_return(void)
{
    pthread_mutex_unlock(&lock);
}

void mst_virtual_lock(void)
{
    pthread_mutex_lock(&lock);
}

void mst_virtual_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- c10::Allocator ---- */
static void give_storage(void *context)
{
    mst_virtual_give(context);
}

struct mst_virtual_block *mst_virtual_block_of(uint64_t deleter, uint64_t context)
{
    return deleter == (uint64_t)(uintptr_t)give_storage ? (struct mst_virtual_block *)(uintptr_t)context : NULL;
}

void mst_virtual_use_on(struct mst_virtual_block *block, uint64_t stream)
{
    pthread_mutex_lock(&lock);
    if (block->allocation)
        ms_allocator_record_stream(block->allocation, stream);
    pthread_mutex_unlock(&lock);
}

/* Allocator::allocate. A storage that operators make was taken before, and is handed over; else torch's own C++ code
 * resizes a storage. Where the device is full it gets no memory, which it reports as an error of its own. */
static mst_data_ptr *allocate(mst_data_ptr *result, void *self, size_t bytes)
{
    (void)self;
    struct mst_virtual_block *block = handed_over;
    handed_over = NULL;
    if (!block && mst_virtual_take(bytes, &block) != MS_OK)
        block = NULL;
    *result = (mst_data_ptr){
        .data = block ? (void *)(uintptr_t)mst_virtual_address(block) : NULL,
        .deleter = block ? give_storage : NULL,
        .context = block,
        .device_type = MST_CUDA,
        .device_index = (int8_t)(block ? block->model->device : mst_virtual_device()),
    };
    return result;
}

/* Every other virtual function of the allocator. */
static uint64_t answer_nothing(void)
{
    return 0;
}

void *mst_virtual_allocator(void)
{
    static ms_function table[MST_TABLE_SIZE];
    static mst_cxx_object object = table;
    if (!table[0]) {
        for (int i = 0; i < MST_TABLE_SIZE; i++)
            table[i] = (ms_function)answer_nothing;
        table[MST_ALLOCATE] = (ms_function)allocate;
    }
    return (void *)&object;
}
