/* claims.c - which object holds which block: parameters, buffers, gradients, optimizer state. */
#include "torch/memory.h"

#include "torch/map.h"
#include "torch/names.h"

#include <pthread.h>

bool mst_claims_due, mst_claims_unborn;

static struct mst_map owners; /* a parameter's TensorImpl -> the path of its module + 1 */
static pthread_mutex_t owners_lock = PTHREAD_MUTEX_INITIALIZER;
static PyObject *census; /* a dict, or NULL */

void mst_owners_lock(void)
{
    pthread_mutex_lock(&owners_lock);
}

void mst_owners_unlock(void)
{
    pthread_mutex_unlock(&owners_lock);
}

bool mst_owner_of(uint64_t impl, ms_path *path)
{
    mst_owners_lock();
    const uint64_t *there = mst_map_get(&owners, impl, 0);
    if (there)
        *path = (ms_path)*there;
    mst_owners_unlock();
    return there != NULL;
}

/* A parameter that several modules hold is the first one's. */
static ms_path add_owner(uint64_t impl, ms_path path)
{
    mst_owners_lock();
    const uint64_t *there = mst_map_get(&owners, impl, 0);
    if (there)
        path = (ms_path)*there;
    else
        mst_map_set(&owners, impl, 0, path);
    mst_owners_unlock();
    return path;
}

static void forget_owners(void)
{
    mst_owners_lock();
    mst_map_clear(&owners);
    mst_owners_unlock();
}

void mst_claims_census(PyObject *sizes)
{
    Py_XSETREF(census, Py_XNewRef(sizes));
}

/* ---- one tensor ---- */

/* Memory that was there before us: is it the allocator's, and how much? */
static bool from_before(const struct mst_storage *storage, uint64_t *bytes)
{
    *bytes = (uint64_t)storage->bytes;
    if (storage->device_type == MST_CPU)
        return !mst_cpu_deleter || storage->deleter == mst_cpu_deleter;
    PyObject *address = census ? PyLong_FromUnsignedLongLong(storage->data) : NULL;
    PyObject *size = address ? PyDict_GetItemWithError(census, address) : NULL;
    if (size)
        *bytes = PyLong_AsUnsignedLongLong(size);
    Py_XDECREF(address);
    PyErr_Clear();
    return !census || size;
}

static void claim_storage(const struct mst_storage *storage, ms_category category, ms_path path)
{
    if (!storage->data || storage->bytes <= 0)
        return;
    bool there = ms_block_claim(mst_target(), storage->data, category, path) != MS_ENOBLOCK;
    uint64_t bytes;
    bool inside = there || from_before(storage, &bytes);
    if (there && storage->device_type == MST_CPU && storage->deleter != mst_cpu_deleter) {
        /* Memory from outside may be seen in parts: the largest that begins there is the block. */
        if (ms_block_bytes(mst_target(), &storage->data, 1) < (uint64_t)storage->bytes)
            ms_block_resize(mst_target(), storage->data, (uint64_t)storage->bytes);
    }
    if (there)
        return;
    ms_block_add_as(mst_target(), NULL, storage->data, bytes,
                    mst_device_number(storage->device_type, storage->device_index), category, path, !inside);
}

static void claim_impl(uint64_t impl, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (impl && mst_storage_known() && mst_storage_of(impl, &storage))
        claim_storage(&storage, category, path);
}

void mst_claim_gradient(uint64_t grad, ms_path path)
{
    struct mst_storage storage;
    ms_ledger *ledger = atomic_load_explicit(&mst_gradients_to, memory_order_acquire);
    if (ledger && mst_storage_of(grad, &storage))
        ms_block_claim(ledger, mst_by_dispatcher ? storage.storage : storage.data, MS_GRADIENT, path);
}

struct claim {
    ms_category category;
    ms_path path;
};

/* A parameter that has no memory yet (nn.LazyLinear's) gets it in its module's first forward. */
static bool is_unborn(PyObject *tensor)
{
    struct mst_storage storage;
    if (LIKELY(Py_TYPE(tensor) == mst_torch.parameter || Py_TYPE(tensor) == mst_torch.tensor))
        return false;
    return mst_storage_known() && (!mst_storage_of(mst_impl_of(tensor), &storage) || storage.bytes == 0);
}

