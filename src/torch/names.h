/* names.h - what names.c (books of modules) and naming.c (finding names) share. */
#ifndef MS_NAMES_H
#define MS_NAMES_H

#include "torch/native.h"

#include "torch/map.h"

struct mst_book {
    size_t refs;
    struct mst_module **all; /* every module known */
    size_t count, room;
    struct mst_map by_module;    /* the module's address -> struct mst_module */
    struct mst_map by_parameter; /* a parameter's address -> its owner */
    struct mst_map edges;        /* context, module -> path */
    struct mst_map by_path;      /* path -> the module that last got it */
    PyObject *by_fqn;            /* fqn -> weak reference */
};

/* While a book is changed nothing is collected: a finalizer is somebody's Python, which must not
 * run inside a place, and could change the book. */
static inline bool mst_stop_collecting(void)
{
    return PyGC_Disable();
}

static inline void mst_collect_again(bool collecting)
{
    if (collecting)
        PyGC_Enable();
}

/* The module's entry, made if need be. NULL when memory ran out or it takes no weak reference. */
struct mst_module *mst_book_add(mst_book *book, PyObject *module);
/* The name a module has, or is given as a root: borrowed, or NULL. Not while collecting. */
PyObject *mst_given_name(mst_book *book, PyObject *module);
/* Give a known module a name. */
void mst_book_rename(mst_book *book, struct mst_module *known, PyObject *fqn);
/* The dict `name` of a module's own dict, borrowed; NULL if it has none. Runs no Python. */
PyObject *mst_dict_of(PyObject *module, PyObject *name);
/* Name all that a module holds, which is called `known->fqn`, and note whose the parameters are. */
void mst_walk(mst_book *book, struct mst_module *known);
/* Name the modules that known ones have got since they were walked. Not while collecting. */
void mst_walk_new(mst_book *book);
/* The dotted name of `module` inside `owner`: the shortest, then the first. NULL if it is not there. */
PyObject *mst_name_inside(PyObject *owner, PyObject *module);

#endif
