/* What the files of the extension share. All Python state lives in the module's state; nothing here
 * is changed after the module was executed. */
#ifndef DD_EXT_H
#define DD_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <datadist.h>

#include <stdbool.h>

#if PY_VERSION_HEX < 0x030A0000
static inline PyObject *Py_NewRef(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#endif

struct state {
    PyObject *error_type; /* Error(RuntimeError) */
    PyObject *view_type;
    PyObject *engine_type;
    PyObject *tensor_base_type;
};

extern PyType_Spec dd_engine_spec;
extern PyType_Spec dd_view_spec;
extern PyType_Spec dd_tensor_base_spec;

/* The module's state, from an object of one of its own (not subclassed) heap types. Borrowed. */
struct state *dd_state_of(PyObject *self);

/* Raise Error for a failed call. Returns NULL. */
PyObject *dd_raise(struct state *state, dd_status status, const dd_error *err);

/* Take over `view` into a new View object; closes it on failure. */
PyObject *dd_view_new(struct state *state, dd_view *view, PyObject *dims, int data_type);

#endif