static int claim_one(PyObject *tensor, void *context)
{
    const struct claim *claim = context;
    if (UNLIKELY(is_unborn(tensor)))
        mst_claims_unborn = true;
    if (mst_by_dispatcher)
        return mst_dispatch_hold(tensor, claim->category, claim->path);
    claim_impl(mst_impl_of(tensor), claim->category, claim->path);
    return 0;
}

static void claim_tensor(PyObject *tensor, ms_category category, ms_path path)
{
    struct claim claim = {category, path};
    if (mst_inner_tensors(tensor, claim_one, &claim) != 0)
        PyErr_Clear(); /* a tensor that cannot be read holds nothing we know of */
}

enum { DEEPEST = 32 };

static void claim_within(PyObject *object, const struct claim *claim, int depth)
{
    if (PyObject_TypeCheck(object, mst_torch.tensor)) {
        claim_tensor(object, claim->category, claim->path);
    } else if (depth < DEEPEST && PyDict_Check(object)) {
        PyObject *values = PyDict_Values(object);
        for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(values); i++)
            claim_within(PyList_GET_ITEM(values, i), claim, depth + 1);
        Py_XDECREF(values);
    } else if (depth < DEEPEST && (PyList_Check(object) || PyTuple_Check(object))) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); i++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(object, i));
            claim_within(item, claim, depth + 1);
            Py_DECREF(item);
        }
    }
    PyErr_Clear();
}

void mst_claim(PyObject *object, ms_category category, ms_path path)
{
    struct claim claim = {category, path};
    if (mst_ledger)
        claim_within(object, &claim, 0);
}

/* ---- optimizers ---- */
void mst_claim_optimizer(PyObject *optimizer)
{
    PyObject *state = mst_ledger ? PyObject_GetAttr(optimizer, mst_words.state) : NULL;
    PyObject *items = state && PyDict_Check(state) ? PyDict_Items(state) : NULL;
    for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items); i++) {
        PyObject *key = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0);
        ms_path path = MS_GLOBAL;
        if (PyObject_TypeCheck(key, mst_torch.tensor))
            mst_owner_of(mst_impl_of(key), &path);
        mst_claim(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1), MS_OPTSTATE, path);
    }
    Py_XDECREF(items);
    Py_XDECREF(state);
    PyErr_Clear();
}

/* ---- modules ---- */
enum { GRADIENTS, BUFFERS, PARAMETERS, KINDS };

bool mst_claims_at_call;
static bool others_run; /* other threads that Python started */

/* One of them may be in a backward, and torch guards no gradient against that: where hooks tell of gradients, they are
 * not read at calls. Autograd's own threads do not count. */
static void look_for_others(void)
{
    others_run = false;
    if (mst_nodes_place || !mst_claims_at_call)
        return;
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *count = threading ? PyObject_CallMethod(threading, "active_count", NULL) : NULL;
    others_run = count && PyLong_AsLong(count) > 1;
    Py_XDECREF(count);
    Py_XDECREF(threading);
    mst_forget_error();
}

/* `now`: it has just been accumulated, by this thread. */
static void claim_gradient_of(PyObject *parameter, ms_path path, bool now)
{
    if (!mst_by_dispatcher && mst_layout.grad >= 0 && !mst_is_made_of_others(parameter)) {
        uint64_t there = mst_grad_of(mst_impl_of(parameter));
        if (there && mst_word(there, mst_layout.storage))
            claim_impl(there, MS_GRADIENT, path);
        if (!there || mst_word(there, mst_layout.storage))
            return;
    }
    if (!now && others_run)
        return; /* it is claimed when it is accumulated */
    PyObject *grad = PyObject_GetAttr(parameter, mst_words.grad);
    if (grad && grad != Py_None)
        claim_tensor(grad, MS_GRADIENT, path);
    Py_XDECREF(grad);
    PyErr_Clear();
}

/* ---- where nodes are not seen, parameters tell of their gradients by hooks that are C functions ---- */
static PyObject *handles; /* a dict: TensorImpl -> the hook's handle */

static PyObject *accumulated(PyObject *self, PyObject *parameter)
{
    (void)self;
    ms_path path = MS_GLOBAL;
    if (mst_ledger && PyObject_TypeCheck(parameter, mst_torch.tensor) && mst_owner_of(mst_impl_of(parameter), &path))
        claim_gradient_of(parameter, path, true);
    Py_RETURN_NONE;
}

static PyMethodDef accumulated_def = {"accumulated", accumulated, METH_O, NULL};

