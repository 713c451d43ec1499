/* The only place that knows of differences between versions of Python. */
#ifndef DD_EXT_COMPAT_H
#define DD_EXT_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030A0000
static inline PyObject *Py_NewRef(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#endif

#endif
