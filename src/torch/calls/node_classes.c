/* node_classes.c - the class of a backward node: of a C++ class by its type information, which the C++ ABI puts before
 * the table of virtual functions, and of a custom Function by the type of its Python object. */
#include "torch/calls/calls.h"

#include <stdlib.h>
#include <string.h>

/* The last name in a type's mangled name, which is the class: "N5torch8autograd9generated14AddmmBackward0E". */
static void read_class_name(const char *mangled, char *name, size_t room)
{
    name[0] = '\0';
    for (const char *at = mangled; *at;) {
        char *end = (char *)at;
        unsigned long length = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (!length || strnlen(end, length) < length) {
            at++;
            continue;
        }
        size_t copied = length < room - 1 ? length : room - 1;
        memcpy(name, end, copied);
        name[copied] = '\0';
        at = end + length;
    }
}

bool mst_node_class(const void *table, char name[MST_CLASS_NAME])
{
    const void *const *type = ((const void *const *const *)table)[-1];
    const char *mangled = type ? type[1] : NULL;
    name[0] = '\0';
    if (mangled)
        read_class_name(mangled, name, MST_CLASS_NAME);
    return name[0] && strcmp(name, "PyNode") != 0;
}

const char *mst_custom_class(const void *node)
{
    PyObject *object = mst.node_layout.object >= 0 ? (PyObject *)mst_node_word(node, mst.node_layout.object) : NULL;
    return object ? Py_TYPE(object)->tp_name : NULL;
}

uintptr_t mst_class_key(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    return (uintptr_t)hash | 1; /* tables are at even addresses */
}