static void hook_gradient(PyObject *parameter)
{
    if (mst_nodes_place || (!handles && !(handles = PyDict_New())))
        return;
    PyObject *key = PyLong_FromUnsignedLongLong(mst_impl_of(parameter));
    if (key && !PyDict_Contains(handles, key)) {
        PyObject *hook = PyCFunction_New(&accumulated_def, NULL);
        PyObject *handle =
            hook ? PyObject_CallMethod(parameter, "register_post_accumulate_grad_hook", "O", hook) : NULL;
        if (handle)
            PyDict_SetItem(handles, key, handle);
        Py_XDECREF(handle);
        Py_XDECREF(hook);
    }
    Py_XDECREF(key);
    PyErr_Clear(); /* one that needs no gradient takes no hook */
}

void mst_claims_end_hooks(void)
{
    PyObject *all = handles ? PyDict_Values(handles) : NULL;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all); i++) {
        PyObject *result = PyObject_CallMethod(PyList_GET_ITEM(all, i), "remove", NULL);
        Py_XDECREF(result);
        PyErr_Clear();
    }
    Py_XDECREF(all);
    Py_CLEAR(handles);
}

static void claim_kind(PyObject *tensor, int kind, ms_path path)
{
    if (kind == GRADIENTS) {
        path = add_owner(mst_impl_of(tensor), path);
        hook_gradient(tensor);
        claim_gradient_of(tensor, path, false);
    } else if (kind == BUFFERS) {
        claim_tensor(tensor, MS_BUFFER, path);
    } else {
        mst_owner_of(mst_impl_of(tensor), &path);
        claim_tensor(tensor, MS_PARAMETER, path);
    }
}

static PyObject *tensors_of(PyObject *module, int kind)
{
    return mst_dict_of(module, kind == BUFFERS ? mst_words._buffers : mst_words._parameters);
}

/* TorchScript's modules keep tensors elsewhere, and their insides are no modules to us. */
static bool is_odd(PyObject *module)
{
    PyObject *own = mst_dict_of(module, NULL);
    PyObject *tensors = own ? PyDict_GetItemWithError(own, mst_words._parameters) : NULL;
    return !tensors || !PyDict_Check(tensors);
}

void mst_claim_module(struct mst_module *known)
{
    if (mst_by_dispatcher || !mst_storage_known()) {
        mst_claims_due = true;
        return;
    }
    mst_claims_due |= is_odd(known->module);
    ms_path path = mst_path_of_holding(known);
    for (int kind = 0; kind < KINDS; kind++) {
        PyObject *tensors = tensors_of(known->module, kind), *key, *tensor;
        Py_ssize_t position = 0;
        while (tensors && PyDict_Next(tensors, &position, &key, &tensor)) {
            if (!PyObject_TypeCheck(tensor, mst_torch.tensor))
                continue;
            if (mst_is_made_of_others(tensor))
                mst_claims_due = true;
            else
                claim_kind(tensor, kind, path);
        }
    }
}

struct held {
    PyObject *tensor; /* or a module of TorchScript; owned: Python may run before its turn comes */
    ms_path path;
};

struct holdings {
    struct held *held;
    size_t count, room;
};

static bool hold(struct holdings *all, PyObject *tensor, ms_path path)
{
    if (all->count == all->room) {
        size_t room = all->room ? all->room * 2 : 256;
        struct held *held = PyMem_Realloc(all->held, room * sizeof *held);
        if (!held)
            return false;
        all->held = held;
        all->room = room;
    }
    all->held[all->count++] = (struct held){Py_NewRef(tensor), path};
    return true;
}

static void claim_odd(PyObject *module, int kind, ms_path path)
{
    PyObject *found = PyObject_CallMethod(module, kind == BUFFERS ? "buffers" : "parameters", NULL);
    PyObject *tensors = found ? PySequence_List(found) : NULL;
    for (Py_ssize_t i = 0; tensors && i < PyList_GET_SIZE(tensors); i++)
        if (PyObject_TypeCheck(PyList_GET_ITEM(tensors, i), mst_torch.tensor))
            claim_kind(PyList_GET_ITEM(tensors, i), kind, path);
    Py_XDECREF(tensors);
    Py_XDECREF(found);
    PyErr_Clear();
}

static void claim_held(PyObject *object, int kind, ms_path path)
{
    if (PyObject_TypeCheck(object, mst_torch.module))
        claim_odd(object, kind, path);
    else
        claim_kind(object, kind, path);
}

