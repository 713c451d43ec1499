/* What the files of the extension share. All Python state lives in the module's state; nothing here
 * is changed after the module was executed. */
#ifndef DD_EXT_H
#define DD_EXT_H

#include "compat.h"

#include <datadist.h>

#include <stdbool.h>

/* A method that takes keywords, as the method table wants it. */
#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function

struct state {
    PyObject *error_type; /* Error(RuntimeError) */
    PyObject *view_type;
    PyObject *engine_type;
    PyObject *tensor_base_type;
};

extern PyType_Spec engine_spec;
extern PyType_Spec view_spec;
extern PyType_Spec tensor_base_spec;

/* The module's state, from an object of one of its own (not subclassed) heap types. Borrowed. */
struct state *state_of(PyObject *self);

/* Return the text of an error (new). A text that was cut inside a letter is still a text. */
PyObject *error_text(const dd_error *err);

/* Raise Error for a failed call. Returns NULL. */
PyObject *raise_status(struct state *state, dd_status status, const dd_error *err);

/* Return a View (new) that has taken `view`, also on failure. */
PyObject *view_new(struct state *state, dd_view *view, PyObject *dims, uint32_t data_type);

#endif
