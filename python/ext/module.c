/* The extension module llm_datadist._datadist: a thin face of datadist.h. */
#include "ext.h"

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

struct state *dd_state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *dd_raise(struct state *state, dd_status status, const dd_error *err)
{
    PyObject *error = PyObject_CallFunction(state->error_type, "s", err->text);
    PyObject *number = PyLong_FromUnsignedLong(status);
    PyObject *system_error = PyLong_FromLong(err->system_error);

    if (error != NULL && number != NULL && system_error != NULL &&
        PyObject_SetAttrString(error, "status", number) == 0 &&
        PyObject_SetAttrString(error, "system_error", system_error) == 0) {
        PyErr_SetObject(state->error_type, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(number);
    Py_XDECREF(system_error);
    return NULL;
}

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyObject **out)
{
    *out = PyType_FromModuleAndSpec(module, spec, NULL);
    return *out == NULL ? -1 : PyObject_SetAttrString(module, name, *out);
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
        add_type(module, &dd_view_spec, "View", &state->view_type) != 0 ||
        add_type(module, &dd_engine_spec, "Engine", &state->engine_type) != 0 ||
        add_type(module, &dd_tensor_base_spec, "TensorBase", &state->tensor_base_type) != 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "llm_datadist._datadist",
    .m_doc = "The thin face of libdatadist. Use the package llm_datadist instead.",
    .m_size = sizeof(struct state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__datadist(void);

PyMODINIT_FUNC PyInit__datadist(void)
{
    return PyModuleDef_Init(&module_def);
}
