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

/* None (new). Not Py_RETURN_NONE: the headers of 3.12 and later take no reference in it, so a file
 * that they built for the stable ABI would use up the None of a 3.11. */
static inline PyObject *new_none(void)
{
    return Py_NewRef(Py_None);
}

#endif
