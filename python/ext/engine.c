/* Engine: one dd_engine. Every method is three steps: convert arguments, release the interpreter lock
 * around the one library call, convert the result. The handle is kept until dealloc, so that a call
 * after stop() gets the library's answer and not a crash. */
#include "engine.h"

#include "convert.h"

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cluster_id", "role", NULL};
    struct state *state = PyType_GetModuleState(type);
    allocfunc create = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *id_object;
    uint64_t cluster_id;
    EngineObject *self;
    dd_error err = {0};
    dd_status st;
    int role;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oi", names, &id_object, &role) ||
        !dd_convert_u64(id_object, "cluster_id", &cluster_id)) {
        return NULL;
    }
    self = (EngineObject *)create(type, 0);
    if (self == NULL) {
        return NULL;
    }
    st = dd_engine_create(cluster_id, (dd_role)role, &self->engine, &err);
    if (st != DD_OK) {
        Py_DECREF(self);
        return dd_raise(state, st, &err);
    }
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    dd_engine *engine = ((EngineObject *)op)->engine;

    Py_BEGIN_ALLOW_THREADS dd_engine_destroy(engine);
    Py_END_ALLOW_THREADS release(op);
    Py_DECREF(type);
}

PyObject *dd_engine_finish(PyObject *op, dd_status st, const dd_error *err)
{
    if (st != DD_OK) {
        return dd_raise(dd_state_of(op), st, err);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_set(PyObject *op, PyObject *args)
{
    PyObject *key_object;
    PyObject *value_object;
    PyObject *key = NULL;
    PyObject *value = NULL;
    PyObject *result = NULL;
    dd_error err = {0};

    if (!PyArg_ParseTuple(args, "OO", &key_object, &value_object)) {
        return NULL;
    }
    key = dd_convert_text(key_object, "key");
    value = key == NULL ? NULL : dd_convert_text(value_object, "value");
    if (value != NULL) {
        dd_status st = dd_engine_set(((EngineObject *)op)->engine, PyBytes_AsString(key),
                                     PyBytes_AsString(value), &err);

        result = dd_engine_finish(op, st, &err);
    }
    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

static PyObject *engine_start(PyObject *op, PyObject *unused)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_error err = {0};
    dd_status st;

    (void)unused;
    Py_BEGIN_ALLOW_THREADS st = dd_engine_start(engine, &err);
    Py_END_ALLOW_THREADS return dd_engine_finish(op, st, &err);
}

static PyObject *engine_stop(PyObject *op, PyObject *unused)
{
    dd_engine *engine = ((EngineObject *)op)->engine;

    (void)unused;
    Py_BEGIN_ALLOW_THREADS dd_engine_stop(engine);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *engine_address(PyObject *op, PyObject *unused)
{
    char text[128];
    dd_error err = {0};
    dd_status st = dd_engine_address(((EngineObject *)op)->engine, text, sizeof(text), &err);

    (void)unused;
    return st == DD_OK ? PyUnicode_FromString(text) : dd_raise(dd_state_of(op), st, &err);
}

/* ---- links ------------------------------------------------------------------------------------ */

/* Targets of one call, with the texts they borrow. */
struct targets {
    size_t count;
    dd_target *items;
    dd_status *results;
    PyObject **texts; /* two for each target */
};

static void free_targets(struct targets *targets)
{
    for (size_t i = 0; targets->texts != NULL && i < 2 * targets->count; i++) {
        Py_XDECREF(targets->texts[i]);
    }
    PyMem_Free(targets->items);
    PyMem_Free(targets->results);
    PyMem_Free(targets->texts);
}

/* An address that may be None, stored where it lives as long as the targets. */
static bool convert_address(PyObject *object, const char *name, PyObject **keep, const char **out)
{
    if (object == Py_None) {
        return true;
    }
    *keep = dd_convert_text(object, name);
    *out = *keep == NULL ? NULL : PyBytes_AsString(*keep);
    return *keep != NULL;
}

static bool convert_target(PyObject *item, size_t at, struct targets *targets)
{
    dd_target *target = &targets->items[at];
    Py_ssize_t size = PyTuple_Check(item) ? PyTuple_Size(item) : 0;

    *target = (dd_target){.size = sizeof(*target)};
    if (size < 2 || size > 3) {
        PyErr_SetString(PyExc_TypeError,
                        "targets only support tuple of (cluster_id, remote, local)");
        return false;
    }
    return dd_convert_u64(PyTuple_GetItem(item, 0), "cluster_id", &target->cluster_id) &&
           convert_address(PyTuple_GetItem(item, 1), "remote", &targets->texts[2 * at],
                           &target->remote) &&
           (size == 2 || convert_address(PyTuple_GetItem(item, 2), "local",
                                         &targets->texts[2 * at + 1], &target->local));
}

static bool convert_targets(PyObject *object, struct targets *targets)
{
    PyObject *list;
    bool is_ok;

    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "targets only support list or tuple");
        return false;
    }
    list = PySequence_List(object);
    if (list == NULL) {
        return false;
    }
    targets->count = (size_t)PyList_Size(list);
    targets->items = PyMem_Calloc(targets->count + 1, sizeof(*targets->items));
    targets->results = PyMem_Calloc(targets->count + 1, sizeof(*targets->results));
    targets->texts = PyMem_Calloc(2 * targets->count + 1, sizeof(*targets->texts));
    is_ok = targets->items != NULL && targets->results != NULL && targets->texts != NULL;
    if (!is_ok) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; is_ok && i < targets->count; i++) {
        targets->results[i] = DD_FAILED;
        is_ok = convert_target(PyList_GetItem(list, (Py_ssize_t)i), i, targets);
    }
    Py_DECREF(list);
    return is_ok;
}

