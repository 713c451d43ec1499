/* Engine.pull and Engine.pull_blocks. */
#include "convert.h"
#include "engine.h"

/* The arguments that both pulls have. */
struct pull_args {
    PyObject *cluster_id;
    PyObject *key;
    PyObject *cache_id;
    PyObject *src_cache;
    PyObject *src_batch;
    PyObject *tensors_per_layer;
    PyObject *src_layers;
    PyObject *dst_layers;
};

static bool convert_source(const struct pull_args *args, dd_source *source, int64_t *cache)
{
    *source = (dd_source){.size = sizeof(*source)};
    if (!convert_u64(args->cluster_id, "cluster_id", &source->cluster_id) ||
        !convert_i64(args->cache_id, "cache_id", cache) ||
        (args->src_cache != NULL && !convert_i64(args->src_cache, "src_cache", &source->cache)) ||
        (args->src_batch != NULL && !convert_u32(args->src_batch, "src_batch", &source->batch))) {
        return false;
    }
    return args->key == Py_None || convert_key(args->key, &source->key);
}

static bool convert_selection(const struct pull_args *args, uint32_t *tensors_per_layer,
                              dd_layers *src, dd_layers *dst)
{
    return (args->tensors_per_layer == NULL ||
            convert_u32(args->tensors_per_layer, "tensors_per_layer", tensors_per_layer)) &&
           (args->src_layers == NULL || convert_layers(args->src_layers, "src_layers", src)) &&
           (args->dst_layers == NULL || convert_layers(args->dst_layers, "dst_layers", dst));
}

PyObject *engine_pull(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "cluster_id", "key",        "cache_id",   "src_cache",  "src_batch",
        "dst_batch",  "bytes",      "src_offset", "dst_offset", "tensors_per_layer",
        "src_layers", "dst_layers", "keep_key",   NULL};
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_slice slice = {.size = sizeof(slice)};
    struct pull_args common = {0};
    PyObject *dst_batch = NULL;
    PyObject *bytes = NULL;
    PyObject *src_offset = NULL;
    PyObject *dst_offset = NULL;
    PyObject *keep_key = Py_False;
    dd_source source;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$OOOOOOOOOO", names, &common.cluster_id,
                                     &common.key, &common.cache_id, &common.src_cache,
                                     &common.src_batch, &dst_batch, &bytes, &src_offset,
                                     &dst_offset, &common.tensors_per_layer, &common.src_layers,
                                     &common.dst_layers, &keep_key) ||
        !convert_source(&common, &source, &cache) ||
        !convert_selection(&common, &slice.tensors_per_layer, &slice.src_layers,
                           &slice.dst_layers) ||
        (dst_batch != NULL && !convert_u32(dst_batch, "dst_batch", &slice.dst_batch)) ||
        (bytes != NULL && !convert_u64(bytes, "bytes", &slice.bytes)) ||
        (src_offset != NULL && !convert_u64(src_offset, "src_offset", &slice.src_offset)) ||
        (dst_offset != NULL && !convert_u64(dst_offset, "dst_offset", &slice.dst_offset)) ||
        !convert_bool(keep_key, "keep_key", &slice.keep_key)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    st = dd_pull(engine, &source, cache, &slice, &err);
    Py_END_ALLOW_THREADS;
    return engine_finish(op, st, &err);
}

/* Both block lists; src_blocks may be None. The caller frees the arrays, also on failure. */
static bool convert_lists(PyObject *src_object, PyObject *dst_object, dd_blocks *blocks,
                          uint64_t **src, uint64_t **dst)
{
    size_t src_count = 0;

    if ((src_object != Py_None && !convert_u64_list(src_object, "src_blocks", src, &src_count)) ||
        !convert_u64_list(dst_object, "dst_blocks", dst, &blocks->count)) {
        return false;
    }
    if (src_object != Py_None && src_count != blocks->count) {
        PyErr_Format(PyExc_ValueError, "src_blocks has %zu blocks, dst_blocks has %zu", src_count,
                     blocks->count);
        return false;
    }
    blocks->src = *src;
    blocks->dst = *dst;
    return true;
}

PyObject *engine_pull_blocks(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cluster_id", "key",        "cache_id",  "src_blocks",
                            "dst_blocks", "src_cache",  "src_batch", "tensors_per_layer",
                            "src_layers", "dst_layers", NULL};
    dd_engine *engine = ((EngineObject *)op)->engine;
    dd_blocks blocks = {.size = sizeof(blocks)};
    struct pull_args common = {0};
    PyObject *src_object;
    PyObject *dst_object;
    PyObject *result = NULL;
    uint64_t *src = NULL;
    uint64_t *dst = NULL;
    dd_source source;
    int64_t cache;
    dd_error err = {0};
    dd_status st;

    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|$OOOOO", names, &common.cluster_id,
                                    &common.key, &common.cache_id, &src_object, &dst_object,
                                    &common.src_cache, &common.src_batch, &common.tensors_per_layer,
                                    &common.src_layers, &common.dst_layers) &&
        convert_source(&common, &source, &cache) &&
        convert_selection(&common, &blocks.tensors_per_layer, &blocks.src_layers,
                          &blocks.dst_layers) &&
        convert_lists(src_object, dst_object, &blocks, &src, &dst)) {
        Py_BEGIN_ALLOW_THREADS;
        st = dd_pull_blocks(engine, &source, cache, &blocks, &err);
        Py_END_ALLOW_THREADS;
        result = engine_finish(op, st, &err);
    }
    PyMem_Free(src);
    PyMem_Free(dst);
    return result;
}
