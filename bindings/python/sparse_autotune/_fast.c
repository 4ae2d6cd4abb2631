/* The fast path from torch tensors or NumPy arrays to a product: no dispatcher, no Python code, one allocation by their
 * maker.
 *
 * A Runner belongs to one pattern and one kind of product. It remembers for which shapes, strides, dtypes, stream and
 * thread count which plan serves. A call that finds its plan runs it. Any other gives None, and Python takes the full
 * path, which then adds a plan here. Nothing is decided here that the full path would decide otherwise.
 *
 * Stable ABI of Python 3.10. Tensors are read by torch's DLPack exchange functions where it has them (2.10 and newer),
 * else by their attributes; arrays by the buffer protocol. Nothing of torch, NumPy or sparse_autotune is linked: their
 * functions come in through torch(), numpy() and library().
 */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { DIMS = 6, INPUTS = 3, ENTRIES = 8, CPU = 1, CUDA = 2 };

/* ---- DLPack 1.x, what is used of it ---- */

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *previous;
    void *allocate, *export_managed, *import_managed;
    int (*view)(void *object, dl_tensor *out);
    int (*stream)(int32_t device_type, int32_t device_id, void **out);
} dl_exchange;

/* ---- the buffer protocol, which is in the stable ABI from 3.11 on, and was the same before ---- */

typedef struct buffer {
    void *data;
    PyObject *owner;
    Py_ssize_t bytes, item_size;
    int read_only, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} buffer;

enum { BUFFER_FORMAT = 0x4, BUFFER_STRIDES = 0x18 };

extern int PyObject_GetBuffer(PyObject *object, buffer *out, int flags);
extern void PyBuffer_Release(buffer *b);

/* ---- sat_run ---- */

typedef int (*run_function)(void *plan, const void *const *inputs, size_t input_count, void *const *outputs,
                            size_t output_count, void *stream);

/* ---- what torch(), numpy() and library() bring ---- */

static struct {
    PyObject *tensor, *parameter, *array; /* types; NULL until there are any */
    PyObject *failed;                     /* raises what a status means, or returns where the full path will */
    PyObject *is_neg, *is_grad_enabled, *autocast, *dispatch_modes, *tracing, *early_modes, *before_dispatch;
    PyObject *threads, *raw_stream, *tf32;
    PyObject *dtypes; /* float32, float64, float16, bfloat16, int32, int64 */
    const dl_exchange *exchange;
    run_function run;
    void (*set_threads)(int);
    int (*get_threads)(void);
    int (*is_capturing)(void *stream, int *status); /* the driver's; NULL until driver() */
} host;

static long epoch; /* of efforts and registered variants: plans of another one do not serve */

static struct { PyObject *requires_grad, *shape, *stride, *data_ptr, *dtype, *get_device, *is_cuda; } names;

/* ---- one tensor ---- */

typedef enum maker { TORCH, NUMPY } maker;

typedef struct view {
    void *data;
    maker of;
    int device_type, device_id, dtype, ndim;
    bool read_only;
    int64_t shape[DIMS], strides[DIMS];
} view;

static bool view_exchange(PyObject *tensor, view *v) {
    dl_tensor t;
    if (host.exchange->view(tensor, &t) != 0 || t.ndim > DIMS || t.lanes != 1 || (t.ndim && !t.strides)) return false;
    v->data = (char *)t.data + t.byte_offset;
    v->device_type = t.device_type, v->device_id = t.device_type == CPU ? 0 : t.device_id;
    v->dtype = t.code << 8 | t.bits, v->ndim = t.ndim;
    if (t.ndim) {
        memcpy(v->shape, t.shape, (size_t)t.ndim * sizeof *v->shape);
        memcpy(v->strides, t.strides, (size_t)t.ndim * sizeof *v->strides);
    }
    return t.device_type == CPU || t.device_type == CUDA;
}

/* The numbers of a tuple; takes over the reference. -1 where it is none, or too long. */
static int read_tuple(PyObject *tuple, int64_t *out) {
    Py_ssize_t count = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (count > DIMS) count = -1;
    for (Py_ssize_t i = 0; i < count; i++) out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    Py_XDECREF(tuple);
    return PyErr_Occurred() ? -1 : (int)count;
}

static bool read_number(PyObject *number, long long *out) { /* takes over the reference */
    *out = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return !PyErr_Occurred();
}

