/* patch.h - replace a function pointer by our function, and restore it later.
 *
 *     pointer --> ours --> previous            installed
 *     pointer --> other --> ours --> previous  another tool replaced the pointer after us
 *     pointer --> previous                     restored
 *
 * `ours` must call `previous`. The pointer is restored only if it still holds `ours`.
 * Otherwise another tool has saved `ours` as its own previous function and may call it for
 * ever, so the patch stays in the chain (`chained`); the caller makes `ours` inactive by its
 * own means. The next install asks the caller whether calls still reach `ours`, and then
 * reuses the chain instead of entering it twice.
 *
 * Threads    `ours` may run on any thread at any time: `previous` is set before `ours` is
 *            installed and changes only in an install. Callers must serialize install and
 *            restore of one patch themselves. */
#ifndef MS_PATCH_H
#define MS_PATCH_H

#include "interpose/elf_slot.h"

typedef struct ms_patch {
    ms_function ours;     /* the function that is installed */
    ms_function previous; /* the function that `ours` replaced; NULL before the first install */
    void *target;         /* what `read` and `write` get */
    ms_function (*read)(const void *target);
    int (*write)(void *target, ms_function function); /* 0 or an errno value */
    bool chained;
} ms_patch;

/* Initializes a patch of an ELF slot. The slot must live as long as the patch. */
#define MS_PATCH_ELF_SLOT(function, slot)                                                  \
    {                                                                                      \
        .ours = (ms_function)(function), .target = (slot), .read = ms_patch_read_elf_slot, \
        .write = ms_patch_write_elf_slot                                                   \
    }
ms_function ms_patch_read_elf_slot(const void *slot);
int ms_patch_write_elf_slot(void *slot, ms_function function);

/* Whether the pointer holds our function now. */
static inline bool ms_patch_is_installed(const ms_patch *patch)
{
    return patch->read(patch->target) == patch->ours;
}

/* Install our function, unless calls through the pointer reach it already. `is_reached` is
 * called only if the patch is chained: it makes a call through the pointer and returns
 * whether that call reached our function. 0, or the error of `write`; the pointer is then
 * unchanged. */
int ms_patch_install(ms_patch *patch, bool (*is_reached)(void));

/* Restore the previous function if the pointer still holds ours; else become chained. Does
 * nothing before the first install. */
void ms_patch_restore(ms_patch *patch);

#endif
