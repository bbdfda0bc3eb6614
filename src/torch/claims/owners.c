/* owners.c - which module owns a parameter, and whose gradients are being accumulated now. Backward nodes use both
 * without the GIL. */
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"

#include "base/map.h"

#include <pthread.h>

/* A parameter's TensorImpl -> its owner's path, and above these 32 bits the kind of its gradients; guarded by
 * owners_lock. */
static struct ms__map owners;
static struct mst_accumulation *accumulations; /* those that run now, the latest first; guarded by owners_lock */
static pthread_mutex_t owners_lock = PTHREAD_MUTEX_INITIALIZER;

void mst_owners_lock(void)
{
    pthread_mutex_lock(&owners_lock);
}

void mst_owners_unlock(void)
{
    pthread_mutex_unlock(&owners_lock);
}

HOT bool mst_owner_find(uint64_t impl, ms_path *path)
{
    mst_owners_lock();
    uint64_t found = ms__map_get(&owners, impl);
    if (found != MS__MAP_NONE)
        *path = (ms_path)found;
    mst_owners_unlock();
    return found != MS__MAP_NONE;
}

ms_path mst_owner_add(uint64_t impl, ms_path path)
{
    mst_owners_lock();
    uint64_t found = ms__map_get(&owners, impl);
    if (found != MS__MAP_NONE)
        path = (ms_path)found;
    else
        ms__map_set(&owners, impl, path);
    mst_owners_unlock();
    return path;
}

void mst_owner_set_gradient_kind(uint64_t impl, ms_path path, ms_kind kind)
{
    mst_owners_lock();
    ms__map_set(&owners, impl, (uint64_t)kind << 32 | path);
    mst_owners_unlock();
}

void mst_owners_clear(void)
{
    mst_owners_lock();
    ms__map_clear(&owners);
    mst_owners_unlock();
}

/* ---- accumulations ---- */

/* With the lock. Another accumulation of the leaf than `but`, or NULL. */
static struct mst_accumulation *find_accumulation(uint64_t leaf, const struct mst_accumulation *but)
{
    struct mst_accumulation *found = accumulations;
    while (found && (found->leaf != leaf || found == but))
        found = found->next;
    return found;
}

HOT void mst_accumulation_begin(struct mst_accumulation *accumulation)
{
    mst_owners_lock();
    uint64_t owner = ms__map_get(&owners, accumulation->leaf);
    accumulation->owned = owner != MS__MAP_NONE;
    accumulation->owner = accumulation->owned ? (ms_path)owner : MS_GLOBAL;
    accumulation->kind = accumulation->owned ? (ms_kind)(owner >> 32) : MS_KIND_NONE;
    accumulation->grad = mst_grad_of(accumulation->leaf);
    accumulation->next = accumulations;
    accumulations = accumulation;
    mst_owners_unlock();
}

HOT void mst_accumulation_end(struct mst_accumulation *accumulation)
{
    mst_owners_lock();
    struct mst_accumulation **link = &accumulations;
    while (*link && *link != accumulation)
        link = &(*link)->next;
    if (*link)
        *link = accumulation->next;
    struct mst_accumulation *other = find_accumulation(accumulation->leaf, accumulation);
    uint64_t grad = other ? 0 : mst_grad_of(accumulation->leaf);
    if (other)
        other->grad = 0;
    else if (accumulation->owned && grad && grad != accumulation->grad)
        mst_claim_new_gradient(grad, accumulation->owner, accumulation->kind);
    mst_owners_unlock();
}

bool mst_accumulates_elsewhere(uint64_t leaf)
{
    bool elsewhere = false;
    for (struct mst_accumulation *one = accumulations; one; one = one->next)
        if (one->leaf == leaf && one->thread != mst_this_thread) {
            one->grad = 0;
            elsewhere = true;
        }
    return elsewhere;
}

bool mst_accumulations_forked(void)
{
    bool others = false;
    for (struct mst_accumulation **link = &accumulations; *link;)
        if ((*link)->thread == mst_this_thread)
            link = &(*link)->next;
        else {
            *link = (*link)->next;
            others = true;
        }
    return others;
}
