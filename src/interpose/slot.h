/* slot.h - the words through which a loaded library calls functions of others or its own.
 *
 * Finds the slot of a function in a library's table of calls, reads it, and writes it.
 * Knows ELF (Linux, x86-64 and aarch64); elsewhere every search answers ENOSYS. Knows
 * neither Python nor torch.
 *
 * Errors     0 or an errno value; nothing is changed after a failure.
 * Threads    A slot is written as one word; callers see the old value or the new one.
 *            Writers of the same slot take turns by their own means. */
#ifndef MS_SLOT_H
#define MS_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*ms_function)(void); /* any function; cast to what it is before calling */

typedef struct ms_slot {
    ms_function *address;
    ms_function function; /* what the name stands for, whatever the slot holds now */
    uintptr_t from, to;   /* the library's own mapping */
    bool guarded;         /* lies in a page that is read-only after relocation */
} ms_slot;

/* The slot of the one function whose mangled name begins with `symbol`, in the loaded
 * library whose file name begins with `library`. ENOENT if either is not there,
 * EEXIST if the name is not unique. */
int ms_slot_find(const char *library, const char *symbol, ms_slot *slot);

/* What a caller through the slot reaches now. A slot not yet bound counts as holding
 * the function itself: its old value must never be called. */
ms_function ms_slot_read(const ms_slot *slot);
int ms_slot_write(const ms_slot *slot, ms_function value);

/* Copy at most 512 bytes of memory that may not be there. False if it is not. */
bool ms_peek(uintptr_t address, void *copy, size_t bytes);

/* The address of an exported symbol of that loaded library; NULL if there is none. */
ms_function ms_symbol_find(const char *library, const char *symbol);

#endif
