/* Python values -> C values. */
#include "convert.h"

#include <string.h>

static bool refuse_type(PyObject *object, const char *name, const char *what, const char *wanted)
{
    PyObject *type_name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");

    if (type_name != NULL) {
        PyErr_Format(PyExc_TypeError, "%s%s only support %s, but got %S", name, what, wanted,
                     type_name);
        Py_DECREF(type_name);
    }
    return false;
}

bool wrong_type(PyObject *object, const char *name, const char *wanted)
{
    return refuse_type(object, name, "", wanted);
}

static bool wrong_inner_type(PyObject *item, const char *name)
{
    return refuse_type(item, name, " inner type", "int");
}

/* Replace the exception, if there is one, by ValueError. Returns false. */
static bool out_of_range(PyObject *object, const char *name, const char *width)
{
    PyObject *text;

    PyErr_Clear();
    text = PyObject_Str(object);
    if (text == NULL) { /* Python refuses to print very long numbers */
        PyErr_Clear();
        text = PyUnicode_FromString("a number of thousands of digits");
    }
    if (text != NULL) {
        PyErr_Format(PyExc_ValueError, "%s is out of range, %U is not a %s value", name, text,
                     width);
        Py_DECREF(text);
    }
    return false;
}

/* The conversion of what is known to be an int. */
static bool u64_of_int(PyObject *object, const char *name, uint64_t *out)
{
    *out = PyLong_AsUnsignedLongLong(object);
    if (*out == UINT64_MAX && PyErr_Occurred() != NULL) {
        return out_of_range(object, name, "uint64");
    }
    return true;
}

static bool i64_of_int(PyObject *object, const char *name, int64_t *out)
{
    *out = PyLong_AsLongLong(object);
    if (*out == -1 && PyErr_Occurred() != NULL) {
        return out_of_range(object, name, "int64");
    }
    return true;
}

bool convert_u64(PyObject *object, const char *name, uint64_t *out)
{
    return PyLong_Check(object) ? u64_of_int(object, name, out) : wrong_type(object, name, "int");
}

bool convert_i64(PyObject *object, const char *name, int64_t *out)
{
    return PyLong_Check(object) ? i64_of_int(object, name, out) : wrong_type(object, name, "int");
}

bool convert_u32(PyObject *object, const char *name, uint32_t *out)
{
    uint64_t wide;

    if (!PyLong_Check(object)) {
        return wrong_type(object, name, "int");
    }
    wide = PyLong_AsUnsignedLongLong(object);
    if (wide > UINT32_MAX) { /* also what a failure returns */
        return out_of_range(object, name, "uint32");
    }
    *out = (uint32_t)wide;
    return true;
}

bool convert_bool(PyObject *object, const char *name, bool *out)
{
    if (!PyBool_Check(object)) {
        return wrong_type(object, name, "bool");
    }
    *out = object == Py_True;
    return true;
}

PyObject *convert_items(PyObject *object, const char *name, size_t *count)
{
    PyObject *list;

    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        (void)wrong_type(object, name, "list or tuple");
        return NULL;
    }
    list = PySequence_List(object);
    if (list != NULL) {
        *count = (size_t)PyList_Size(list);
    }
    return list;
}

/* An array of `count` zeroed items of `size` bytes, never of none; NULL with MemoryError set. */
static void *new_array(size_t count, size_t size)
{
    void *array = PyMem_Calloc(count == 0 ? 1 : count, size);

    if (array == NULL) {
        PyErr_NoMemory();
    }
    return array;
}

bool convert_u64_list(PyObject *object, const char *name, uint64_t **out, size_t *count)
{
    PyObject *list = convert_items(object, name, count);
    uint64_t *values = list == NULL ? NULL : new_array(*count, sizeof(*values));
    bool is_ok = values != NULL;

    for (size_t i = 0; is_ok && i < *count; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i);

        is_ok = PyLong_Check(item) ? u64_of_int(item, name, &values[i])
                                   : wrong_inner_type(item, name);
    }
    Py_XDECREF(list);
    if (!is_ok) {
        PyMem_Free(values);
        return false;
    }
    *out = values;
    return true;
}

bool convert_i64_list(PyObject *object, const char *name, int64_t **out, size_t *count)
{
    PyObject *list = convert_items(object, name, count);
    int64_t *values = list == NULL ? NULL : new_array(*count, sizeof(*values));
    bool is_ok = values != NULL;

    for (size_t i = 0; is_ok && i < *count; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i);

        is_ok = PyLong_Check(item) ? i64_of_int(item, name, &values[i])
                                   : wrong_inner_type(item, name);
    }
    Py_XDECREF(list);
    if (!is_ok) {
        PyMem_Free(values);
        return false;
    }
    *out = values;
    return true;
}

bool convert_key(PyObject *object, dd_key *out)
{
    uint32_t kind;

    if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) {
        return wrong_type(object, "key", "tuple of (kind, id, model_id)");
    }
    *out = (dd_key){.size = sizeof(*out)};
    if (!convert_u32(PyTuple_GetItem(object, 0), "key kind", &kind) ||
        !convert_u64(PyTuple_GetItem(object, 1), "key id", &out->id) ||
        !convert_u64(PyTuple_GetItem(object, 2), "key model_id", &out->model_id)) {
        return false;
    }
    out->kind = (dd_key_kind)kind;
    return true;
}

bool convert_keys(PyObject *object, dd_key **out, size_t *count)
{
    PyObject *list = convert_items(object, "keys", count);
    dd_key *keys = list == NULL ? NULL : new_array(*count, sizeof(*keys));
    bool is_ok = keys != NULL;

    for (size_t i = 0; is_ok && i < *count; i++) {
        is_ok = convert_key(PyList_GetItem(list, (Py_ssize_t)i), &keys[i]);
    }
    Py_XDECREF(list);
    if (!is_ok) {
        PyMem_Free(keys);
        return false;
    }
    *out = keys;
    return true;
}

bool convert_layers(PyObject *object, const char *name, dd_layers *out)
{
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        return wrong_type(object, name, "tuple of (first, count)");
    }
    return convert_u32(PyTuple_GetItem(object, 0), name, &out->first) &&
           convert_u32(PyTuple_GetItem(object, 1), name, &out->count);
}

PyObject *convert_text(PyObject *object, const char *name)
{
    PyObject *bytes;

    if (!PyUnicode_Check(object)) {
        (void)wrong_type(object, name, "str");
        return NULL;
    }
    bytes = PyUnicode_AsUTF8String(object);
    if (bytes != NULL && strlen(PyBytes_AsString(bytes)) != (size_t)PyBytes_Size(bytes)) {
        PyErr_Format(PyExc_ValueError, "%s has an embedded null character", name);
        Py_CLEAR(bytes);
    }
    return bytes;
}
