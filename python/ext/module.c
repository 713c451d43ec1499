/* The extension module llm_datadist._datadist: a thin face of datadist.h. It adds no behaviour of
 * its own; rules of the Python interface live in the package around it. */
#include "ext.h"

#include <string.h>

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = PyModule_GetState(module);

    Py_VISIT(state->error_type);
    Py_VISIT(state->view_type);
    Py_VISIT(state->engine_type);
    Py_VISIT(state->tensor_base_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct state *state = PyModule_GetState(module);

    Py_CLEAR(state->error_type);
    Py_CLEAR(state->view_type);
    Py_CLEAR(state->engine_type);
    Py_CLEAR(state->tensor_base_type);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

struct state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *error_text(const dd_error *err)
{
    return PyUnicode_DecodeUTF8(err->text, (Py_ssize_t)strlen(err->text), "replace");
}

/* Set an attribute to `value`, which is taken; NULL stands for a failure before. */
static bool set_attribute(PyObject *object, const char *name, PyObject *value)
{
    bool is_set = value != NULL && PyObject_SetAttrString(object, name, value) == 0;

    Py_XDECREF(value);
    return is_set;
}

PyObject *raise_status(struct state *state, dd_status status, const dd_error *err)
{
    PyObject *text = error_text(err);
    PyObject *error = NULL;

    if (text != NULL) {
        error = PyObject_CallFunctionObjArgs(state->error_type, text, NULL);
    }
    if (error != NULL && set_attribute(error, "status", PyLong_FromUnsignedLong(status)) &&
        set_attribute(error, "system_error", PyLong_FromLong(err->system_error))) {
        PyErr_SetObject(state->error_type, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(text);
    return NULL;
}

static bool add_type(PyObject *module, PyType_Spec *spec, const char *name, PyObject **out)
{
    *out = PyType_FromModuleAndSpec(module, spec, NULL);
    return *out != NULL && PyObject_SetAttrString(module, name, *out) == 0;
}

static int module_exec(PyObject *module)
{
    struct state *state = PyModule_GetState(module);

#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError,
                    "llm_datadist._datadist does not support free-threaded Python yet; use a build "
                    "with the global interpreter lock");
    return -1;
#endif
    state->error_type = PyErr_NewExceptionWithDoc(
        "llm_datadist._datadist.Error",
        "A call of the library failed. Attributes: status (int, a number of datadist.h), "
        "system_error (int, errno or 0).",
        PyExc_RuntimeError, NULL);
    if (state->error_type == NULL ||
        PyObject_SetAttrString(module, "Error", state->error_type) != 0 ||
        PyModule_AddStringConstant(module, "VERSION", dd_version()) != 0 ||
        !add_type(module, &view_spec, "View", &state->view_type) ||
        !add_type(module, &engine_spec, "Engine", &state->engine_type) ||
        !add_type(module, &tensor_base_spec, "TensorBase", &state->tensor_base_type)) {
        return -1;
    }
    return 0;
}

/* No slot says so, and therefore an interpreter with a lock of its own refuses this module. */
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "llm_datadist._datadist",
    .m_doc = "The thin face of libdatadist. Use the package llm_datadist instead.",
    .m_size = sizeof(struct state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__datadist(void);

PyMODINIT_FUNC PyInit__datadist(void)
{
    return PyModuleDef_Init(&module_def);
}