/* (status, [status of each target], text); no list when the call was refused as a whole. */
static PyObject *link_result(const struct targets *targets, dd_status st, const dd_error *err)
{
    bool is_whole = targets->count == 0 || st == DD_FINALIZED || st == DD_NO_MEMORY;
    PyObject *list = PyList_New(0);

    for (size_t i = 0; list != NULL && !is_whole && i < targets->count; i++) {
        PyObject *number = PyLong_FromUnsignedLong(targets->results[i]);

        if (number == NULL || PyList_Append(list, number) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list == NULL ? NULL : Py_BuildValue("(kNs)", (unsigned long)st, list, err->text);
}

static PyObject *engine_link_open(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    struct targets targets = {0};
    PyObject *targets_object;
    PyObject *timeout_object;
    PyObject *result = NULL;
    uint32_t timeout_ms;
    dd_error err = {0};
    dd_status st;

    if (PyArg_ParseTuple(args, "OO", &targets_object, &timeout_object) &&
        convert_targets(targets_object, &targets) &&
        dd_convert_u32(timeout_object, "timeout_ms", &timeout_ms)) {
        Py_BEGIN_ALLOW_THREADS st = dd_link_open(engine, targets.items, targets.count,
                                                 targets.results, timeout_ms, &err);
        Py_END_ALLOW_THREADS result = link_result(&targets, st, &err);
    }
    free_targets(&targets);
    return result;
}

static PyObject *engine_link_close(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    struct targets targets = {0};
    PyObject *targets_object;
    PyObject *timeout_object;
    PyObject *result = NULL;
    uint32_t timeout_ms;
    dd_error err = {0};
    dd_status st;
    int force;

    if (PyArg_ParseTuple(args, "OOp", &targets_object, &timeout_object, &force) &&
        convert_targets(targets_object, &targets) &&
        dd_convert_u32(timeout_object, "timeout_ms", &timeout_ms)) {
        Py_BEGIN_ALLOW_THREADS st = dd_link_close(engine, targets.items, targets.count,
                                                  targets.results, timeout_ms, force != 0, &err);
        Py_END_ALLOW_THREADS result = link_result(&targets, st, &err);
    }
    free_targets(&targets);
    return result;
}

static PyObject *engine_link_check(PyObject *op, PyObject *arg)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    uint64_t cluster_id;
    dd_error err = {0};
    dd_status st;

    if (!dd_convert_u64(arg, "cluster_id", &cluster_id)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS st = dd_link_check(engine, cluster_id, &err);
    Py_END_ALLOW_THREADS return dd_engine_finish(op, st, &err);
}

/* ---- caches ----------------------------------------------------------------------------------- */

/* A sequence of (kind, id, model_id) -> an array that the caller frees. */
static bool convert_keys(PyObject *object, dd_key **out, size_t *count)
{
    PyObject *list;
    bool is_ok = true;

    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "keys only support list or tuple");
        return false;
    }
    list = PySequence_List(object);
    if (list == NULL) {
        return false;
    }
    *count = (size_t)PyList_Size(list);
    *out = PyMem_Calloc(*count + 1, sizeof(**out));
    if (*out == NULL) {
        PyErr_NoMemory();
        is_ok = false;
    }
    for (size_t i = 0; is_ok && i < *count; i++) {
        is_ok = dd_convert_key(PyList_GetItem(list, (Py_ssize_t)i), "keys", &(*out)[i]);
    }
    Py_DECREF(list);
    return is_ok;
}

