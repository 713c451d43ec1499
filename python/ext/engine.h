/* What the methods of Engine share. */
#ifndef DD_EXT_ENGINE_H
#define DD_EXT_ENGINE_H

#include "ext.h"

typedef struct {
    PyObject_HEAD dd_engine *engine; /* constant after new */
} EngineObject;

/* None, or Error for a failed call. */
PyObject *dd_engine_finish(PyObject *op, dd_status st, const dd_error *err);

PyObject *dd_engine_pull_method(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *dd_engine_pull_blocks_method(PyObject *op, PyObject *args, PyObject *kwargs);

#endif
