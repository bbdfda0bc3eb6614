/* paths.c - the tree of paths: each distinct (parent, name, nth) is stored once. */
#include "core/watch/watch.h"

#include <string.h>

static uint32_t hash_path(ms_path parent, const char *name, uint32_t nth)
{
    uint32_t hash = 2166136261u ^ parent ^ nth << 16;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash ^ hash >> 15;
}

static struct ms__path *path_at(const ms_watch *watch, ms_path path)
{
    return atomic_load_explicit(&watch->paths.chunks[path / MS__PATH_CHUNK], memory_order_acquire) +
           path % MS__PATH_CHUNK;
}

/* The path, or MS_GLOBAL if there is none. The caller holds watch->lock. */
static ms_path find_path(const ms_watch *watch, ms_path parent, const char *name, uint32_t nth, uint32_t hash)
{
    const struct ms__paths *paths = &watch->paths;
    for (uint32_t at = paths->buckets[hash % paths->bucket_count]; at; at = path_at(watch, at)->next) {
        const struct ms__path *path = path_at(watch, at);
        if (path->hash == hash && path->parent == parent && path->nth == nth && strcmp(path->name, name) == 0)
            return at;
    }
    return MS_GLOBAL;
}

/* Double the buckets when there are as many paths. If memory runs out they stay as they are, which is only slower. */
static void grow_buckets(ms_watch *watch)
{
    struct ms__paths *paths = &watch->paths;
    uint32_t count = atomic_load_explicit(&paths->count, memory_order_relaxed);
    if (count < paths->bucket_count)
        return;
    uint32_t doubled = paths->bucket_count * 2;
    uint32_t *buckets = ms__alloc(watch, doubled * sizeof *buckets);
    if (!buckets)
        return;
    memset(buckets, 0, doubled * sizeof *buckets);
    for (uint32_t at = 2; at < count; at++) {
        struct ms__path *path = path_at(watch, at);
        path->next = buckets[path->hash % doubled];
        buckets[path->hash % doubled] = at;
    }
    ms__free(watch, paths->buckets);
    paths->buckets = buckets;
    paths->bucket_count = doubled;
}

static int append_path(ms_watch *watch, ms_path parent, const char *name, uint32_t nth, ms_path *out)
{
    struct ms__paths *paths = &watch->paths;
    uint32_t at = atomic_load_explicit(&paths->count, memory_order_relaxed);
    if (at / MS__PATH_CHUNK >= paths->chunk_count)
        return MS_EFULL;
    size_t length = strlen(name) + 1;
    char *copy = ms__alloc(watch, length);
    if (!copy)
        return MS_ENOMEM;
    memcpy(copy, name, length);
    if (!atomic_load_explicit(&paths->chunks[at / MS__PATH_CHUNK], memory_order_relaxed)) {
        struct ms__path *chunk = ms__alloc(watch, MS__PATH_CHUNK * sizeof *chunk);
        if (!chunk) {
            ms__free(watch, copy);
            return MS_ENOMEM;
        }
        atomic_store_explicit(&paths->chunks[at / MS__PATH_CHUNK], chunk, memory_order_release);
    }
    *path_at(watch, at) = (struct ms__path){
        .parent = parent, .hash = hash_path(parent, name, nth), .nth = nth, .name = copy, .shown = copy};
    atomic_store_explicit(&paths->count, at + 1, memory_order_release);
    *out = at;
    return MS_OK;
}

int ms__paths_open(ms_watch *watch, uint32_t capacity)
{
    struct ms__paths *paths = &watch->paths;
    paths->chunk_count = (capacity + 1) / MS__PATH_CHUNK + 1; /* MS_GLOBAL and MS_UNKNOWN are not counted in capacity */
    paths->bucket_count = 64;
    paths->chunks = ms__alloc(watch, paths->chunk_count * sizeof *paths->chunks);
    if (!paths->chunks)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < paths->chunk_count; i++)
        atomic_init(&paths->chunks[i], NULL);
    paths->buckets = ms__alloc(watch, paths->bucket_count * sizeof *paths->buckets);
    if (!paths->buckets)
        return MS_ENOMEM;
    memset(paths->buckets, 0, paths->bucket_count * sizeof *paths->buckets);
    ms_path path;
    int error = append_path(watch, MS_GLOBAL, "Global", 0, &path);
    return error ? error : append_path(watch, MS_GLOBAL, "unknown", 0, &path);
}

