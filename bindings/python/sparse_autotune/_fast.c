/* The fast path from torch tensors or NumPy arrays to a product, or to attention and its gradients: no dispatcher, no
 * Python code, one allocation a result by their maker.
 *
 * A Runner belongs to one pattern and one kind of operation. It remembers for which shapes, strides, dtypes, stream and
 * thread count which plan serves. A call that finds its plan runs it. Any other gives None, and Python takes the full
 * path, which then adds a plan here. Nothing is decided here that the full path would decide otherwise.
 *
 * Plans of fixed values hold what they made of the values. A Runner of such plans knows the one array, or tensor, that
 * they took in (fix) and serves no other, nor that one once torch has counted a write to it. Python closes it when the
 * plans take in others.
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

enum { DIMS = 6, INPUTS = 6, OUTPUTS = 3, ENTRIES = 8, CPU = 1, CUDA = 2 };

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
    PyObject *interpreter, *threads, *raw_stream, *tf32;
    PyObject *dtypes; /* float32, float64, float16, bfloat16, int32, int64 */
    const dl_exchange *exchange;
    run_function run;
    void (*set_threads)(int);
    int (*get_threads)(void);
    int (*is_capturing)(void *stream, int *status); /* the driver's; NULL until driver() */
} host;

static long epoch; /* of efforts and registered variants: plans of another one do not serve */

static struct { PyObject *requires_grad, *shape, *stride, *data_ptr, *dtype, *get_device, *is_cuda, *version; } names;

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
    if (kind == 'i' || kind == 'l' || kind == 'q') v->dtype = (int)b.item_size * 8; /* as DLPack has integers */
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
    int inputs, outputs; /* no outputs: the last input is the result */
    view input[INPUTS];
    uintptr_t input_bits[INPUTS], output_bits[OUTPUTS]; /* those that must be zero in a pointer */
    PyObject *make[OUTPUTS], *like[OUTPUTS];            /* what makes an output, and its arguments */
    void *stream, *plan;
    PyObject *owner; /* keeps the plan; where there is none, the function that computes the result */
    int threads, tf32;
    long epoch;
    bool busy;
} entry;

typedef struct runner {
    PyObject_HEAD entry entries[ENTRIES];
    int count, next;
    PyObject *values; /* fixed ones: the only first input that is served; else NULL */
    void *data;       /* where they were */
    long version;     /* torch's count of writes to them; -1: nobody counts */
    bool closed;      /* serves nothing any more */
} runner;

static void release(const entry *e) {
    Py_XDECREF(e->owner);
    for (int i = 0; i < e->outputs; i++) Py_DECREF(e->make[i]), Py_DECREF(e->like[i]);
}

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
        bool fits = e->tf32 == tf32 && !e->outputs == given;
        for (int j = 0; j < inputs && fits; j++) fits = same(&v[j], &e->input[j], e->input_bits[j]);
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

/* Whether modes want to see operators, or a trace, which does not see what is written here. */
static bool watched(void) {
    return ask(host.dispatch_modes) != 0 || ask(host.tracing) != 0 ||
           (any_mode(host.early_modes) && ask(host.before_dispatch) != 0);
}

/* Whether this is called inside a transform of torch.func. */
static bool transformed(void) {
    PyObject *transform = PyObject_CallNoArgs(host.interpreter);
    bool any = transform != Py_None;
    Py_XDECREF(transform);
    if (any) PyErr_Clear();
    return any;
}

/* plain(tensor or None, ...): True where modes.plain is; False where Python must ask. Wrappers have no memory. */
static PyObject *plain(PyObject *module, PyObject *const *tensors, Py_ssize_t count) {
    (void)module;
    view v;
    if (!host.tensor || watched() || transformed()) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < count; i++)
        if (tensors[i] != Py_None && !(look(tensors[i], &v) && v.of == TORCH)) Py_RETURN_FALSE;
    Py_RETURN_TRUE;
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