static void hold_kind(struct holdings *all, int kind)
{
    for (size_t i = 0; i < mst_names->count; i++) {
        struct mst_module *known = mst_names->all[i];
        if (mst_alive(known) && is_odd(known->module) && !hold(all, known->module, mst_path_of_holding(known)))
            return;
        PyObject *tensors = mst_alive(known) ? tensors_of(known->module, kind) : NULL, *key, *tensor;
        ms_path path = tensors && PyDict_GET_SIZE(tensors) ? mst_path_of_holding(known) : MS_GLOBAL;
        Py_ssize_t position = 0;
        while (tensors && PyDict_Next(tensors, &position, &key, &tensor))
            if (PyObject_TypeCheck(tensor, mst_torch.tensor) && !hold(all, tensor, path))
                return;
    }
}

void mst_claim_modules(void)
{
    if (!mst_ledger || !mst_names)
        return;
    PyObject *callback = mst_dynamo_off();
    struct mst_quiet quiet;
    bool silent = mst_quiet_enter(&quiet) == 0;
    PyErr_Clear();
    mst_claims_due = mst_claims_unborn = false;
    look_for_others();
    forget_owners();
    bool stopped = mst_stop_collecting();
    mst_walk_new(mst_names);
    mst_collect_again(stopped);
    for (int kind = 0; kind < KINDS; kind++) {
        struct holdings all = {0};
        bool collecting = mst_stop_collecting();
        hold_kind(&all, kind);
        mst_collect_again(collecting);
        for (size_t i = 0; i < all.count; i++) {
            claim_held(all.held[i].tensor, kind, all.held[i].path);
            Py_DECREF(all.held[i].tensor);
        }
        PyMem_Free(all.held);
    }
    if (silent)
        mst_quiet_leave(&quiet);
    mst_dynamo_on(callback);
}

/* ---- tensors made of others ---- */
bool mst_is_made_of_others(PyObject *tensor)
{
    PyTypeObject *type = Py_TYPE(tensor);
    if (LIKELY(type == mst_torch.tensor || type == mst_torch.parameter))
        return false;
    return PyObject_HasAttr((PyObject *)type, mst_words.__tensor_flatten__);
}

/* A sparse tensor has no storage of its own, but tensors inside that do. */
static int visit_parts(PyObject *tensor, mst_visit *visit, void *context)
{
    static const char *const parts[] = {"_indices",    "crow_indices", "ccol_indices", "col_indices",
                                        "row_indices", "_values",      "values"};
    PyObject *sparse = PyObject_GetAttrString(tensor, "layout");
    int error = 0;
    bool strided = !sparse || sparse == mst_torch.strided;
    for (size_t i = 0; !strided && !error && i < sizeof parts / sizeof *parts; i++) {
        PyObject *part = PyObject_CallMethod(tensor, parts[i], NULL);
        PyErr_Clear(); /* each layout has some of them */
        if (part && PyObject_TypeCheck(part, mst_torch.tensor))
            error = visit(part, context);
        Py_XDECREF(part);
    }
    Py_XDECREF(sparse);
    PyErr_Clear();
    return error;
}

int mst_inner_tensors(PyObject *tensor, mst_visit *visit, void *context)
{
    if (LIKELY(!mst_is_made_of_others(tensor))) {
        bool own = mst_storage_known() && mst_word(mst_impl_of(tensor), mst_layout.storage) != 0;
        return LIKELY(own) ? visit(tensor, context) : visit_parts(tensor, visit, context);
    }
    PyObject *callback = mst_dynamo_off();
    PyObject *flat = PyObject_CallMethodNoArgs(tensor, mst_words.__tensor_flatten__);
    PyObject *names = flat && PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0 ? PyTuple_GET_ITEM(flat, 0) : NULL;
    PyObject *list = names ? PySequence_List(names) : NULL;
    int error = list ? 0 : -1;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(list); i++) {
        PyObject *inner = PyObject_GetAttr(tensor, PyList_GET_ITEM(list, i));
        if (!inner)
            error = -1;
        else if (PyObject_TypeCheck(inner, mst_torch.tensor))
            error = mst_inner_tensors(inner, visit, context);
        Py_XDECREF(inner);
    }
    Py_XDECREF(list);
    Py_XDECREF(flat);
    mst_dynamo_on(callback);
    if (error && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a tensor says neither what it is made of nor why");
    return error;
}
