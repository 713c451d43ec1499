/* Engine: one dd_engine. Every method is three steps: convert arguments, release the interpreter lock
 * around the one library call, convert the result. The handle is kept until dealloc, so that a call
 * after stop() gets the library's answer and not a crash. */
#include "engine.h"

#include "convert.h"

#include <stddef.h>
#include <unistd.h>

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cluster_id", "role", NULL};
    allocfunc create = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *id_object;
    PyObject *role_object;
    dd_engine *engine = NULL;
    EngineObject *self;
    uint64_t cluster_id;
    uint32_t role;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &id_object, &role_object) ||
        !convert_u64(id_object, "cluster_id", &cluster_id) ||
        !convert_u32(role_object, "role", &role)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_engine_create(cluster_id, (dd_role)role, &engine, &err);
    Py_END_ALLOW_THREADS;
    if (st != DD_OK) {
        return raise_status(PyType_GetModuleState(type), st, &err);
    }
    self = (EngineObject *)create(type, 0);
    if (self == NULL) {
        dd_engine_destroy(engine); /* has no threads yet */
        return NULL;
    }
    self->engine = engine;
    self->pid = getpid();
    return (PyObject *)self;
}

static int engine_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void engine_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    dd_engine *engine = ((EngineObject *)op)->engine;

    PyObject_GC_UnTrack(op);
    /* A forked child inherits the engine without its threads: waiting for them would never end. */
    if (((EngineObject *)op)->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS;
        dd_engine_destroy(engine);
        Py_END_ALLOW_THREADS;
    }
    PyObject_GC_Del(op);
    Py_DECREF(type);
}

PyObject *engine_finish(PyObject *op, dd_status st, const dd_error *err)
{
    return st == DD_OK ? new_none() : raise_status(state_of(op), st, err);
}

static PyObject *engine_set(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    PyObject *key_object;
    PyObject *value_object;
    PyObject *key;
    PyObject *value;
    PyObject *result = NULL;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OO:set", &key_object, &value_object)) {
        return NULL;
    }
    key = convert_text(key_object, "key");
    value = key == NULL ? NULL : convert_text(value_object, "value");
    if (value != NULL) {
        const char *key_text = PyBytes_AsString(key);
        const char *value_text = PyBytes_AsString(value);

        Py_BEGIN_ALLOW_THREADS;
        st = dd_engine_set(engine, key_text, value_text, &err);
        Py_END_ALLOW_THREADS;
        result = engine_finish(op, st, &err);
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
    Py_BEGIN_ALLOW_THREADS;
    st = dd_engine_start(engine, &err);
    Py_END_ALLOW_THREADS;
    return engine_finish(op, st, &err);
}

static PyObject *engine_stop(PyObject *op, PyObject *unused)
{
    dd_engine *engine = ((EngineObject *)op)->engine;

    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    dd_engine_stop(engine);
    Py_END_ALLOW_THREADS;
    return new_none();
}

static PyObject *engine_address(PyObject *op, PyObject *unused)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    char text[128];
    dd_error err = {0};
    dd_status st;

    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    st = dd_engine_address(engine, text, sizeof(text), &err);
    Py_END_ALLOW_THREADS;
    return st == DD_OK ? PyUnicode_FromString(text) : raise_status(state_of(op), st, &err);
}

/* ---- links ------------------------------------------------------------------------------------ */

/* In a result: nothing was written here. A number that is no status. */
#define NOT_WRITTEN UINT32_C(0xFFFFFFFE)

/* Targets of one call, with the texts they borrow. */
struct targets {
    size_t count;
    dd_target *items;
    dd_status *results;
    PyObject **texts; /* two for each target, or NULL */
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
    *keep = convert_text(object, name);
    *out = *keep == NULL ? NULL : PyBytes_AsString(*keep);
    return *keep != NULL;
}

/* (cluster_id, remote, local) to link, (cluster_id, remote or None) to unlink. */
static bool convert_target(PyObject *item, bool is_link, size_t at, struct targets *targets)
{
    dd_target *target = &targets->items[at];
    PyObject **texts = &targets->texts[2 * at];
    PyObject *remote;

    *target = (dd_target){.size = sizeof(*target)};
    if (!PyTuple_Check(item) || PyTuple_Size(item) != (is_link ? 3 : 2)) {
        return wrong_type(item, "targets inner type",
                          is_link ? "tuple of (cluster_id, remote, local)"
                                  : "tuple of (cluster_id, remote)");
    }
    remote = PyTuple_GetItem(item, 1);
    if (is_link && remote == Py_None) {
        return wrong_type(remote, "remote", "str");
    }
    return convert_u64(PyTuple_GetItem(item, 0), "cluster_id", &target->cluster_id) &&
           convert_address(remote, "remote", &texts[0], &target->remote) &&
           (!is_link ||
            convert_address(PyTuple_GetItem(item, 2), "local", &texts[1], &target->local));
}