static int launch(const entry *e, const void *const *inputs, size_t input_count, void *const *outputs,
                  size_t output_count) {
    PyThreadState *state = PyEval_SaveThread();
    int before = e->threads ? host.get_threads() : 0;
    if (before != e->threads) host.set_threads(e->threads);
    int status = host.run(e->plan, inputs, input_count, outputs, output_count, e->stream);
    if (before != e->threads) host.set_threads(before);
    PyEval_RestoreThread(state);
    return status;
}

/* A new output, or NULL where there is none, or none that the plan can use: an exception says which. */
static PyObject *make_output(entry *e, int at, void **data) {
    view out;
    PyObject *made = PyObject_Call(e->make[at], e->like[at], NULL);
    if (!made) return NULL;
    bool there = look(made, &out);
    if (there && out.device_id != e->input[0].device_id) e->epoch = -1; /* the current device is another one now */
    else if (there && !((uintptr_t)out.data & e->output_bits[at])) return *data = out.data, made;
    Py_DECREF(made);
    return NULL;
}

/* New outputs: one, or a tuple of several. NULL as in make_output. */
static PyObject *make_outputs(entry *e, void **data) {
    if (e->outputs == 1) return make_output(e, 0, data);
    PyObject *all = PyTuple_New(e->outputs);
    for (int i = 0; i < e->outputs && all; i++) {
        PyObject *made = make_output(e, i, &data[i]);
        if (made) PyTuple_SetItem(all, i, made);
        else Py_CLEAR(all);
    }
    return all;
}

/* What a plan makes of the inputs, or None where Python must see to it. `given`: the last one is the result. */
static PyObject *run_plan(entry *e, const view *v, PyObject *given) {
    const void *inputs[INPUTS];
    void *outputs[OUTPUTS] = {v[e->inputs - 1].data};
    for (int i = 0; i < e->inputs; i++) inputs[i] = v[i].data;
    size_t input_count = (size_t)e->inputs - !!given, output_count = given ? 1 : (size_t)e->outputs;
    e->busy = true; /* from here on other threads may run Python, and must neither use nor replace this entry */
    PyObject *result = given ? given : make_outputs(e, outputs);
    if (given) Py_INCREF(result);
    int status = result ? launch(e, inputs, input_count, outputs, output_count) : 0;
    e->busy = false;
    if (result && status == 0) return result;
    Py_XDECREF(result);
    if (status) Py_XDECREF(PyObject_CallFunction(host.failed, "i", status));
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *call(PyObject *function, PyObject *const *inputs, Py_ssize_t count) {
    Py_INCREF(function); /* its entry may be replaced meanwhile */
    PyObject *arguments = PyTuple_New(count), *result = NULL;
    if (arguments) {
        for (Py_ssize_t i = 0; i < count; i++) Py_INCREF(inputs[i]), PyTuple_SetItem(arguments, i, inputs[i]);
        result = PyObject_Call(function, arguments, NULL);
        Py_DECREF(arguments);
    }
    Py_DECREF(function);
    return result;
}

static bool are_arrays(PyObject *const *inputs, Py_ssize_t count) {
    return count > 0 && (PyObject *)Py_TYPE(inputs[0]) == host.array;
}

/* Whether a tensor is the one with the fixed values, as far as can be seen. */
static bool holds_fixed(const runner *r, PyObject *tensor, const view *v) {
    if (tensor != r->values || v->data != r->data) return false;
    if (r->version < 0) return true;
    PyObject *counted = PyObject_GetAttr(tensor, names.version);
    long version = counted ? PyLong_AsLong(counted) : -1;
    Py_XDECREF(counted);
    if (PyErr_Occurred()) PyErr_Clear();
    return version == r->version;
}

/* The result, or None where Python must see to it. `given`: the last tensor is the result. */
static PyObject *serve(PyObject *self, PyObject *const *tensors, Py_ssize_t count, bool given) {
    runner *r = (runner *)self;
    view v[INPUTS];
    void *stream;
    if (count < 2 + given || count > INPUTS || r->count == 0) Py_RETURN_NONE;
    bool arrays = are_arrays(tensors, count);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!look(tensors[i], &v[i])) Py_RETURN_NONE;
    if (r->values && !holds_fixed(r, tensors[0], &v[0])) Py_RETURN_NONE;
    if (arrays ? given && v[count - 1].read_only : any_negated(tensors, count)) Py_RETURN_NONE;
    bool cuda = v[0].device_type == CUDA;
    int threads = cuda ? 0 : arrays ? host.get_threads() : (int)ask(host.threads);
    int tf32 = cuda && v[0].dtype == (2 << 8 | 32) ? ask(host.tf32) == 1 : 0;
    if (!current_stream(&v[0], &stream) || may_capture(stream)) Py_RETURN_NONE;
    entry *e = find(r, v, (int)count, stream, threads, tf32, given);
    if (!e) Py_RETURN_NONE;
    return e->plan ? run_plan(e, v, given ? tensors[count - 1] : NULL) : call(e->owner, tensors, count);
}

