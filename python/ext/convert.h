/* Python values -> C values. On failure an exception is set: TypeError for a wrong type ("only
 * support"), ValueError for a number outside its width ("out of range"). */
#ifndef DD_CONVERT_H
#define DD_CONVERT_H

#include "ext.h"

bool dd_convert_u64(PyObject *object, const char *name, uint64_t *out);
bool dd_convert_u32(PyObject *object, const char *name, uint32_t *out);
bool dd_convert_i64(PyObject *object, const char *name, int64_t *out);

/* A sequence of int -> an array that the caller frees with PyMem_Free; *count may be 0. */
bool dd_convert_u64_list(PyObject *object, const char *name, uint64_t **out, size_t *count);
bool dd_convert_i64_list(PyObject *object, const char *name, int64_t **out, size_t *count);

/* (kind, id, model_id) */
bool dd_convert_key(PyObject *object, const char *name, dd_key *out);

/* (first, count) */
bool dd_convert_layers(PyObject *object, const char *name, dd_layers *out);

/* Text as UTF-8 without embedded NUL; a new reference to the bytes, or NULL. */
PyObject *dd_convert_text(PyObject *object, const char *name);

#endif
