/* freed_code.h - whether code objects were freed, so that what is remembered by their addresses is no longer true. */
#ifndef MST_FREED_CODE_H
#define MST_FREED_CODE_H

#include "torch/state.h"

/* It changes whenever any code object is freed, while that is intercepted. */
extern _Atomic uint64_t mst_code_generation;

struct mst_freed_code {
    uintptr_t begin, end; /* the addresses from its first byte to the one after its last instruction */
};
enum { MST_MOST_FREED = 16 };
/* What was freed since the generation was `since`, and what it is now. False: too much to list; all code may have been.
 */
bool mst_freed_code_since(uint64_t since, uint64_t *now, struct mst_freed_code freed[MST_MOST_FREED], size_t *count);

bool mst_freed_code_intercept(void); /* false: it is not possible */
void mst_freed_code_restore(void);

#endif