/* Whether torch, if there is any, would do no more with these than read them. */
static bool only_read(PyObject *const *inputs, Py_ssize_t count) {
    return are_arrays(inputs, count) ||
           (host.tensor && !needs_grad(inputs, count) && ask(host.autocast) == 0 && !watched());
}

/* run(values, b[, bias]), run(x, y) */
static PyObject *runner_run(PyObject *self, PyObject *const *inputs, Py_ssize_t count) {
    if (!only_read(inputs, count)) Py_RETURN_NONE;
    return serve(self, inputs, count, false);
}

/* run_inside(inputs ...): as run, for a caller that sees to gradients and autocast itself: an autograd function, an
 * operator. */
static PyObject *runner_run_inside(PyObject *self, PyObject *const *inputs, Py_ssize_t count) {
    if (!are_arrays(inputs, count) && (!host.tensor || watched() || transformed())) Py_RETURN_NONE;
    return serve(self, inputs, count, false);
}

/* into(values, b, out) */
static PyObject *runner_into(PyObject *self, PyObject *const *inputs, Py_ssize_t count) {
    if (!only_read(inputs, count)) Py_RETURN_NONE;
    return serve(self, inputs, count, true);
}

/* Fills in an entry's bits and makers; borrows references. False where the tensors cannot be served here, -1 with an
 * exception. */
static int fill(entry *e, PyObject *inputs, PyObject *alignments, PyObject *makers) {
    e->inputs = (int)PyTuple_Size(inputs), e->outputs = (int)PyTuple_Size(makers);
    if (e->inputs < 2 || e->inputs > INPUTS || e->outputs > OUTPUTS) return false;
    if (PyTuple_Size(alignments) != e->inputs + e->outputs) return false;
    for (int i = 0; i < e->inputs + e->outputs; i++) {
        unsigned long align = PyLong_AsUnsignedLong(PyTuple_GetItem(alignments, i));
        if (PyErr_Occurred()) return -1;
        *(i < e->inputs ? &e->input_bits[i] : &e->output_bits[i - e->inputs]) = align - 1;
    }
    for (int i = 0; i < e->inputs; i++)
        if (!look(PyTuple_GetItem(inputs, i), &e->input[i])) return false;
    for (int i = 0; i < e->outputs; i++)
        if (!PyArg_ParseTuple(PyTuple_GetItem(makers, i), "OO!", &e->make[i], &PyTuple_Type, &e->like[i])) return -1;
    return true;
}

/* add(inputs, alignments, makers, stream, threads, tf32, plan, owner): inputs is a tuple of tensors. makers has a pair
 * for each output, which the first calls with the second; none where the last input is the output. alignments are
 * powers of two, of the inputs and then of the outputs. plan is 0 where owner(*inputs) computes the result. False where
 * the tensors cannot be served here. */
