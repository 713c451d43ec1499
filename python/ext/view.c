/* View: the memory of one tensor as a writable buffer and through DLPack. It keeps the memory alive,
 * past the cache and the engine. */
#include "convert.h"
#include "dlpack.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD dd_view *view;
    int data_type;
    int ndim;
    Py_ssize_t itemsize;
    Py_ssize_t shape[DD_MAX_DIMS];
    Py_ssize_t strides[DD_MAX_DIMS];
} ViewObject;

struct format {
    int data_type;
    const char *buffer; /* struct module's letter */
    Py_ssize_t itemsize;
    int dlpack_code; /* -1: DLPack has no such type */
};

static const struct format formats[] = {
    {DD_FLOAT32, "f", 4, DLPACK_FLOAT}, {DD_FLOAT16, "e", 2, DLPACK_FLOAT},
    {DD_INT8, "b", 1, DLPACK_INT},      {DD_INT32, "i", 4, DLPACK_INT},
    {DD_UINT8, "B", 1, DLPACK_UINT},    {DD_INT16, "h", 2, DLPACK_INT},
    {DD_UINT16, "H", 2, DLPACK_UINT},   {DD_UINT32, "I", 4, DLPACK_UINT},
    {DD_INT64, "q", 8, DLPACK_INT},     {DD_UINT64, "Q", 8, DLPACK_UINT},
    {DD_FLOAT64, "d", 8, DLPACK_FLOAT}, {DD_BOOL, "?", 1, DLPACK_BOOL},
    {DD_STRING, "16s", 16, -1},         {DD_BFLOAT16, "H", 2, DLPACK_BFLOAT},
};

static const struct format *find_format(int data_type)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (formats[i].data_type == data_type) {
            return &formats[i];
        }
    }
    return NULL;
}

/* Set shape and strides; false when they do not describe exactly the view's bytes. */
static bool set_shape(ViewObject *self, const int64_t *dims, size_t count)
{
    uint64_t bytes = (uint64_t)self->itemsize;

    if (count == 0 || count > DD_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "view has %zu dims, wanted 1 to %d", count, DD_MAX_DIMS);
        return false;
    }
    self->ndim = (int)count;
    for (size_t i = count; i-- > 0;) {
        self->strides[i] = (Py_ssize_t)bytes;
        self->shape[i] = (Py_ssize_t)dims[i];
        if (dims[i] <= 0 || __builtin_mul_overflow(bytes, (uint64_t)dims[i], &bytes)) {
            bytes = 0;
            break;
        }
    }
    if (bytes != dd_view_bytes(self->view)) {
        PyErr_Format(PyExc_ValueError, "dims and data_type do not describe the tensor's %llu bytes",
                     (unsigned long long)dd_view_bytes(self->view));
        return false;
    }
    return true;
}

PyObject *dd_view_new(struct state *state, dd_view *view, PyObject *dims, int data_type)
{
    PyTypeObject *type = (PyTypeObject *)state->view_type;
    allocfunc create = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    const struct format *format = find_format(data_type);
    ViewObject *self = (ViewObject *)create(type, 0);
    int64_t *values = NULL;
    size_t count;

    if (self == NULL) {
        dd_view_close(view);
        return NULL;
    }
    self->view = view;
    self->data_type = data_type;
    if (format == NULL) {
        PyErr_Format(PyExc_ValueError, "data_type %d is out of range", data_type);
        goto fail;
    }
    self->itemsize = format->itemsize;
    if (!dd_convert_i64_list(dims, "dims", &values, &count) || !set_shape(self, values, count)) {
        goto fail;
    }
    PyMem_Free(values);
    return (PyObject *)self;

fail:
    PyMem_Free(values);
    Py_DECREF(self);
    return NULL;
}

static PyObject *view_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)type;
    (void)args;
    (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "View objects come from Engine.view()");
    return NULL;
}

static void view_dealloc(PyObject *op)
{
    ViewObject *self = (ViewObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    dd_view *view = self->view;

    Py_BEGIN_ALLOW_THREADS /* the last view of a region unmaps it */
        dd_view_close(view);
    Py_END_ALLOW_THREADS release(op);
    Py_DECREF(type);
}

static int view_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    ViewObject *self = (ViewObject *)op;

    buffer->obj = Py_NewRef(op);
    buffer->buf = dd_view_data(self->view);
    buffer->len = (Py_ssize_t)dd_view_bytes(self->view);
    buffer->readonly = 0;
    buffer->itemsize = self->itemsize;
    buffer->format = NULL;
    if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        buffer->format = (char *)(uintptr_t)find_format(self->data_type)->buffer; /* not written */
    }
    buffer->ndim = self->ndim;
    buffer->shape = (flags & PyBUF_ND) == PyBUF_ND ? self->shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    return 0;
}

/* What a DLPack capsule points to: the structure, and a reference to the view. */
struct export
{
    union {
        struct dlpack_managed plain;
        struct dlpack_versioned versioned;
    } managed;
    int64_t shape[DD_MAX_DIMS];
    int64_t strides[DD_MAX_DIMS];
    PyObject *view;
};

/* Called by the consumer, on any thread, with or without the interpreter lock. */
static void release_export(struct export *export)
{
    PyGILState_STATE gil = PyGILState_Ensure();

    Py_DECREF(export->view);
    free(export);
    PyGILState_Release(gil);
}

