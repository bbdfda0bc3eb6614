/* elf_slot.c - find, read and write the slots of a loaded ELF library. */
#define _GNU_SOURCE
#include "interpose/elf_slot.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
enum { JUMP_SLOT = 7, GLOB_DAT = 6 };
#else
enum { JUMP_SLOT = 1026, GLOB_DAT = 1025 };
#endif

struct search {
    const char *library, *symbol; /* what to search for */
    const char *path;             /* the library's path; NULL until it is found */
    const char *name;             /* the symbol's full name */
    ms_elf_slot slot;
    uintptr_t relro_from, relro_to;
    bool ambiguous; /* several symbols match */
};

struct dynamic {
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * tables[2];
    size_t counts[2];
};

static bool is_library(const char *path, const char *library)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path;
    return name && strncmp(name, library, strlen(library)) == 0 && strncmp(name + strlen(library), ".so", 3) == 0;
}

/* glibc writes absolute addresses into the dynamic section; other dynamic linkers leave offsets. */
static const void *absolute_address(const struct dl_phdr_info *info, ElfW(Addr) address)
{
    return (const void *)(address < info->dlpi_addr ? info->dlpi_addr + address : address);
}

static struct dynamic read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) * entry)
{
    struct dynamic dynamic = {0};
    for (; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            dynamic.symbols = absolute_address(info, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            dynamic.strings = absolute_address(info, entry->d_un.d_ptr);
            break;
        case DT_JMPREL:
            dynamic.tables[0] = absolute_address(info, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            dynamic.counts[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_RELA:
            dynamic.tables[1] = absolute_address(info, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            dynamic.counts[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
            break;
        default:
            break;
        }
    }
    return dynamic;
}

static void search_relocations(struct search *search, const struct dl_phdr_info *info, const struct dynamic *dynamic)
{
    size_t length = strlen(search->symbol);
    if (!dynamic->symbols || !dynamic->strings)
        return;
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; dynamic->tables[table] && i < dynamic->counts[table]; i++) {
            const ElfW(Rela) *relocation = &dynamic->tables[table][i];
            uint32_t type = ELF64_R_TYPE(relocation->r_info);
            if (type != JUMP_SLOT && type != GLOB_DAT)
                continue;
            const char *name = dynamic->strings + dynamic->symbols[ELF64_R_SYM(relocation->r_info)].st_name;
            if (strncmp(name, search->symbol, length) != 0)
                continue;
            search->ambiguous |= search->slot.address != NULL;
            search->name = name;
            search->slot.address = (ms_function *)(info->dlpi_addr + relocation->r_offset);
        }
    }
}

static int search_library(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct search *search = data;
    if (!is_library(info->dlpi_name, search->library))
        return 0;
    search->path = info->dlpi_name;
    search->slot.from = UINTPTR_MAX;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + header->p_vaddr, to = from + header->p_memsz;
        if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)from;
        } else if (header->p_type == PT_GNU_RELRO) {
            search->relro_from = from;
            search->relro_to = to;
        } else if (header->p_type == PT_LOAD) {
            search->slot.from = from < search->slot.from ? from : search->slot.from;
            search->slot.to = to > search->slot.to ? to : search->slot.to;
        }
    }
    if (dynamic && search->symbol) {
        struct dynamic tables = read_dynamic(info, dynamic);
        search_relocations(search, info, &tables);
    }
    return 1;
}

/* The library may be loaded with RTLD_LOCAL, so its symbols are looked up in its own handle. */
static ms_function find_function(const char *path, const char *name)
{
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return NULL;
    void *found = dlsym(handle, name);
    dlclose(handle);
    ms_function function;
    memcpy(&function, &found, sizeof function); /* ISO C has no cast from an object pointer to a function pointer */
    return function;
}

/* Whether the address is in a page that is read-only after relocation. */
static bool is_read_only(const struct search *search, uintptr_t at)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return at >= (search->relro_from & ~(page - 1)) && at < (search->relro_to & ~(page - 1));
}

int ms_elf_slot_find(const char *library, const char *symbol, ms_elf_slot *slot)
{
    struct search search = {.library = library, .symbol = symbol};
    dl_iterate_phdr(search_library, &search);
    if (!search.slot.address)
        return ENOENT;
    if (search.ambiguous)
        return EEXIST;
    search.slot.function = find_function(search.path, search.name);
    if (!search.slot.function)
        return ENOENT;
    search.slot.read_only = is_read_only(&search, (uintptr_t)search.slot.address);
    *slot = search.slot;
    return 0;
}

int ms_elf_slot_at(const char *library, uintptr_t address, ms_elf_slot *slot)
{
    struct search search = {.library = library};
    dl_iterate_phdr(search_library, &search);
    if (!search.path || address < search.slot.from || address >= search.slot.to || address % sizeof(ms_function))
        return ENOENT;
    *slot = (ms_elf_slot){.address = (ms_function *)address, .read_only = is_read_only(&search, address)};
    slot->function = __atomic_load_n(slot->address, __ATOMIC_ACQUIRE);
    return 0; /* from == to: the slot never holds the stub of a function that is not resolved yet */
}

bool ms_elf_contains(const char *library, uintptr_t address)
{
    struct search search = {.library = library};
    dl_iterate_phdr(search_library, &search);
    return search.path && address >= search.slot.from && address < search.slot.to;
}

ms_function ms_elf_slot_read(const ms_elf_slot *slot)
{
    ms_function value = __atomic_load_n(slot->address, __ATOMIC_ACQUIRE);
    uintptr_t at = (uintptr_t)value;
    return at >= slot->from && at < slot->to ? slot->function : value;
}

int ms_elf_slot_write(const ms_elf_slot *slot, ms_function value)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)slot->address & ~(size - 1));
    if (slot->read_only && mprotect(page, size, PROT_READ | PROT_WRITE) != 0)
        return errno;
    __atomic_store_n(slot->address, value, __ATOMIC_RELEASE);
    if (slot->read_only && mprotect(page, size, PROT_READ) != 0)
        return 0; /* The slot is written; a page that stays writable does no harm. */
    return 0;
}

ms_function ms_elf_symbol_find(const char *library, const char *symbol)
{
    struct search search = {.library = library};
    dl_iterate_phdr(search_library, &search);
    return search.path ? find_function(search.path, symbol) : NULL;
}

#else

int ms_elf_slot_find(const char *library, const char *symbol, ms_elf_slot *slot)
{
    (void)library, (void)symbol, (void)slot;
    return ENOSYS;
}

int ms_elf_slot_at(const char *library, uintptr_t address, ms_elf_slot *slot)
{
    (void)library, (void)address, (void)slot;
    return ENOSYS;
}

bool ms_elf_contains(const char *library, uintptr_t address)
{
    (void)library, (void)address;
    return false;
}

ms_function ms_elf_slot_read(const ms_elf_slot *slot)
{
    return *slot->address;
}

int ms_elf_slot_write(const ms_elf_slot *slot, ms_function value)
{
    (void)slot, (void)value;
    return ENOSYS;
}

ms_function ms_elf_symbol_find(const char *library, const char *symbol)
{
    (void)library, (void)symbol;
    return NULL;
}

#endif
