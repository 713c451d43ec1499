/* Python values -> C values. On failure an exception is set: TypeError for a wrong type ("only
 * support"), ValueError for a number outside its width ("out of range"). */
#ifndef DD_EXT_CONVERT_H
#define DD_EXT_CONVERT_H

#include "ext.h"

bool convert_u64(PyObject *object, const char *name, uint64_t *out);
bool convert_u32(PyObject *object, const char *name, uint32_t *out);
bool convert_i64(PyObject *object, const char *name, int64_t *out);
bool convert_bool(PyObject *object, const char *name, bool *out);

/* A list or tuple of int -> an array that the caller frees with PyMem_Free; *count may be 0. */
bool convert_u64_list(PyObject *object, const char *name, uint64_t **out, size_t *count);
bool convert_i64_list(PyObject *object, const char *name, int64_t **out, size_t *count);

/* (kind, id, model_id) */
bool convert_key(PyObject *object, dd_key *out);

/* A list or tuple of keys -> an array that the caller frees with PyMem_Free. */
bool convert_keys(PyObject *object, dd_key **out, size_t *count);

/* (first, count) */
bool convert_layers(PyObject *object, const char *name, dd_layers *out);

/* A list (new) with the items of a list or tuple, which nobody else can change. */
PyObject *convert_items(PyObject *object, const char *name, size_t *count);

/* Text as UTF-8 without embedded NUL: bytes (new), or NULL. */
PyObject *convert_text(PyObject *object, const char *name);

/* Raise TypeError; `wanted` says what the argument should have been. Returns false. */
bool wrong_type(PyObject *object, const char *name, const char *wanted);

#endif