static bool view_attributes(PyObject *tensor, view *v) {
    long long pointer, device;
    int strides = read_tuple(PyObject_CallMethodObjArgs(tensor, names.stride, NULL), v->strides);
    v->ndim = read_tuple(PyObject_GetAttr(tensor, names.shape), v->shape);
    if (v->ndim < 0 || strides != v->ndim) return false;
    if (!read_number(PyObject_CallMethodObjArgs(tensor, names.data_ptr, NULL), &pointer)) return false;
    if (!read_number(PyObject_CallMethodObjArgs(tensor, names.get_device, NULL), &device)) return false;
    PyObject *cuda = PyObject_GetAttr(tensor, names.is_cuda), *dtype = PyObject_GetAttr(tensor, names.dtype);
    v->device_type = cuda == Py_True ? CUDA : CPU, v->device_id = device < 0 ? 0 : (int)device, v->dtype = -1;
    v->data = (void *)(uintptr_t)pointer;
    static const int codes[] = {2 << 8 | 32, 2 << 8 | 64, 2 << 8 | 16, 4 << 8 | 16, 32, 64}; /* as DLPack has them */
    for (int i = 0; i < 6; i++)
        if (dtype == PyTuple_GetItem(host.dtypes, i)) v->dtype = codes[i];
    bool plain = (cuda == Py_True) == (device >= 0); /* other kinds of devices have numbers too */
    Py_XDECREF(cuda), Py_XDECREF(dtype);
    return v->dtype >= 0 && plain && !PyErr_Occurred();
}

static bool view_buffer(PyObject *array, view *v) {
    buffer b;
    if (PyObject_GetBuffer(array, &b, BUFFER_STRIDES | BUFFER_FORMAT) != 0) return false;
    char kind = b.format && b.format[0] && !b.format[1] ? b.format[0] : 0; /* another byte order has a sign before it */
    v->data = b.data, v->of = NUMPY, v->device_type = CPU, v->device_id = 0, v->ndim = b.ndim;
    v->read_only = b.read_only;
    v->dtype = kind == 'f' ? 2 << 8 | 32 : kind == 'd' ? 2 << 8 | 64 : kind == 'e' ? 2 << 8 | 16 : -1;
    bool known = v->dtype >= 0 && b.ndim <= DIMS;
    for (int i = 0; i < b.ndim && known; i++) {
        known = b.strides[i] >= 0 && b.strides[i] % b.item_size == 0;
        v->shape[i] = b.shape[i], v->strides[i] = b.strides[i] / b.item_size;
    }
    PyBuffer_Release(&b);
    return known;
}

static bool look(PyObject *tensor, view *v) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    v->of = TORCH, v->read_only = false;
    if (type == host.array) {
        if (view_buffer(tensor, v)) return true;
        PyErr_Clear();
        return false;
    }
    if (type != host.tensor && type != host.parameter) return false;
    if (host.exchange ? view_exchange(tensor, v) : view_attributes(tensor, v)) return true;
    PyErr_Clear();
    return false;
}

/* ---- index tensors ---- */

/* Whether a tensor of one dimension in host memory has the very bytes of an array; -1 where that cannot be told. */
static int holds_bytes(PyObject *tensor, PyObject *array) {
    view v;
    buffer b;
    if (!look(tensor, &v) || v.device_type != CPU || v.ndim != 1 || (v.shape[0] > 1 && v.strides[0] != 1)) return -1;
    if (PyObject_GetBuffer(array, &b, 0) != 0) return PyErr_Clear(), -1;
    Py_ssize_t size = (v.dtype & 0xff) / 8;
    bool same = size == b.item_size && v.shape[0] * size == b.bytes && memcmp(v.data, b.data, (size_t)b.bytes) == 0;
    PyBuffer_Release(&b);
    return same;
}

/* holds(tensor, ..., array, ...): as many arrays as tensors, each compared with its own. None where that cannot be
 * told here. */
static PyObject *holds(PyObject *module, PyObject *const *objects, Py_ssize_t count) {
    (void)module;
    for (Py_ssize_t i = 0; i < count / 2; i++) {
        int same = holds_bytes(objects[i], objects[count / 2 + i]);
        if (same < 0) Py_RETURN_NONE;
        if (!same) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* ---- entries ---- */

typedef struct entry {
    int inputs;
    view input[INPUTS];
    uintptr_t low_bits[INPUTS + 1]; /* those that must be zero in a pointer; the last is the output's */
    void *stream, *plan;
    int threads, tf32;
    long epoch;
    PyObject *owner, *make,
        *like; /* keeps the plan; what makes an output, NULL where the last input is it, and of what */
    bool busy;
} entry;

typedef struct runner {
    PyObject_HEAD entry entries[ENTRIES];
    int count, next;
} runner;

static void release(const entry *e) { Py_XDECREF(e->owner), Py_XDECREF(e->make), Py_XDECREF(e->like); }

static bool same(const view *x, const view *y, uintptr_t low_bits) {
    if (x->of != y->of || x->ndim != y->ndim || x->dtype != y->dtype || x->device_type != y->device_type) return false;
    if (x->device_id != y->device_id || ((uintptr_t)x->data & low_bits)) return false;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] != y->shape[i] || x->strides[i] != y->strides[i]) return false;
    return true;
}

