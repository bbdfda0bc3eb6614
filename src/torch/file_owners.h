/* file_owners.h - whose a source file is: the program's own, an installed library's or Python's, torch's, or
 * modscope's. */
#ifndef MST_FILE_OWNERS_H
#define MST_FILE_OWNERS_H

#include "torch/state.h"

enum mst_owner { MST_OF_PROGRAM, MST_OF_LIBRARY, MST_OF_TORCH, MST_OF_MODSCOPE };

/* For any thread, with or without the GIL. */
enum mst_owner mst_owner_of_file(const char *file);
/* A method for Python. */
PyObject *mst_set_stack_folders(PyObject *self, PyObject *args);

#endif
