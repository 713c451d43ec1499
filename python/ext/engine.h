/* What the methods of Engine share. */
#ifndef DD_EXT_ENGINE_H
#define DD_EXT_ENGINE_H

#include "ext.h"

#include <sys/types.h>

typedef struct {
    PyObject ob_base;
    dd_engine *engine; /* constant after new */
    pid_t pid;         /* of the process that created it */
} EngineObject;

/* None, or Error for a failed call. */
PyObject *engine_finish(PyObject *op, dd_status st, const dd_error *err);

PyObject *engine_pull(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *engine_pull_blocks(PyObject *op, PyObject *args, PyObject *kwargs);

#endif