static void delete_plain(struct dlpack_managed *managed)
{
    release_export(managed->context);
}

static void delete_versioned(struct dlpack_versioned *managed)
{
    release_export(managed->context);
}

/* A capsule that nobody has consumed still owns its export. */
static void capsule_plain(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");

        managed->deleter(managed);
    }
}

static void capsule_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct dlpack_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");

        managed->deleter(managed);
    }
}

static PyObject *make_capsule(ViewObject *self, const struct format *format, bool is_versioned)
{
    struct export *export = calloc(1, sizeof(*export));
    struct dlpack_tensor *tensor;
    PyObject *capsule;

    if (export == NULL) {
        return PyErr_NoMemory();
    }
    if (is_versioned) {
        export->managed.versioned.version.major = 1;
        export->managed.versioned.context = export;
        export->managed.versioned.deleter = delete_versioned;
        tensor = &export->managed.versioned.tensor;
    } else {
        export->managed.plain.context = export;
        export->managed.plain.deleter = delete_plain;
        tensor = &export->managed.plain.tensor;
    }
    for (int i = 0; i < self->ndim; i++) {
        export->shape[i] = self->shape[i];
        export->strides[i] = self->strides[i] / self->itemsize;
    }
    *tensor = (struct dlpack_tensor){
        .data = dd_view_data(self->view),
        .device = {DLPACK_CPU, 0},
        .ndim = self->ndim,
        .dtype = {(uint8_t)format->dlpack_code, (uint8_t)(format->itemsize * 8), 1},
        .shape = export->shape,
        .strides = export->strides};
    export->view = Py_NewRef((PyObject *)self);
    capsule = is_versioned
                  ? PyCapsule_New(&export->managed, "dltensor_versioned", capsule_versioned)
                  : PyCapsule_New(&export->managed, "dltensor", capsule_plain);
    if (capsule == NULL) {
        release_export(export);
    }
    return capsule;
}

static PyObject *view_dlpack(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    ViewObject *self = (ViewObject *)op;
    const struct format *format = find_format(self->data_type);
    PyObject *stream = Py_None;
    PyObject *max_version = Py_None;
    PyObject *device = Py_None;
    PyObject *copy = Py_None;
    int major = 0;
    int minor = 0;
    int device_type = DLPACK_CPU;
    int device_id = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &max_version, &device,
                                     &copy) ||
        (max_version != Py_None && !PyArg_ParseTuple(max_version, "ii", &major, &minor)) ||
        (device != Py_None && !PyArg_ParseTuple(device, "ii", &device_type, &device_id))) {
        return NULL;
    }
    if (stream != Py_None) {
        PyErr_SetString(PyExc_BufferError, "stream must be None for memory of the host");
        return NULL;
    }
    if (format->dlpack_code < 0 || device_type != DLPACK_CPU || device_id != 0 ||
        (copy != Py_None && PyObject_IsTrue(copy) != 0)) {
        PyErr_SetString(PyExc_BufferError, format->dlpack_code < 0
                                               ? "DLPack has no type for strings"
                                               : "only the memory itself can be shown: device "
                                                 "(1, 0), no copy");
        return NULL;
    }
    return make_capsule(self, format, major >= 1);
}

static PyObject *view_dlpack_device(PyObject *op, PyObject *unused)
{
    (void)op;
    (void)unused;
    return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}

static PyObject *get_address(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(dd_view_data(((ViewObject *)op)->view));
}

static PyObject *get_nbytes(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dd_view_bytes(((ViewObject *)op)->view));
}

static PyObject *get_data_type(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((ViewObject *)op)->data_type);
}

static PyObject *get_shape(PyObject *op, void *unused)
{
    ViewObject *self = (ViewObject *)op;
    PyObject *shape = PyTuple_New(self->ndim);

    (void)unused;
    for (int i = 0; shape != NULL && i < self->ndim; i++) {
        PyObject *dim = PyLong_FromSsize_t(self->shape[i]);

        if (dim == NULL || PyTuple_SetItem(shape, i, dim) != 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_VARARGS | METH_KEYWORDS,
     "Show the memory through DLPack; the capsule keeps it alive. BufferError for a copy, another "
     "device, or strings."},
    {"__dlpack_device__", view_dlpack_device, METH_NOARGS, "Return (1, 0): memory of the host."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getset[] = {
    {"address", get_address, NULL, "address of the first byte", NULL},
    {"nbytes", get_nbytes, NULL, "size in bytes", NULL},
    {"shape", get_shape, NULL, "dimensions", NULL},
    {"data_type", get_data_type, NULL, "number of the element type", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot view_slots[] = {{Py_tp_new, view_refuse_new},
                                   {Py_tp_dealloc, view_dealloc},
                                   {Py_tp_methods, view_methods},
                                   {Py_tp_getset, view_getset},
                                   {Py_bf_getbuffer, view_getbuffer},
                                   {Py_tp_doc, "Memory of one tensor: a writable buffer that keeps "
                                               "the memory alive."},
                                   {0, NULL}};

PyType_Spec dd_view_spec = {.name = "llm_datadist._datadist.View",
                            .basicsize = sizeof(ViewObject),
                            .flags = Py_TPFLAGS_DEFAULT,
                            .slots = view_slots};