static PyObject *engine_cache_alloc(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_cache_desc desc = {.size = sizeof(desc)};
    PyObject *tensors;
    PyObject *dims;
    PyObject *keys_object;
    PyObject *result = NULL;
    dd_key *keys = NULL;
    int64_t *values = NULL;
    size_t dim_count = 0;
    size_t key_count = 0;
    int data_type;
    int placement;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OOiiO", &tensors, &dims, &data_type, &placement, &keys_object)) {
        return NULL;
    }
    if (dd_convert_u32(tensors, "tensor_count", &desc.tensor_count) &&
        dd_convert_i64_list(dims, "dims", &values, &dim_count) &&
        convert_keys(keys_object, &keys, &key_count)) {
        desc.data_type = (dd_data_type)data_type;
        desc.placement = (dd_placement)placement;
        desc.dim_count = dim_count > UINT32_MAX ? UINT32_MAX : (uint32_t)dim_count;
        desc.dims = values;
        Py_BEGIN_ALLOW_THREADS st = dd_cache_alloc(engine, &desc, keys, key_count, &cache, &err);
        Py_END_ALLOW_THREADS result = st == DD_OK ? PyLong_FromLongLong(cache)
                                                  : dd_raise(dd_state_of(op), st, &err);
    }
    PyMem_Free(values);
    PyMem_Free(keys);
    return result;
}

static PyObject *engine_cache_addresses(PyObject *op, PyObject *args)
{
    PyObject *objects[3];
    PyObject *list = NULL;
    uint64_t *addresses;
    uint32_t device;
    uint32_t count;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OOO", &objects[0], &objects[1], &objects[2]) ||
        !dd_convert_i64(objects[0], "cache_id", &cache) ||
        !dd_convert_u32(objects[1], "device", &device) ||
        !dd_convert_u32(objects[2], "tensor_count", &count)) {
        return NULL;
    }
    addresses = PyMem_Malloc(((size_t)count + 1) * sizeof(*addresses));
    if (addresses == NULL) {
        return PyErr_NoMemory();
    }
    st = dd_cache_addresses(((EngineObject *)op)->engine, cache, device, addresses, count, &err);
    if (st != DD_OK) {
        PyMem_Free(addresses);
        return dd_raise(dd_state_of(op), st, &err);
    }
    list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(addresses[i]);

        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(list);
        }
    }
    PyMem_Free(addresses);
    return list;
}

static PyObject *engine_cache_free(PyObject *op, PyObject *arg)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!dd_convert_i64(arg, "cache_id", &cache)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS st = dd_cache_free(engine, cache, &err);
    Py_END_ALLOW_THREADS return dd_engine_finish(op, st, &err);
}

static PyObject *engine_key_remove(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_key key;
    dd_error err = {0};
    dd_status st;

    if (!dd_convert_key(args, "key", &key)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS st = dd_key_remove(engine, &key, &err);
    Py_END_ALLOW_THREADS return dd_engine_finish(op, st, &err);
}

static PyObject *engine_view(PyObject *op, PyObject *args)
{
    PyObject *objects[4];
    dd_view *view;
    uint32_t device;
    uint32_t tensor;
    int64_t cache;
    int data_type;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OOOOi", &objects[0], &objects[1], &objects[2], &objects[3],
                          &data_type) ||
        !dd_convert_i64(objects[0], "cache_id", &cache) ||
        !dd_convert_u32(objects[1], "device", &device) ||
        !dd_convert_u32(objects[2], "tensor", &tensor)) {
        return NULL;
    }
    st = dd_view_open(((EngineObject *)op)->engine, cache, device, tensor, &view, &err);
    if (st != DD_OK) {
        return dd_raise(dd_state_of(op), st, &err);
    }
    return dd_view_new(dd_state_of(op), view, objects[3], data_type);
}

