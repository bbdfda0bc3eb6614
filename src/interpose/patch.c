/* patch.c - replace a function pointer by our function, and restore it later. */
#include "interpose/patch.h"

ms_function ms_patch_read_elf_slot(const void *slot)
{
    return ms_elf_slot_read(slot);
}

int ms_patch_write_elf_slot(void *slot, ms_function function)
{
    return ms_elf_slot_write(slot, function);
}

int ms_patch_install(ms_patch *patch, bool (*is_reached)(void))
{
    ms_function current = patch->read(patch->target);
    if (current == patch->ours || (patch->chained && is_reached()))
        return 0;
    patch->previous = current;
    patch->chained = false;
    return patch->write(patch->target, patch->ours);
}

void ms_patch_restore(ms_patch *patch)
{
    if (!patch->previous)
        return;
    if (ms_patch_is_installed(patch))
        patch->write(patch->target, patch->previous);
    else
        patch->chained = true;
}
