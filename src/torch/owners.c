/* owners.c - which module owns a parameter. Backward nodes ask for it without the GIL. */
#include "torch/claims.h"

#include "torch/hash_map.h"

#include <pthread.h>

static struct mst_map owners; /* a parameter's TensorImpl -> its owner's path; guarded by owners_lock */
static pthread_mutex_t owners_lock = PTHREAD_MUTEX_INITIALIZER;

void mst_owners_lock(void)
{
    pthread_mutex_lock(&owners_lock);
}

void mst_owners_unlock(void)
{
    pthread_mutex_unlock(&owners_lock);
}

bool mst_owner_find(uint64_t impl, ms_path *path)
{
    mst_owners_lock();
    const uint64_t *found = mst_map_get(&owners, impl, 0);
    if (found)
        *path = (ms_path)*found;
    mst_owners_unlock();
    return found != NULL;
}

ms_path mst_owner_add(uint64_t impl, ms_path path)
{
    mst_owners_lock();
    const uint64_t *found = mst_map_get(&owners, impl, 0);
    if (found)
        path = (ms_path)*found;
    else
        mst_map_set(&owners, impl, 0, path);
    mst_owners_unlock();
    return path;
}

void mst_owners_clear(void)
{
    mst_owners_lock();
    mst_map_clear(&owners);
    mst_owners_unlock();
}