static entry *find(runner *r, const view *v, int inputs, void *stream, int threads, int tf32, bool given) {
    for (int i = 0; i < r->count; i++) {
        entry *e = &r->entries[i];
        if (e->epoch != epoch || e->busy || e->inputs != inputs || e->stream != stream || e->threads != threads)
            continue;
        bool fits = e->tf32 == tf32 && !e->make == given;
        for (int j = 0; j < inputs && fits; j++) fits = same(&v[j], &e->input[j], e->low_bits[j]);
        if (fits) return e;
    }
    return NULL;
}

/* ---- what surrounds a call ---- */

/* A question to torch: its answer as a number; -1 and no exception where it gave none. */
static long ask(PyObject *question) {
    if (question == Py_None) return 0;
    PyObject *answer = PyObject_CallNoArgs(question);
    long number = !answer ? -1 : answer == Py_True ? 1 : answer == Py_False ? 0 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Clear(), number = -1;
    return number;
}

static bool needs_grad(PyObject *const *tensors, Py_ssize_t count) {
    if (ask(host.is_grad_enabled) == 0) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *required = PyObject_GetAttr(tensors[i], names.requires_grad);
        Py_XDECREF(required); /* True and False live on */
        if (required != Py_False) {
            PyErr_Clear();
            return true;
        }
    }
    return false;
}

/* Whether one is a view whose numbers torch negates when it reads them: the imaginary part of a conjugate. */
static bool any_negated(PyObject *const *tensors, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *negated = PyObject_CallFunctionObjArgs(host.is_neg, tensors[i], NULL);
        Py_XDECREF(negated);
        if (negated != Py_False) {
            PyErr_Clear();
            return true;
        }
    }
    return false;
}

static bool any_mode(PyObject *list) {
    for (Py_ssize_t i = PyList_Size(list); i-- > 0;)
        if (PyList_GetItem(list, i) != Py_None) return true;
    return false;
}

/* Whether torch would do more with these than read them: gradients, autocast, modes, a trace, which does not see what
 * is written here. */
static bool torch_wants(PyObject *const *tensors, Py_ssize_t count) {
    return needs_grad(tensors, count) || ask(host.autocast) != 0 || ask(host.dispatch_modes) != 0 ||
           ask(host.tracing) != 0 || (any_mode(host.early_modes) && ask(host.before_dispatch) != 0);
}

static bool current_stream(const view *v, void **stream) {
    *stream = NULL;
    if (v->device_type == CPU) return true;
    if (host.exchange) {
        if (host.exchange->stream(v->device_type, v->device_id, stream) == 0) return true;
        PyErr_Clear();
        return false;
    }
    long long handle;
    PyObject *index = PyLong_FromLong(v->device_id);
    bool found = read_number(index ? PyObject_CallFunctionObjArgs(host.raw_stream, index, NULL) : NULL, &handle);
    Py_XDECREF(index);
    if (!found) PyErr_Clear();
    *stream = (void *)(uintptr_t)handle;
    return found;
}

/* The legacy stream, NULL, cannot be captured. */
static bool may_capture(void *stream) {
    int status = 0;
    return stream && (!host.is_capturing || host.is_capturing(stream, &status) != 0 || status != 0);
}

static int launch(const entry *e, const void *const *inputs, size_t count, void *output) {
    PyThreadState *state = PyEval_SaveThread();
    int before = e->threads ? host.get_threads() : 0;
    if (before != e->threads) host.set_threads(e->threads);
    int status = host.run(e->plan, inputs, count, &output, 1, e->stream);
    if (before != e->threads) host.set_threads(before);
    PyEval_RestoreThread(state);
    return status;
}

/* A new output, or NULL where there is none, or none that the plan can use: an exception says which. */
static PyObject *make_output(entry *e, const view *like, void **data) {
    view out;
    PyObject *made = PyObject_Call(e->make, e->like, NULL);
    if (!made) return NULL;
    bool there = look(made, &out);
    if (there && out.device_id != like->device_id) e->epoch = -1; /* the current device is another one now */
    else if (there && !((uintptr_t)out.data & e->low_bits[INPUTS])) return *data = out.data, made;
    Py_DECREF(made);
    return NULL;
}

