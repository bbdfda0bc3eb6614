/* node_classes.h - the class of a backward node, read without the GIL. */
#ifndef MST_NODE_CLASSES_H
#define MST_NODE_CLASSES_H

#include "torch/state.h"

enum { MST_CLASS_NAME = 256 };
/* The class of a C++ node by its table of virtual functions. False: it is not known. */
bool mst_node_class(const void *table, char name[MST_CLASS_NAME]);
/* The class of a custom Function's node, as autograd names it: "ScaleBackward". The text lives as long as the node.
 * NULL: it is not known. */
const char *mst_custom_class(const void *node);
/* A number that identifies the name, and no table of virtual functions. */
uintptr_t mst_class_key(const char *name);

#endif
