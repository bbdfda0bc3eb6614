/* tensors.c - make tensors of the virtual device. They are ordinary tensors, of torch's own types. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include "interpose/elf_slot.h"

enum { MAX_DIMENSIONS = 64 };

/* at::TensorBase is a pointer to a TensorImpl; C++ returns it through the first argument. */
typedef void *tensor_base;
typedef struct optional_int64 {
    int64_t value;
    bool has_value;
} optional_int64;

typedef void empty_strided_function(tensor_base *result, const int64_t *sizes, size_t size_count,
                                    const int64_t *strides, size_t stride_count, void *allocator,
                                    uint64_t dispatch_keys, int8_t scalar_type);
typedef void as_strided_function(tensor_base *result, const tensor_base *self, const int64_t *sizes, size_t size_count,
                                 const int64_t *strides, size_t stride_count, optional_int64 offset);
typedef PyObject *wrap_function(tensor_base *tensor);
typedef int32_t new_handle_function(tensor_base **handle); /* torch's C functions, for an at::Tensor on the heap */
typedef int32_t delete_handle_function(tensor_base *handle);
static empty_strided_function *empty_strided;
static as_strided_function *as_strided;
static wrap_function *wrap_moved; /* NULL before torch 2.10 */
static wrap_function *wrap_copied;
static new_handle_function *new_handle;
static delete_handle_function *delete_handle;
static void (*resize_storage)(void *storage, size_t bytes);
static uint64_t cuda_keys; /* the dispatch key set of a dense CUDA tensor */

static PyObject *virtual_find_functions(PyObject *self, PyObject *keys)
{
    (void)self;
    cuda_keys = PyLong_AsUnsignedLongLong(keys);
    if (PyErr_Occurred())
        return NULL;
    empty_strided = (empty_strided_function *)ms_elf_symbol_find(
        "libtorch_cpu", "_ZN2at6detail21empty_strided_genericEN3c108ArrayRefIlEES3_PNS1_"
                        "9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeE");
    as_strided = (as_strided_function *)ms_elf_symbol_find(
        "libtorch_cpu", "_ZN2at6native21as_strided_tensorimplERKNS_6TensorEN3c108ArrayRefIlEES6_"
                        "St8optionalIlE");
    wrap_moved = (wrap_function *)ms_elf_symbol_find("libtorch_python", "_Z16THPVariable_WrapON2at10TensorBaseE");
    wrap_copied = (wrap_function *)ms_elf_symbol_find("libtorch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    new_handle = (new_handle_function *)ms_elf_symbol_find("libtorch_cpu", "aoti_torch_new_uninitialized_tensor");
    delete_handle = (delete_handle_function *)ms_elf_symbol_find("libtorch_cpu", "aoti_torch_delete_tensor_object");
    bool can_wrap = wrap_moved || (wrap_copied && new_handle && delete_handle);
    resize_storage = (void (*)(void *, size_t))ms_elf_symbol_find(
        "libtorch_cpu", "_ZN2at6native16resize_bytes_cpuEPN3c1011StorageImplEm");
    if (!empty_strided || !as_strided || !can_wrap || !resize_storage || !mst_layout_is_known())
        return PyUnicode_FromString("this torch lacks a function that makes tensors of a given device");
    Py_RETURN_NONE;
}

/* The Python object of a tensor, which it owns from now on. */
static PyObject *wrap_tensor(tensor_base tensor)
{
    tensor_base *handle = NULL; /* an at::Tensor without a TensorImpl */
    if (wrap_moved)
        return wrap_moved(&tensor); /* cppcheck-suppress returnDanglingLifetime */
    if (new_handle(&handle) != 0)
        return PyErr_NoMemory();
    *handle = tensor;
    PyObject *wrapped = wrap_copied(handle);
    delete_handle(handle);
    return wrapped;
}

/* torch.dtype is a Python object with the number of the scalar type behind its head. */
static int8_t scalar_type_of(PyObject *dtype)
{
    return *(const int8_t *)((const char *)dtype + sizeof(PyObject));
}

/* The number of dimensions, or -1 with an error set. */
static Py_ssize_t read_numbers(PyObject *sequence, int64_t *numbers)
{
    PyObject *fast = PySequence_Fast(sequence, "sizes and strides must be sequences");
    if (!fast)
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    if (count > MAX_DIMENSIONS)
        PyErr_Format(PyExc_ValueError, "a tensor of more than %d dimensions", MAX_DIMENSIONS);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        numbers[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
    Py_DECREF(fast);
    return PyErr_Occurred() ? -1 : count;
}

/* How many bytes a tensor needs, as torch computes it; -1 with an error set if that is no number. */
static int64_t bytes_needed(const int64_t *sizes, const int64_t *strides, Py_ssize_t count, int64_t item)
{
    int64_t last = 0;
    bool overflow = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t part;
        if (sizes[i] == 0)
            return 0;
        overflow |= sizes[i] < 0 || strides[i] < 0 || __builtin_mul_overflow(sizes[i] - 1, strides[i], &part) ||
                    __builtin_add_overflow(last, part, &last);
        if (overflow)
            break;
    }
    if (overflow || __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, item, &last)) {
        PyErr_SetString(PyExc_RuntimeError, "the size of a tensor is negative or too large");
        return -1;
    }
    return last;
}