static bool convert_targets(PyObject *object, bool is_link, struct targets *targets)
{
    PyObject *list = convert_items(object, "targets", &targets->count);
    bool is_ok;

    if (list == NULL) {
        targets->count = 0;
        return false;
    }
    targets->items = PyMem_Calloc(targets->count + 1, sizeof(*targets->items));
    targets->results = PyMem_Calloc(targets->count + 1, sizeof(*targets->results));
    targets->texts = PyMem_Calloc(2 * targets->count + 1, sizeof(*targets->texts));
    is_ok = targets->items != NULL && targets->results != NULL && targets->texts != NULL;
    if (!is_ok) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; is_ok && i < targets->count; i++) {
        targets->results[i] = NOT_WRITTEN;
        is_ok = convert_target(PyList_GetItem(list, (Py_ssize_t)i), is_link, i, targets);
    }
    Py_DECREF(list);
    return is_ok;
}

/* (status, [status of each target], text); no list when the call was refused as a whole. */
static PyObject *link_result(const struct targets *targets, dd_status st, const dd_error *err)
{
    PyObject *list = PyList_New(0);
    PyObject *text = error_text(err);
    PyObject *result = NULL;

    for (size_t i = 0; list != NULL && i < targets->count; i++) {
        PyObject *number;

        if (targets->results[i] == NOT_WRITTEN) {
            break;
        }
        number = PyLong_FromUnsignedLong(targets->results[i]);
        if (number == NULL || PyList_Append(list, number) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    if (list != NULL && text != NULL) {
        result = Py_BuildValue("(kOO)", (unsigned long)st, list, text);
    }
    Py_XDECREF(list);
    Py_XDECREF(text);
    return result;
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

    if (PyArg_ParseTuple(args, "OO:link_open", &targets_object, &timeout_object) &&
        convert_targets(targets_object, true, &targets) &&
        convert_u32(timeout_object, "timeout_ms", &timeout_ms)) {
        Py_BEGIN_ALLOW_THREADS;
        st = dd_link_open(engine, targets.items, targets.count, targets.results, timeout_ms, &err);
        Py_END_ALLOW_THREADS;
        result = link_result(&targets, st, &err);
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
    PyObject *force_object;
    PyObject *result = NULL;
    uint32_t timeout_ms;
    bool force;
    dd_error err = {0};
    dd_status st;

    if (PyArg_ParseTuple(args, "OOO:link_close", &targets_object, &timeout_object, &force_object) &&
        convert_targets(targets_object, false, &targets) &&
        convert_u32(timeout_object, "timeout_ms", &timeout_ms) &&
        convert_bool(force_object, "force", &force)) {
        Py_BEGIN_ALLOW_THREADS;
        st = dd_link_close(engine, targets.items, targets.count, targets.results, timeout_ms, force,
                           &err);
        Py_END_ALLOW_THREADS;
        result = link_result(&targets, st, &err);
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

    if (!convert_u64(arg, "cluster_id", &cluster_id)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_link_check(engine, cluster_id, &err);
    Py_END_ALLOW_THREADS;
    return engine_finish(op, st, &err);
}

/* ---- caches ----------------------------------------------------------------------------------- */

static PyObject *engine_cache_alloc(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_cache_desc desc = {.size = sizeof(desc)};
    PyObject *objects[5];
    PyObject *result = NULL;
    dd_key *keys = NULL;
    int64_t *dims = NULL;
    size_t dim_count = 0;
    size_t key_count = 0;
    uint32_t data_type;
    uint32_t placement;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (PyArg_ParseTuple(args, "OOOOO:cache_alloc", &objects[0], &objects[1], &objects[2],
                         &objects[3], &objects[4]) &&
        convert_u32(objects[0], "tensor_count", &desc.tensor_count) &&
        convert_i64_list(objects[1], "dims", &dims, &dim_count) &&
        convert_u32(objects[2], "data_type", &data_type) &&
        convert_u32(objects[3], "placement", &placement) &&
        convert_keys(objects[4], &keys, &key_count)) {
        desc.data_type = (dd_data_type)data_type;
        desc.placement = (dd_placement)placement;
        desc.dim_count = dim_count > UINT32_MAX ? UINT32_MAX : (uint32_t)dim_count;
        desc.dims = dims;
        Py_BEGIN_ALLOW_THREADS;
        st = dd_cache_alloc(engine, &desc, keys, key_count, &cache, &err);
        Py_END_ALLOW_THREADS;
        result = st == DD_OK ? PyLong_FromLongLong(cache) : raise_status(state_of(op), st, &err);
    }
    PyMem_Free(dims);
    PyMem_Free(keys);
    return result;
}

/* A list of int (new). */
static PyObject *list_of(const uint64_t *values, uint32_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);

    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(values[i]);

        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *engine_cache_addresses(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    PyObject *objects[3];
    PyObject *result;
    uint64_t *addresses;
    uint32_t device;
    uint32_t count;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OOO:cache_addresses", &objects[0], &objects[1], &objects[2]) ||
        !convert_i64(objects[0], "cache_id", &cache) ||
        !convert_u32(objects[1], "device", &device) ||
        !convert_u32(objects[2], "tensor_count", &count)) {
        return NULL;
    }
    addresses = PyMem_Malloc(((size_t)count + 1) * sizeof(*addresses));
    if (addresses == NULL) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_cache_addresses(engine, cache, device, addresses, count, &err);
    Py_END_ALLOW_THREADS;
    result = st == DD_OK ? list_of(addresses, count) : raise_status(state_of(op), st, &err);
    PyMem_Free(addresses);
    return result;
}

static PyObject *engine_cache_free(PyObject *op, PyObject *arg)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!convert_i64(arg, "cache_id", &cache)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_cache_free(engine, cache, &err);
    Py_END_ALLOW_THREADS;
    return engine_finish(op, st, &err);
}

static PyObject *engine_key_remove(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_key key;
    dd_error err = {0};
    dd_status st;

    if (!convert_key(args, &key)) { /* the arguments look like one */
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_key_remove(engine, &key, &err);
    Py_END_ALLOW_THREADS;
    return engine_finish(op, st, &err);
}

static PyObject *engine_view(PyObject *op, PyObject *args)
{
    dd_engine *engine = ((EngineObject *)op)->engine;
    PyObject *objects[5];
    dd_view *view;
    uint32_t device;
    uint32_t tensor;
    uint32_t data_type;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTuple(args, "OOOOO:view", &objects[0], &objects[1], &objects[2], &objects[3],
                          &objects[4]) ||
        !convert_i64(objects[0], "cache_id", &cache) ||
        !convert_u32(objects[1], "device", &device) ||
        !convert_u32(objects[2], "tensor", &tensor) ||
        !convert_u32(objects[4], "data_type", &data_type)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_view_open(engine, cache, device, tensor, &view, &err);
    Py_END_ALLOW_THREADS;
    if (st != DD_OK) {
        return raise_status(state_of(op), st, &err);
    }
    return view_new(state_of(op), view, objects[3], data_type);
}

static PyObject *engine_stats(PyObject *op, PyObject *unused)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"links", offsetof(dd_stats, links)},
        {"caches", offsetof(dd_stats, caches)},
        {"keys", offsetof(dd_stats, keys)},
        {"pins", offsetof(dd_stats, pins)},
        {"pulls", offsetof(dd_stats, pulls)},
        {"pulls_failed", offsetof(dd_stats, pulls_failed)},
        {"bytes_pulled", offsetof(dd_stats, bytes_pulled)},
        {"serves", offsetof(dd_stats, serves)},
        {"serves_failed", offsetof(dd_stats, serves_failed)},
        {"bytes_served", offsetof(dd_stats, bytes_served)},
        {"pool_limit_bytes", offsetof(dd_stats, pool_limit_bytes)},
        {"pool_used_bytes", offsetof(dd_stats, pool_used_bytes)},
        {"pool_peak_bytes", offsetof(dd_stats, pool_peak_bytes)},
        {"pool_largest_free", offsetof(dd_stats, pool_largest_free)},
    };
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_stats stats = {.size = sizeof(stats)};
    PyObject *dict;
    dd_error err = {0};
    dd_status st;

    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    st = dd_stats_get(engine, &stats, &err);
    Py_END_ALLOW_THREADS;
    if (st != DD_OK) {
        return raise_status(state_of(op), st, &err);
    }
    dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof(fields) / sizeof(fields[0]); i++) {
        const char *field = (const char *)&stats + fields[i].offset;
        PyObject *number = PyLong_FromUnsignedLongLong(*(const uint64_t *)(const void *)field);

        if (number == NULL || PyDict_SetItemString(dict, fields[i].name, number) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(number);
    }
    return dict;
}

/* Every method may run at the same time as any other; only `set` and `start` come first. All of them
 * raise TypeError and ValueError for arguments, and Error, with the status, for a failed call. */
static PyMethodDef engine_methods[] = {
    {"set", engine_set, METH_VARARGS,
     "set($self, key, value, /)\n--\n\n"
     "Set an option. Before start, and not while another thread starts the engine."},
    {"start", engine_start, METH_NOARGS,
     "start($self)\n--\n\nStart the engine; its port is open afterwards."},
    {"stop", engine_stop, METH_NOARGS,
     "stop($self)\n--\n\n"
     "Stop the engine. Idempotent. Blocks until running calls have returned."},
    {"address", engine_address, METH_NOARGS,
     "address($self)\n--\n\nReturn \"host:port\" of the listener, or \"\"."},
    {"link_open", engine_link_open, METH_VARARGS,
     "link_open($self, targets, timeout_ms, /)\n--\n\n"
     "Link with peers, all in parallel. Blocks, at most timeout_ms.\n\n"
     "targets: (cluster_id, remote, local or None) each.\n"
     "Returns (status, [status of each target], text); failures of the engine do not raise. The "
     "list is empty when the call was refused as a whole."},
    {"link_close", engine_link_close, METH_VARARGS,
     "link_close($self, targets, timeout_ms, force, /)\n--\n\n"
     "Unlink from peers. Blocks, at most timeout_ms.\n\n"
     "targets: (cluster_id, remote or None) each. Returns what link_open returns."},
    {"link_check", engine_link_check, METH_O,
     "link_check($self, cluster_id, /)\n--\n\n"
     "Make a round trip on the data path. Blocks, at most datadist.sync_timeout_ms."},
    {"cache_alloc", engine_cache_alloc, METH_VARARGS,
     "cache_alloc($self, tensor_count, dims, data_type, placement, keys, /)\n--\n\n"
     "Allocate a cache and return its id. keys: (kind, id, model_id) each."},
    {"cache_addresses", engine_cache_addresses, METH_VARARGS,
     "cache_addresses($self, cache_id, device, tensor_count, /)\n--\n\n"
     "Return the address of every tensor of one device."},
    {"cache_free", engine_cache_free, METH_O,
     "cache_free($self, cache_id, /)\n--\n\nGive the id of a cache back. Returns at once."},
    {"key_remove", engine_key_remove, METH_VARARGS,
     "key_remove($self, kind, id, model_id, /)\n--\n\n"
     "Remove a request or prefix key. An unknown one is fine."},
    {"pull", WITH_KEYWORDS(engine_pull), METH_VARARGS | METH_KEYWORDS,
     "pull($self, cluster_id, key, cache_id, *, src_cache=0, src_batch=0, dst_batch=0, bytes=0, "
     "src_offset=0, dst_offset=0, tensors_per_layer=2, src_layers=(0, 0), dst_layers=(0, 0), "
     "keep_key=False)\n--\n\n"
     "Pull a batch slice of a peer's cache, see dd_pull. key: (kind, id, model_id), or None with "
     "src_cache. Blocks, at most datadist.sync_timeout_ms."},
    {"pull_blocks", WITH_KEYWORDS(engine_pull_blocks), METH_VARARGS | METH_KEYWORDS,
     "pull_blocks($self, cluster_id, key, cache_id, src_blocks, dst_blocks, *, src_cache=0, "
     "src_batch=0, tensors_per_layer=2, src_layers=(0, 0), dst_layers=(0, 0))\n--\n\n"
     "Pull blocks of a peer's cache, see dd_pull_blocks. src_blocks None: the source is "
     "contiguous. "
     "Blocks, at most datadist.sync_timeout_ms."},
    {"view", engine_view, METH_VARARGS,
     "view($self, cache_id, device, tensor, dims, data_type, /)\n--\n\n"
     "Return a View of one tensor. Raises ValueError if dims and data_type do not describe it."},
    {"stats", engine_stats, METH_NOARGS, "stats($self)\n--\n\nReturn the fields of dd_stats."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot engine_slots[] = {
    {Py_tp_new, engine_new},
    {Py_tp_traverse, engine_traverse},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_doc, "Engine(cluster_id, role)\n--\n\nOne participant: its caches, its links."},
    {0, NULL}};

PyType_Spec engine_spec = {.name = "llm_datadist._datadist.Engine",
                           .basicsize = sizeof(EngineObject),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           .slots = engine_slots};
