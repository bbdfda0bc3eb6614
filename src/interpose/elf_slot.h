/* elf_slot.h - the slots through which a loaded ELF library calls imported functions.
 *
 * A slot is the entry of a library's relocation table (JUMP_SLOT or GLOB_DAT) that holds
 * the address of an imported function. This file finds a slot, reads it and writes it.
 * It supports Linux on x86-64 and aarch64; elsewhere every search returns ENOSYS. It
 * knows neither Python nor torch.
 *
 * Errors     0 or an errno value. A function that fails changes nothing.
 * Threads    A slot is written as one machine word: callers see the old value or the new
 *            one. Callers must serialize writers of the same slot themselves. */
#ifndef MS_ELF_SLOT_H
#define MS_ELF_SLOT_H

#include <stdbool.h>
#include <stdint.h>

typedef void (*ms_function)(void); /* any function; cast it to its real type before the call */

typedef struct ms_elf_slot {
    ms_function *address; /* NULL until ms_elf_slot_find succeeds */
    ms_function function; /* the function that the symbol names, whatever the slot holds now */
    uintptr_t from, to;   /* the address range that the library is mapped to */
    bool read_only;       /* the slot is in a page that is read-only after relocation */
} ms_elf_slot;

/* Find the slot of the one function whose mangled name begins with `symbol`, in the loaded
 * library whose file name begins with `library`. ENOENT if the library or the symbol does
 * not exist, EEXIST if several symbols match. */
int ms_elf_slot_find(const char *library, const char *symbol, ms_elf_slot *slot);

/* Make a slot of a function pointer in the library's data, such as an entry of a table of virtual functions, which the
 * dynamic linker has resolved. ENOENT if the library is not loaded or does not contain the address. */
int ms_elf_slot_at(const char *library, uintptr_t address, ms_elf_slot *slot);

/* The function that a call through the slot reaches now. A slot that the dynamic linker has
 * not resolved yet reads as the function itself, because its raw value must not be called. */
ms_function ms_elf_slot_read(const ms_elf_slot *slot);
int ms_elf_slot_write(const ms_elf_slot *slot, ms_function value);

/* The address of an exported symbol of the loaded library; NULL if it does not exist. */
ms_function ms_elf_symbol_find(const char *library, const char *symbol);
/* Whether the loaded library contains the address. */
bool ms_elf_contains(const char *library, uintptr_t address);

#endif