/* The result, or None where Python must see to it. `given`: the last tensor is the result. */
static PyObject *serve(PyObject *self, PyObject *const *tensors, Py_ssize_t count, bool given) {
    runner *r = (runner *)self;
    view v[INPUTS];
    void *stream;
    if (count < 2 + given || count > INPUTS || r->count == 0) Py_RETURN_NONE;
    bool arrays = (PyObject *)Py_TYPE(tensors[0]) == host.array;
    if (!arrays && (!host.tensor || torch_wants(tensors, count))) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!look(tensors[i], &v[i])) Py_RETURN_NONE;
    if (arrays ? given && v[count - 1].read_only : any_negated(tensors, count)) Py_RETURN_NONE;
    bool cuda = v[0].device_type == CUDA;
    int threads = cuda ? 0 : arrays ? host.get_threads() : (int)ask(host.threads);
    int tf32 = cuda && v[0].dtype == (2 << 8 | 32) ? ask(host.tf32) == 1 : 0;
    if (!current_stream(&v[0], &stream) || may_capture(stream)) Py_RETURN_NONE;
    entry *e = find(r, v, (int)count, stream, threads, tf32, given);
    if (!e) Py_RETURN_NONE;
    const void *inputs[INPUTS];
    void *output = v[count - 1].data;
    for (int i = 0; i < count; i++) inputs[i] = v[i].data;
    e->busy = true; /* from here on other threads may run Python, and must neither use nor replace this entry */
    PyObject *result = given ? tensors[count - 1] : make_output(e, &v[0], &output);
    if (given) Py_INCREF(result);
    int status = result ? launch(e, inputs, (size_t)(count - given), output) : 0;
    e->busy = false;
    if (result && status == 0) return result;
    Py_XDECREF(result);
    if (status) Py_XDECREF(PyObject_CallFunction(host.failed, "i", status));
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* run(values, b[, bias]), run(x, y), run(q, k, v) */
static PyObject *runner_run(PyObject *self, PyObject *const *tensors, Py_ssize_t count) {
    return serve(self, tensors, count, false);
}

/* into(values, b, out) */
static PyObject *runner_into(PyObject *self, PyObject *const *tensors, Py_ssize_t count) {
    return serve(self, tensors, count, true);
}

/* add(inputs, alignments, make, like, stream, threads, tf32, plan, owner): inputs is a tuple of tensors; alignments one
 * power of two for each of them and one for the output, which make(*like) gives, or make is None, and the last input is
 * it. False where the tensors cannot be served here. */
static PyObject *runner_add(PyObject *self, PyObject *args) {
    runner *r = (runner *)self;
    PyObject *inputs, *alignments, *make, *like, *owner;
    unsigned long long stream, plan;
    entry e = {.epoch = epoch};
    if (!PyArg_ParseTuple(args, "O!O!OO!KiiKO", &PyTuple_Type, &inputs, &PyTuple_Type, &alignments, &make,
                          &PyTuple_Type, &like, &stream, &e.threads, &e.tf32, &plan, &owner))
        return NULL;
    e.inputs = (int)PyTuple_Size(inputs);
    if (e.inputs < 2 || e.inputs > INPUTS || PyTuple_Size(alignments) != e.inputs + 1) Py_RETURN_FALSE;
    for (int i = 0; i <= e.inputs; i++) {
        unsigned long align = PyLong_AsUnsignedLong(PyTuple_GetItem(alignments, i));
        if (PyErr_Occurred()) return NULL;
        e.low_bits[i == e.inputs ? INPUTS : i] = align - 1;
        if (i < e.inputs && !look(PyTuple_GetItem(inputs, i), &e.input[i])) Py_RETURN_FALSE;
    }
    int at = r->count < ENTRIES ? r->count++ : -1;
    for (int tries = 0; at < 0 && tries < ENTRIES; tries++) {
        r->next = (r->next + 1) % ENTRIES;
        if (!r->entries[r->next].busy) at = r->next;
    }
    if (at < 0) Py_RETURN_FALSE;
    entry old = r->entries[at];
    e.stream = (void *)(uintptr_t)stream, e.plan = (void *)(uintptr_t)plan;
    if (make == Py_None) make = NULL;
    Py_INCREF(owner), Py_XINCREF(make), Py_INCREF(like);
    e.owner = owner, e.make = make, e.like = like;
    r->entries[at] = e;
    release(&old);
    Py_RETURN_TRUE;
}

