/* View: the memory of one tensor as a writable buffer and through DLPack. It keeps the memory alive,
 * past the cache and the engine. */
#include "convert.h"
#include "dlpack.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* The owners of one dd_view: the View object, and every DLPack export until its consumer is done.
 * No Python object, because a consumer may be done on any thread, at any time: without the
 * interpreter lock, in another interpreter, or after the last one has ended. */
struct memory {
    dd_view *view;
    pid_t pid; /* of the process that opened the view */
    atomic_size_t owners;
};

typedef struct {
    PyObject ob_base;
    struct memory *memory; /* one owner; constant after new */
    uint32_t data_type;
    int ndim;
    Py_ssize_t itemsize;
    Py_ssize_t shape[DD_MAX_DIMS];
    Py_ssize_t strides[DD_MAX_DIMS];
} ViewObject;

struct format {
    uint32_t data_type;
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

static const struct format *find_format(uint32_t data_type)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (formats[i].data_type == data_type) {
            return &formats[i];
        }
    }
    return NULL;
}

/* Open the account of `view`, which is taken, also on failure. */
static struct memory *open_memory(dd_view *view)
{
    struct memory *memory = malloc(sizeof(*memory));

    if (memory == NULL) {
        dd_view_close(view);
        return NULL;
    }
    memory->view = view;
    memory->pid = getpid();
    atomic_init(&memory->owners, 1);
    return memory;
}

static void get_memory(struct memory *memory)
{
    (void)atomic_fetch_add_explicit(&memory->owners, 1, memory_order_relaxed);
}

/* Any thread, with or without the interpreter lock. */
static void put_memory(struct memory *memory)
{
    /* Pairs with itself: the last owner sees what all the others did to the memory. */
    if (atomic_fetch_sub_explicit(&memory->owners, 1, memory_order_acq_rel) != 1) {
        return;
    }
    /* A forked child inherits the view with locks in any state; it leaves the view alone. */
    if (memory->pid == getpid()) {
        dd_view_close(memory->view);
    }
    free(memory);
}

/* Set shape and strides; false when they do not describe exactly the view's bytes. */
static bool set_shape(ViewObject *self, const int64_t *dims, size_t count)
{
    uint64_t bytes = (uint64_t)self->itemsize;
    uint64_t wanted = dd_view_bytes(self->memory->view);

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
    if (bytes != wanted) {
        PyErr_Format(PyExc_ValueError, "dims and data_type do not describe the tensor's %llu bytes",
                     (unsigned long long)wanted);
        return false;
    }
    return true;
}

PyObject *view_new(struct state *state, dd_view *view, PyObject *dims, uint32_t data_type)
{
    PyTypeObject *type = (PyTypeObject *)state->view_type;
    allocfunc create = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    const struct format *format = find_format(data_type);
    struct memory *memory = open_memory(view);
    ViewObject *self;
    int64_t *values = NULL;
    size_t count;
    bool is_ok = false;

    if (memory == NULL) {
        return PyErr_NoMemory();
    }
    self = (ViewObject *)create(type, 0);
    if (self == NULL) {
        put_memory(memory);
        return NULL;
    }
    self->memory = memory;
    self->data_type = data_type;
    if (format == NULL) {
        PyErr_Format(PyExc_ValueError, "data_type is out of range, %u is no element type",
                     (unsigned int)data_type);
    } else {
        self->itemsize = format->itemsize;
        is_ok = convert_i64_list(dims, "dims", &values, &count) && set_shape(self, values, count);
    }
    PyMem_Free(values);
    if (!is_ok) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *view_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)type;
    (void)args;
    (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "View objects come from Engine.view()");
    return NULL;
}

static int view_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void view_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    struct memory *memory = ((ViewObject *)op)->memory;

    PyObject_GC_UnTrack(op);
    Py_BEGIN_ALLOW_THREADS; /* the last view of a region unmaps it */
    put_memory(memory);
    Py_END_ALLOW_THREADS;
    PyObject_GC_Del(op);
    Py_DECREF(type);
}

/* C-contiguous memory is in Fortran's order too if only one dimension is longer than 1. */
static bool is_fortran_order(const ViewObject *self)
{
    int long_dims = 0;

    for (int i = 0; i < self->ndim; i++) {
        long_dims += self->shape[i] > 1 ? 1 : 0;
    }
    return long_dims <= 1;
}

static int view_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    ViewObject *self = (ViewObject *)op;
    bool has_shape = (flags & PyBUF_ND) == PyBUF_ND;

    buffer->obj = NULL;
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_fortran_order(self)) {
        PyErr_SetString(PyExc_BufferError, "the memory is not in Fortran's order");
        return -1;
    }
    buffer->buf = dd_view_data(self->memory->view);
    buffer->len = (Py_ssize_t)dd_view_bytes(self->memory->view);
    buffer->readonly = 0;
    buffer->itemsize = self->itemsize;
    buffer->format = NULL;
    if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        buffer->format = (char *)(uintptr_t)find_format(self->data_type)->buffer; /* not written */
    }
    buffer->ndim = has_shape ? self->ndim : 1;
    buffer->shape = has_shape ? self->shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    buffer->obj = Py_NewRef(op);
    return 0;
}

/* What a DLPack capsule points to. */
struct managed {
    union {
        struct dlpack_managed plain;
        struct dlpack_versioned versioned;
    } header;
    int64_t shape[DD_MAX_DIMS];
    int64_t strides[DD_MAX_DIMS];
    struct memory *memory; /* one owner */
};

