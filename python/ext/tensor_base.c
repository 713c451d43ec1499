/* TensorBase: an object whose buffer is that of its attribute `_view`. A class written in Python
 * cannot export a buffer before Python 3.12; a subclass of this one can. */
#include "ext.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject ob_base;
    PyObject *view; /* exports the buffer, or None, or NULL */
} TensorBaseObject;

static int base_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((TensorBaseObject *)op)->view);
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static int base_clear(PyObject *op)
{
    Py_CLEAR(((TensorBaseObject *)op)->view);
    return 0;
}

static void base_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    PyObject_GC_UnTrack(op);
    (void)base_clear(op);
    release(op);
    Py_DECREF(type);
}

/* The exporter becomes the owner of the buffer, so releasing it is the exporter's business, and the
 * buffer stays right when `_view` is changed while it is out. */
static int base_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    PyObject *view = ((TensorBaseObject *)op)->view;
    int rc;

    buffer->obj = NULL;
    if (view == NULL || view == Py_None) {
        PyErr_SetString(PyExc_BufferError, "tensor has no memory that could be shown");
        return -1;
    }
    /* `_view` may be any object, also one that leads back here. */
    if (Py_EnterRecursiveCall(" while showing the memory of a tensor") != 0) {
        return -1;
    }
    Py_INCREF(view);
    rc = PyObject_GetBuffer(view, buffer, flags);
    Py_DECREF(view);
    Py_LeaveRecursiveCall();
    return rc;
}

static PyMemberDef base_members[] = {
    {"_view", T_OBJECT, offsetof(TensorBaseObject, view), 0, "object that exports the buffer"},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot base_slots[] = {{Py_tp_traverse, base_traverse},
                                   {Py_tp_clear, base_clear},
                                   {Py_tp_dealloc, base_dealloc},
                                   {Py_tp_members, base_members},
                                   {Py_bf_getbuffer, base_getbuffer},
                                   {Py_tp_doc, "Base of llm_datadist.Tensor: shows the buffer of "
                                               "its attribute _view."},
                                   {0, NULL}};

PyType_Spec tensor_base_spec = {.name = "llm_datadist._datadist.TensorBase",
                                .basicsize = sizeof(TensorBaseObject),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE |
                                         Py_TPFLAGS_HAVE_GC,
                                .slots = base_slots};
