/* shown_paths.c - by which name each path is shown. A path below another one follows it when that is renamed. */
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdlib.h>
#include <string.h>

struct shown_path {
    ms_path base; /* a lower path; MS_GLOBAL: it is shown by a name of its own */
    char *suffix; /* what follows the base's name; NULL: the entry is not set, or has no base */
    bool set;
};

static struct shown_path *shown_paths; /* by path; never freed, as paths are not */
static size_t shown_count;

static bool reserve_shown(ms_path path)
{
    if (path < shown_count)
        return true;
    size_t count = shown_count ? shown_count : 256;
    while (count <= path)
        count *= 2;
    struct shown_path *grown = realloc(shown_paths, count * sizeof *grown);
    if (!grown)
        return false;
    memset(grown + shown_count, 0, (count - shown_count) * sizeof *grown);
    shown_paths = grown;
    shown_count = count;
    return true;
}

char *mst_concat(const char *before, const char *after)
{
    size_t before_length = strlen(before), after_length = strlen(after);
    char *text = malloc(before_length + after_length + 1);
    if (!text)
        return NULL;
    memcpy(text, before, before_length); /* NOLINT(bugprone-not-null-terminated-result): the rest follows */
    memcpy(text + before_length, after, after_length + 1);
    return text;
}

static void show_by_base(ms_path path)
{
    char *name = mst_concat(ms_path_shown(mst.watch, shown_paths[path].base), shown_paths[path].suffix);
    if (name)
        ms_path_show_as(mst.watch, path, name);
    free(name);
}

/* If memory runs out, the path is shown by the name that it was added by. */
bool mst_path_show_below(ms_path path, ms_path base, const char *suffix)
{
    if (!reserve_shown(path))
        return true;
    struct shown_path *shown = &shown_paths[path];
    if (shown->set && base == MS_GLOBAL)
        return shown->base == MS_GLOBAL && strcmp(ms_path_shown(mst.watch, path), suffix) == 0;
    if (shown->set)
        return shown->base == base && strcmp(shown->suffix, suffix) == 0;
    char *copy = base != MS_GLOBAL ? mst_concat("", suffix) : NULL;
    if (base != MS_GLOBAL && !copy)
        return true;
    *shown = (struct shown_path){.base = base, .suffix = copy, .set = true};
    if (base == MS_GLOBAL)
        ms_path_show_as(mst.watch, path, suffix);
    else
        show_by_base(path);
    return true;
}

bool mst_path_is_shown_below(ms_path path, ms_path base, PyObject *inside)
{
    const struct shown_path *shown = path < shown_count ? &shown_paths[path] : NULL;
    const char *text = shown && shown->suffix && shown->base == base ? PyUnicode_AsUTF8(inside) : NULL;
    mst_clear_error();
    return text && shown->suffix[0] == '.' && strcmp(shown->suffix + 1, text) == 0;
}

/* A base is lower than the paths below it, so one pass in rising order reaches all of them. */
void mst_paths_rename(const ms_path *paths, size_t count, const char *shown)
{
    bool *renamed = calloc(shown_count ? shown_count : 1, sizeof *renamed);
    for (size_t i = 0; i < count; i++) {
        ms_path_show_as(mst.watch, paths[i], shown);
        if (renamed && paths[i] < shown_count)
            renamed[paths[i]] = true;
    }
    for (size_t path = 0; renamed && path < shown_count; path++)
        if (shown_paths[path].suffix && renamed[shown_paths[path].base]) {
            show_by_base((ms_path)path);
            renamed[path] = true;
        }
    free(renamed);
}

PyObject *mst_path_shown(ms_path path)
{
    return PyUnicode_FromString(ms_path_shown(mst.watch, path));
}