void ms__paths_close(ms_watch *watch)
{
    struct ms__paths *paths = &watch->paths;
    uint32_t count = atomic_load(&paths->count);
    for (uint32_t at = 0; at < count; at++)
        ms__free(watch, path_at(watch, at)->name);
    for (uint32_t i = 0; paths->chunks && i < paths->chunk_count; i++) {
        struct ms__path *chunk = atomic_load(&paths->chunks[i]);
        if (!chunk)
            break;
        ms__free(watch, chunk);
    }
    for (struct ms__rename *rename = atomic_load(&paths->renames), *older; rename; rename = older) {
        older = rename->older;
        ms__free(watch, rename);
    }
    ms__free(watch, paths->buckets);
    ms__free(watch, paths->chunks);
}

int ms_path_add(ms_watch *watch, ms_path parent, const char *name, ms_path *path)
{
    return ms_path_add_nth(watch, parent, name, 0, path);
}

int ms_path_add_nth(ms_watch *watch, ms_path parent, const char *name, uint32_t nth, ms_path *path)
{
    if (!name || parent == MS_UNKNOWN || parent >= atomic_load_explicit(&watch->paths.count, memory_order_acquire))
        return MS_EINVAL;
    uint32_t hash = hash_path(parent, name, nth);
    pthread_mutex_lock(&watch->lock);
    ms_path at = find_path(watch, parent, name, nth, hash);
    int error = MS_OK;
    if (at == MS_GLOBAL) {
        grow_buckets(watch);
        error = append_path(watch, parent, name, nth, &at);
        if (error == MS_OK) {
            struct ms__path *added = path_at(watch, at);
            uint32_t *bucket = &watch->paths.buckets[hash % watch->paths.bucket_count];
            added->depth = path_at(watch, parent)->depth + 1;
            added->next = *bucket;
            *bucket = at;
        } else {
            ms__count_lost(watch);
        }
    }
    pthread_mutex_unlock(&watch->lock);
    if (error == MS_OK)
        *path = at;
    return error;
}

uint32_t ms_path_count(const ms_watch *watch)
{
    return atomic_load_explicit(&watch->paths.count, memory_order_acquire);
}

const char *ms_path_name(const ms_watch *watch, ms_path path)
{
    return path_at(watch, path)->name;
}

const char *ms_path_shown(const ms_watch *watch, ms_path path)
{
    return atomic_load_explicit(&path_at(watch, path)->shown, memory_order_acquire);
}

int ms_path_show_as(ms_watch *watch, ms_path path, const char *name)
{
    if (!name || path <= MS_UNKNOWN || path >= ms_path_count(watch))
        return MS_EINVAL;
    if (strcmp(ms_path_shown(watch, path), name) == 0)
        return MS_OK;
    size_t length = strlen(name) + 1;
    struct ms__rename *rename = ms__alloc(watch, sizeof *rename + length);
    if (!rename)
        return MS_ENOMEM;
    rename->path = path;
    memcpy(rename->name, name, length);
    pthread_mutex_lock(&watch->lock);
    rename->older = atomic_load_explicit(&watch->paths.renames, memory_order_relaxed);
    atomic_store_explicit(&path_at(watch, path)->shown, rename->name, memory_order_release);
    atomic_store_explicit(&watch->paths.renames, rename, memory_order_release);
    pthread_mutex_unlock(&watch->lock);
    return MS_OK;
}

ms_path ms_path_parent(const ms_watch *watch, ms_path path)
{
    return path_at(watch, path)->parent;
}

uint32_t ms_path_depth(const ms_watch *watch, ms_path path)
{
    return path_at(watch, path)->depth;
}

uint32_t ms__path_nth(const ms_watch *watch, ms_path path)
{
    return path_at(watch, path)->nth;
}