static PyObject *engine_stats(PyObject *op, PyObject *unused)
{
    dd_stats s = {.size = sizeof(s)};
    dd_error err = {0};
    dd_status st = dd_stats_get(((EngineObject *)op)->engine, &s, &err);

    (void)unused;
    if (st != DD_OK) {
        return dd_raise(dd_state_of(op), st, &err);
    }
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsKsK}", "links", (unsigned long long)s.links,
                         "caches", (unsigned long long)s.caches, "keys", (unsigned long long)s.keys,
                         "pins", (unsigned long long)s.pins, "pulls", (unsigned long long)s.pulls,
                         "pulls_failed", (unsigned long long)s.pulls_failed, "bytes_pulled",
                         (unsigned long long)s.bytes_pulled, "serves", (unsigned long long)s.serves,
                         "serves_failed", (unsigned long long)s.serves_failed, "bytes_served",
                         (unsigned long long)s.bytes_served, "pool_limit_bytes",
                         (unsigned long long)s.pool_limit_bytes, "pool_used_bytes",
                         (unsigned long long)s.pool_used_bytes, "pool_peak_bytes",
                         (unsigned long long)s.pool_peak_bytes, "pool_largest_free",
                         (unsigned long long)s.pool_largest_free);
}

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function

static PyMethodDef engine_methods[] = {
    {"set", engine_set, METH_VARARGS, "set(key, value): set an option before start()."},
    {"start", engine_start, METH_NOARGS, "Start the engine; its port is open afterwards."},
    {"stop", engine_stop, METH_NOARGS, "Stop the engine. Idempotent; waits for running calls."},
    {"address", engine_address, METH_NOARGS, "Return \"host:port\" of the listener, or \"\"."},
    {"link_open", engine_link_open, METH_VARARGS,
     "link_open(targets, timeout_ms) -> (status, [status], text). Blocks, lock released."},
    {"link_close", engine_link_close, METH_VARARGS,
     "link_close(targets, timeout_ms, force) -> (status, [status], text). Blocks, lock released."},
    {"link_check", engine_link_check, METH_O,
     "link_check(cluster_id): make a round trip on the data path."},
    {"cache_alloc", engine_cache_alloc, METH_VARARGS,
     "cache_alloc(tensor_count, dims, data_type, placement, keys) -> cache id."},
    {"cache_addresses", engine_cache_addresses, METH_VARARGS,
     "cache_addresses(cache_id, device, tensor_count) -> [address]."},
    {"cache_free", engine_cache_free, METH_O, "cache_free(cache_id): give the id back."},
    {"key_remove", engine_key_remove, METH_VARARGS, "key_remove(kind, id, model_id)."},
    {"pull", WITH_KEYWORDS(dd_engine_pull_method), METH_VARARGS | METH_KEYWORDS,
     "pull(cluster_id, key, cache_id, *, ...): see dd_pull. Blocks, lock released."},
    {"pull_blocks", WITH_KEYWORDS(dd_engine_pull_blocks_method), METH_VARARGS | METH_KEYWORDS,
     "pull_blocks(cluster_id, key, cache_id, src_blocks, dst_blocks, *, ...): see dd_pull_blocks."},
    {"view", engine_view, METH_VARARGS, "view(cache_id, device, tensor, dims, data_type) -> View."},
    {"stats", engine_stats, METH_NOARGS, "Return the fields of dd_stats as a dict."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot engine_slots[] = {{Py_tp_new, engine_new},
                                     {Py_tp_dealloc, engine_dealloc},
                                     {Py_tp_methods, engine_methods},
                                     {Py_tp_doc, "Engine(cluster_id, role): one participant."},
                                     {0, NULL}};

PyType_Spec dd_engine_spec = {.name = "llm_datadist._datadist.Engine",
                              .basicsize = sizeof(EngineObject),
                              .flags = Py_TPFLAGS_DEFAULT,
                              .slots = engine_slots};