static PyObject *virtual_empty(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    int64_t sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "virtual_empty takes sizes, strides, a dtype and its item size");
    Py_ssize_t dimensions = read_numbers(args[0], sizes);
    if (dimensions < 0 || read_numbers(args[1], strides) != dimensions)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "sizes and strides differ in length");
    int64_t item = PyLong_AsLongLong(args[3]);
    int64_t bytes = item > 0 ? bytes_needed(sizes, strides, dimensions, item) : -1;
    if (bytes < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "an item's size must be positive");
    struct mst_virtual_block *block;
    int error = mst_virtual_take((uint64_t)bytes, &block);
    if (error == MS_EDEVICE)
        Py_RETURN_NONE;
    if (error)
        return error == MS_ENOMEM ? PyErr_NoMemory() : PyErr_Format(PyExc_RuntimeError, "no virtual GPU is installed");
    mst_virtual_hand_over(block);
    tensor_base tensor = NULL;
    empty_strided(&tensor, sizes, (size_t)dimensions, strides, (size_t)dimensions, mst_virtual_allocator(), cuda_keys,
                  scalar_type_of(args[2]));
    return wrap_tensor(tensor);
}

static PyObject *virtual_empty_at(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    static const int64_t stride = 1;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "virtual_empty_at takes an address, bytes and torch.uint8");
    uint64_t address = PyLong_AsUnsignedLongLong(args[0]);
    int64_t bytes = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[1]);
    struct mst_virtual_block *block = PyErr_Occurred() ? NULL : mst_virtual_borrow_address(address);
    if (!block)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "no virtual GPU is installed");
    mst_virtual_hand_over(block);
    tensor_base tensor = NULL;
    empty_strided(&tensor, &bytes, 1, &stride, 1, mst_virtual_allocator(), cuda_keys, scalar_type_of(args[2]));
    return wrap_tensor(tensor);
}

static PyObject *virtual_alias(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    int64_t sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
    if (count != 4 || !PyObject_TypeCheck(args[0], mst.torch.tensor))
        return PyErr_Format(PyExc_TypeError, "virtual_alias takes a tensor, sizes, strides and an offset");
    Py_ssize_t dimensions = read_numbers(args[1], sizes);
    int64_t offset = PyLong_AsLongLong(args[3]);
    if (dimensions < 0 || PyErr_Occurred() || read_numbers(args[2], strides) != dimensions)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "sizes and strides differ in length");
    tensor_base of = (tensor_base)(uintptr_t)mst_impl_of(args[0]), tensor = NULL;
    as_strided(&tensor, &of, sizes, (size_t)dimensions, strides, (size_t)dimensions, (optional_int64){offset, true});
    return wrap_tensor(tensor);
}

/* A new memory of this size for a storage, given by its address, on the same device. torch's function copies what the
 * storage has, where it has something: it gets none first, and is then of the CPU. False if the device is full; the
 * storage is then as it was. */
static PyObject *virtual_resize(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "virtual_resize takes the address of a storage and bytes");
    void *storage = PyLong_AsVoidPtr(args[0]);
    uint64_t bytes = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[1]);
    struct mst_virtual_block *block = NULL;
    if (PyErr_Occurred())
        return NULL;
    int8_t *device = (int8_t *)storage + mst.layout.device, index = device[1]; /* c10::Device */
    int previous = mst_virtual_set_device(index);
    int error = bytes ? mst_virtual_take(bytes, &block) : MS_OK;
    mst_virtual_set_device(previous);
    if (error == MS_EDEVICE)
        Py_RETURN_FALSE;
    if (error)
        return PyErr_Format(PyExc_RuntimeError, "no memory, or no virtual GPU is installed");
    resize_storage(storage, 0);
    if (bytes) {
        mst_virtual_hand_over(block);
        resize_storage(storage, bytes);
    } else {
        device[0] = MST_CUDA;
        device[1] = index;
    }
    Py_RETURN_TRUE;
}

static PyObject *virtual_record_stream(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct mst_storage storage;
    if (count != 2 || !PyObject_TypeCheck(args[0], mst.torch.tensor))
        return PyErr_Format(PyExc_TypeError, "virtual_record_stream takes a tensor and the number of a stream");
    uint64_t stream = PyLong_AsUnsignedLongLongMask(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (mst_read_storage(mst_impl_of(args[0]), &storage)) {
        uint64_t context = mst_read_word(storage.storage, mst.layout.deleter + 8);
        struct mst_virtual_block *block = mst_virtual_block_of(storage.deleter, context);
        if (block)
            mst_virtual_use_on(block, stream);
    }
    Py_RETURN_NONE;
}

PyMethodDef mst_virtual_tensors_methods[] = {
    {"virtual_find_functions", virtual_find_functions, METH_O,
     "Find torch's functions that make tensors, given the dispatch keys of a CUDA tensor; None, or what is missing."},
    {"virtual_empty", (PyCFunction)(void (*)(void))virtual_empty, METH_FASTCALL,
     "A tensor of the virtual device, or None if the device is full."},
    {"virtual_empty_at", (PyCFunction)(void (*)(void))virtual_empty_at, METH_FASTCALL,
     "A tensor of bytes at an address of the current device, which does not own them."},
    {"virtual_alias", (PyCFunction)(void (*)(void))virtual_alias, METH_FASTCALL,
     "A tensor with these sizes, strides and offset in the storage of another one."},
    {"virtual_resize", (PyCFunction)(void (*)(void))virtual_resize, METH_FASTCALL,
     "Give a storage, by its address, new memory of this many bytes; False if the device is full."},
    {"virtual_record_stream", (PyCFunction)(void (*)(void))virtual_record_stream, METH_FASTCALL,
     "A tensor's memory is used on another stream, too."},
    {NULL, NULL, 0, NULL},
};