/* Called by the consumer, on any thread, with or without the interpreter lock. */
static void release_managed(struct managed *managed)
{
    put_memory(managed->memory);
    free(managed);
}

static void delete_plain(struct dlpack_managed *header)
{
    release_managed(header->context);
}

static void delete_versioned(struct dlpack_versioned *header)
{
    release_managed(header->context);
}

/* A capsule that nobody has consumed still owns its memory. */
static void capsule_plain(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dlpack_managed *header = PyCapsule_GetPointer(capsule, "dltensor");

        header->deleter(header);
    }
}

static void capsule_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct dlpack_versioned *header = PyCapsule_GetPointer(capsule, "dltensor_versioned");

        header->deleter(header);
    }
}

static PyObject *make_capsule(ViewObject *self, const struct format *format, bool is_versioned)
{
    struct managed *managed = calloc(1, sizeof(*managed));
    struct dlpack_tensor *tensor;
    PyObject *capsule;

    if (managed == NULL) {
        return PyErr_NoMemory();
    }
    if (is_versioned) {
        managed->header.versioned.version.major = 1;
        managed->header.versioned.context = managed;
        managed->header.versioned.deleter = delete_versioned;
        tensor = &managed->header.versioned.tensor;
    } else {
        managed->header.plain.context = managed;
        managed->header.plain.deleter = delete_plain;
        tensor = &managed->header.plain.tensor;
    }
    for (int i = 0; i < self->ndim; i++) {
        managed->shape[i] = self->shape[i];
        managed->strides[i] = self->strides[i] / self->itemsize;
    }
    *tensor = (struct dlpack_tensor){
        .data = dd_view_data(self->memory->view),
        .device = {DLPACK_CPU, 0},
        .ndim = self->ndim,
        .dtype = {(uint8_t)format->dlpack_code, (uint8_t)(format->itemsize * 8), 1},
        .shape = managed->shape,
        .strides = managed->strides};
    managed->memory = self->memory;
    get_memory(managed->memory);
    capsule = is_versioned
                  ? PyCapsule_New(&managed->header, "dltensor_versioned", capsule_versioned)
                  : PyCapsule_New(&managed->header, "dltensor", capsule_plain);
    if (capsule == NULL) {
        release_managed(managed);
    }
    return capsule;
}

/* A tuple of two int, or None, which leaves *first and *second as they are. */
static bool convert_pair(PyObject *object, const char *name, int64_t *first, int64_t *second)
{
    if (object == Py_None) {
        return true;
    }
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        return wrong_type(object, name, "tuple of (int, int)");
    }
    return convert_i64(PyTuple_GetItem(object, 0), name, first) &&
           convert_i64(PyTuple_GetItem(object, 1), name, second);
}

static PyObject *view_dlpack(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    ViewObject *self = (ViewObject *)op;
    const struct format *format = find_format(self->data_type);
    const char *refusal = NULL;
    PyObject *stream = Py_None;
    PyObject *max_version = Py_None;
    PyObject *device = Py_None;
    PyObject *copy = Py_None;
    int64_t major = 0;
    int64_t minor = 0;
    int64_t device_type = DLPACK_CPU;
    int64_t device_id = 0;
    bool is_copy = false;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOO", names, &stream, &max_version, &device,
                                     &copy) ||
        !convert_pair(max_version, "max_version", &major, &minor) ||
        !convert_pair(device, "dl_device", &device_type, &device_id) ||
        (copy != Py_None && !convert_bool(copy, "copy", &is_copy))) {
        return NULL;
    }
    if (format->dlpack_code < 0) {
        refusal = "DLPack has no type for strings";
    } else if (device_type != DLPACK_CPU || device_id != 0) {
        refusal = "dl_device must be (1, 0): the memory is the host's";
    } else if (is_copy) {
        refusal = "copy must not be True: only the memory itself can be shown";
    } else if (stream != Py_None) {
        refusal = "stream must be None: memory of the host has none";
    }
    if (refusal != NULL) {
        PyErr_SetString(PyExc_BufferError, refusal);
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
    return PyLong_FromVoidPtr(dd_view_data(((ViewObject *)op)->memory->view));
}

static PyObject *get_nbytes(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(dd_view_bytes(((ViewObject *)op)->memory->view));
}

static PyObject *get_data_type(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((ViewObject *)op)->data_type);
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
    {"__dlpack__", WITH_KEYWORDS(view_dlpack), METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "Show the memory through DLPack, writable; the capsule keeps it alive.\n\n"
     "Versioned if max_version is (1, 0) or later. Raises BufferError for a copy, another device, "
     "a stream, or strings."},
    {"__dlpack_device__", view_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nReturn (1, 0): memory of the host."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getset[] = {
    {"address", get_address, NULL, "address of the first byte", NULL},
    {"nbytes", get_nbytes, NULL, "size in bytes", NULL},
    {"shape", get_shape, NULL, "dimensions", NULL},
    {"data_type", get_data_type, NULL, "number of the element type", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot view_slots[] = {{Py_tp_new, view_refuse_new},
                                   {Py_tp_traverse, view_traverse},
                                   {Py_tp_dealloc, view_dealloc},
                                   {Py_tp_methods, view_methods},
                                   {Py_tp_getset, view_getset},
                                   {Py_bf_getbuffer, view_getbuffer},
                                   {Py_tp_doc, "Memory of one tensor: a writable buffer that keeps "
                                               "the memory alive."},
                                   {0, NULL}};

PyType_Spec view_spec = {.name = "llm_datadist._datadist.View",
                         .basicsize = sizeof(ViewObject),
                         .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                         .slots = view_slots};