static PyObject *runner_add(PyObject *self, PyObject *args) {
    runner *r = (runner *)self;
    PyObject *inputs, *alignments, *makers;
    unsigned long long stream, plan;
    entry e = {.epoch = epoch};
    if (!PyArg_ParseTuple(args, "O!O!O!KiiKO", &PyTuple_Type, &inputs, &PyTuple_Type, &alignments, &PyTuple_Type,
                          &makers, &stream, &e.threads, &e.tf32, &plan, &e.owner))
        return NULL;
    if (r->closed) Py_RETURN_FALSE;
    int filled = fill(&e, inputs, alignments, makers);
    if (filled < 0) return NULL;
    if (!filled || r->closed) Py_RETURN_FALSE;
    int at = r->count < ENTRIES ? r->count++ : -1;
    for (int tries = 0; at < 0 && tries < ENTRIES; tries++) {
        r->next = (r->next + 1) % ENTRIES;
        if (!r->entries[r->next].busy) at = r->next;
    }
    if (at < 0) Py_RETURN_FALSE;
    entry old = r->entries[at];
    e.stream = (void *)(uintptr_t)stream, e.plan = (void *)(uintptr_t)plan;
    Py_INCREF(e.owner);
    for (int i = 0; i < e.outputs; i++) Py_INCREF(e.make[i]), Py_INCREF(e.like[i]);
    r->entries[at] = e;
    release(&old);
    Py_RETURN_TRUE;
}

/* fix(values, version): serves these values alone from now on. version: torch's count of writes to them, or -1. */
static PyObject *runner_fix(PyObject *self, PyObject *args) {
    runner *r = (runner *)self;
    PyObject *values;
    long version;
    view v;
    if (!PyArg_ParseTuple(args, "Ol", &values, &version)) return NULL;
    if (!look(values, &v)) r->closed = true;
    else r->data = v.data;
    PyObject *old = r->values;
    Py_INCREF(values);
    r->values = values, r->version = version;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* close(): lets go of all plans, and takes no new ones. One that is running goes with the runner. */
static PyObject *runner_close(PyObject *self, PyObject *unused) {
    (void)unused;
    runner *r = (runner *)self;
    entry idle[ENTRIES];
    int count = 0, kept = 0;
    r->closed = true;
    for (int i = 0; i < r->count; i++) {
        if (r->entries[i].busy) r->entries[i].epoch = -1, kept++;
        else idle[count++] = r->entries[i], r->entries[i] = (entry){.epoch = -1};
    }
    if (kept == 0) r->count = 0;
    PyObject *values = r->values;
    r->values = NULL;
    for (int i = 0; i < count; i++) release(&idle[i]); /* last, since it may run Python */
    Py_XDECREF(values);
    Py_RETURN_NONE;
}

static void runner_dealloc(PyObject *self) {
    runner *r = (runner *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < r->count; i++) release(&r->entries[i]);
    Py_XDECREF(r->values);
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_memory(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))runner_run, METH_FASTCALL, "run(inputs ...): the result, or None"},
    {"into", (PyCFunction)(void (*)(void))runner_into, METH_FASTCALL, "into(values, b, out): out, written to, or None"},
    {"run_inside", (PyCFunction)(void (*)(void))runner_run_inside, METH_FASTCALL,
     "run_inside(inputs ...): as run, whatever gradients and autocast there are"},
    {"add", runner_add, METH_VARARGS, "add(inputs, alignments, makers, stream, threads, tf32, plan, owner)"},
    {"fix", runner_fix, METH_VARARGS, "fix(values, version): serves these values alone, while they are as they are"},
    {"close", runner_close, METH_NOARGS, "close(): lets go of all plans, and takes no new ones"},
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
    PyObject **const places[] = {
        &host.tensor,         &host.parameter,  &host.is_neg,      &host.is_grad_enabled, &host.autocast,
        &host.dispatch_modes, &host.tracing,    &host.early_modes, &host.before_dispatch, &host.interpreter,
        &host.threads,        &host.raw_stream, &host.tf32,        &host.dtypes};
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
    {"plain", (PyCFunction)(void (*)(void))plain, METH_FASTCALL,
     "plain(tensor or None, ...): as modes.plain; may say no"},
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
    names.is_cuda = PyUnicode_InternFromString("is_cuda"), names.version = PyUnicode_InternFromString("_version");
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&runner_spec);
    if (!module || !type || PyModule_AddObject(module, "Runner", type) != 0) {
        Py_XDECREF(module), Py_XDECREF(type);
        return NULL;
    }
    return module;
}