static void runner_dealloc(PyObject *self) {
    runner *r = (runner *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < r->count; i++) release(&r->entries[i]);
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_memory(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))runner_run, METH_FASTCALL, "run(inputs ...): the result, or None"},
    {"into", (PyCFunction)(void (*)(void))runner_into, METH_FASTCALL, "into(values, b, out): out, written to, or None"},
    {"add", runner_add, METH_VARARGS, "add(inputs, alignments, make, like, stream, threads, tf32, plan, owner)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_methods, runner_methods},
    {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_doc, "Plans of one product, by the tensors that they serve."},
    {0, NULL},
};

static PyType_Spec runner_spec = {"sparse_autotune._fast.Runner", sizeof(runner), 0, Py_TPFLAGS_DEFAULT, runner_slots};

/* ---- the module ---- */

static const dl_exchange *exchange_of(PyObject *capsule) {
    if (capsule == Py_None) return NULL;
    const dl_exchange *x = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (x && x->major != 1) x = x->previous;
    if (!x) PyErr_Clear();
    return x && x->view && x->stream ? x : NULL;
}

static PyObject *library(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *failed;
    unsigned long long run, set_threads, get_threads;
    if (!PyArg_ParseTuple(args, "OKKK", &failed, &run, &set_threads, &get_threads)) return NULL;
    Py_INCREF(failed); /* for the life of the process, as all that is kept here */
    host.failed = failed;
    host.run = (run_function)(uintptr_t)run;
    host.set_threads = (void (*)(int))(uintptr_t)set_threads;
    host.get_threads = (int (*)(void))(uintptr_t)get_threads;
    Py_RETURN_NONE;
}

static PyObject *numpy(PyObject *module, PyObject *type) {
    (void)module;
    Py_INCREF(type);
    host.array = type;
    Py_RETURN_NONE;
}

static PyObject *torch(PyObject *module, PyObject *args) {
    (void)module;
    PyObject **const places[] = {&host.tensor,          &host.parameter,      &host.is_neg,     &host.is_grad_enabled,
                                 &host.autocast,        &host.dispatch_modes, &host.tracing,    &host.early_modes,
                                 &host.before_dispatch, &host.threads,        &host.raw_stream, &host.tf32,
                                 &host.dtypes};
    Py_ssize_t count = sizeof places / sizeof *places;
    if (PyTuple_Size(args) != count + 1)
        return PyErr_Format(PyExc_TypeError, "torch: %zd objects are expected", count + 1);
    for (Py_ssize_t i = 0; i < count; i++) {
        *places[i] = PyTuple_GetItem(args, i);
        Py_INCREF(*places[i]);
    }
    host.exchange = exchange_of(PyTuple_GetItem(args, count));
    return PyBool_FromLong(host.exchange != NULL);
}

static PyObject *driver(PyObject *module, PyObject *address) {
    (void)module;
    unsigned long long found = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred()) return NULL;
    host.is_capturing = (int (*)(void *, int *))(uintptr_t)found;
    Py_RETURN_NONE;
}

static PyObject *set_epoch(PyObject *module, PyObject *number) {
    (void)module;
    epoch = PyLong_AsLong(number);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"library", library, METH_VARARGS,
     "library(what raises a failure, addresses of sat_run and of OpenMP's functions)"},
    {"numpy", numpy, METH_O, "numpy(type of arrays)"},
    {"torch", torch, METH_VARARGS, "torch(types, functions of torch, DLPack exchange or None)"},
    {"driver", driver, METH_O, "driver(address of cuStreamIsCapturing)"},
    {"holds", (PyCFunction)(void (*)(void))holds, METH_FASTCALL, "holds(tensor, ..., array, ...): True, False or None"},
    {"set_epoch", set_epoch, METH_O, "set_epoch(n): plans that were added under another number do not serve"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_fast",
                                        "The fast path for torch tensors and NumPy arrays.",
                                        -1,
                                        functions,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__fast(void) {
    names.requires_grad = PyUnicode_InternFromString("requires_grad"),
    names.shape = PyUnicode_InternFromString("shape");
    names.stride = PyUnicode_InternFromString("stride"), names.data_ptr = PyUnicode_InternFromString("data_ptr");
    names.dtype = PyUnicode_InternFromString("dtype"), names.get_device = PyUnicode_InternFromString("get_device");
    names.is_cuda = PyUnicode_InternFromString("is_cuda");
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&runner_spec);
    if (!module || !type || PyModule_AddObject(module, "Runner", type) != 0) {
        Py_XDECREF(module), Py_XDECREF(type);
        return NULL;
    }
    return module;
}
