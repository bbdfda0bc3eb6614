/* refused_malloc.h - refuse one allocation of code that takes its memory from malloc. The linker passes calls of
 * malloc, calloc, realloc and free through here (--wrap in tools/c.mk). For one thread. */
#ifndef MS_TEST_REFUSED_MALLOC_H
#define MS_TEST_REFUSED_MALLOC_H

/* Run `function` with allocation 1 refused, then with allocation 2, and so on, until none is left to refuse. Fails
 * unless the function returns `error` exactly if an allocation was refused, and frees whatever it allocated. */
void refuse_each_malloc(int (*function)(void), int error);

#endif
