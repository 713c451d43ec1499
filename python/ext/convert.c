/* Python values -> C values. */
#include "convert.h"

#include <string.h>

static bool check_int(PyObject *object, const char *name)
{
    PyObject *type_name;

    if (PyLong_Check(object)) {
        return true;
    }
    type_name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    if (type_name != NULL) {
        PyErr_Format(PyExc_TypeError, "%s only support int, but got %U", name, type_name);
        Py_DECREF(type_name);
    }
    return false;
}

static bool out_of_range(const char *name, PyObject *object, const char *width)
{
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is out of range: %R is not a %s value", name, object, width);
    return false;
}

bool dd_convert_u64(PyObject *object, const char *name, uint64_t *out)
{
    if (!check_int(object, name)) {
        return false;
    }
    *out = PyLong_AsUnsignedLongLong(object);
    if (*out == UINT64_MAX && PyErr_Occurred()) {
        return out_of_range(name, object, "uint64");
    }
    return true;
}

bool dd_convert_u32(PyObject *object, const char *name, uint32_t *out)
{
    uint64_t wide;

    if (!check_int(object, name)) {
        return false;
    }
    wide = PyLong_AsUnsignedLongLong(object);
    if ((wide == UINT64_MAX && PyErr_Occurred()) || wide > UINT32_MAX) {
        return out_of_range(name, object, "uint32");
    }
    *out = (uint32_t)wide;
    return true;
}

bool dd_convert_i64(PyObject *object, const char *name, int64_t *out)
{
    if (!check_int(object, name)) {
        return false;
    }
    *out = PyLong_AsLongLong(object);
    if (*out == -1 && PyErr_Occurred()) {
        return out_of_range(name, object, "int64");
    }
    return true;
}

/* A list or tuple with the same items (new), or NULL. */
static PyObject *as_list(PyObject *object, const char *name, size_t *count)
{
    PyObject *list;

    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s only support list or tuple", name);
        return NULL;
    }
    /* A list of our own: nobody changes it while we walk. */
    list = PySequence_List(object);
    if (list != NULL) {
        *count = (size_t)PyList_Size(list);
    }
    return list;
}

bool dd_convert_u64_list(PyObject *object, const char *name, uint64_t **out, size_t *count)
{
    PyObject *list = as_list(object, name, count);
    uint64_t *values;
    bool is_ok = true;

    if (list == NULL) {
        return false;
    }
    values = PyMem_Malloc((*count + 1) * sizeof(*values));
    if (values == NULL) {
        PyErr_NoMemory();
        is_ok = false;
    }
    for (size_t i = 0; is_ok && i < *count; i++) {
        is_ok = dd_convert_u64(PyList_GetItem(list, (Py_ssize_t)i), name, &values[i]);
    }
    Py_DECREF(list);
    if (!is_ok) {
        PyMem_Free(values);
        return false;
    }
    *out = values;
    return true;
}

bool dd_convert_i64_list(PyObject *object, const char *name, int64_t **out, size_t *count)
{
    PyObject *list = as_list(object, name, count);
    int64_t *values;
    bool is_ok = true;

    if (list == NULL) {
        return false;
    }
    values = PyMem_Malloc((*count + 1) * sizeof(*values));
    if (values == NULL) {
        PyErr_NoMemory();
        is_ok = false;
    }
    for (size_t i = 0; is_ok && i < *count; i++) {
        is_ok = dd_convert_i64(PyList_GetItem(list, (Py_ssize_t)i), name, &values[i]);
    }
    Py_DECREF(list);
    if (!is_ok) {
        PyMem_Free(values);
        return false;
    }
    *out = values;
    return true;
}

bool dd_convert_key(PyObject *object, const char *name, dd_key *out)
{
    uint32_t kind;

    if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) {
        PyErr_Format(PyExc_TypeError, "%s only support tuple of (kind, id, model_id)", name);
        return false;
    }
    *out = (dd_key){.size = sizeof(*out)};
    if (!dd_convert_u32(PyTuple_GetItem(object, 0), name, &kind) ||
        !dd_convert_u64(PyTuple_GetItem(object, 1), name, &out->id) ||
        !dd_convert_u64(PyTuple_GetItem(object, 2), name, &out->model_id)) {
        return false;
    }
    out->kind = (dd_key_kind)kind;
    return true;
}

bool dd_convert_layers(PyObject *object, const char *name, dd_layers *out)
{
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        PyErr_Format(PyExc_TypeError, "%s only support tuple of (first, count)", name);
        return false;
    }
    return dd_convert_u32(PyTuple_GetItem(object, 0), name, &out->first) &&
           dd_convert_u32(PyTuple_GetItem(object, 1), name, &out->count);
}

PyObject *dd_convert_text(PyObject *object, const char *name)
{
    PyObject *bytes;
    Py_ssize_t length;
    char *text;

    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s only support str", name);
        return NULL;
    }
    bytes = PyUnicode_AsUTF8String(object);
    if (bytes == NULL) {
        return NULL;
    }
    if (PyBytes_AsStringAndSize(bytes, &text, &length) != 0 ||
        memchr(text, '\0', (size_t)length) != NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s has an embedded null character", name);
        Py_DECREF(bytes);
        return NULL;
    }
    return bytes;
}
