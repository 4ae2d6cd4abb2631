// cuDNN, found at run time; see cudnn.h.

#include <stdio.h>
#include <stdlib.h>

#include "libs/cudnn.h"
#include "libs/library.h"

/* As cudnn_graph.h numbers them; the same in all of cuDNN 9. */
enum {
    SUCCESS = 0,
    BAD_PARAMETER = 2000,
    NOT_SUPPORTED = 3000,
    INTERNAL_ERROR = 4000,
    HOST_MEMORY = 4003,
    DEVICE_MEMORY = 4004
};
enum { /* cudnnBackendDescriptorType_t */
       POINTWISE = 0,
       ENGINE_CONFIG = 3,
       HEURISTIC = 4,
       PLAN = 5,
       OPERATION_POINTWISE = 13,
       GRAPH = 15,
       VARIANT_PACK = 16,
       TENSOR = 17,
       MATMUL = 18,
       OPERATION_MATMUL = 19,
       REDUCTION = 21,
       OPERATION_REDUCTION = 22,
       OPERATION_RESHAPE = 31
};
enum { /* cudnnBackendAttributeType_t */
       AS_HANDLE = 0,
       AS_TYPE = 1,
       AS_BOOL = 2,
       AS_INT64 = 3,
       AS_POINTER = 6,
       AS_HEURISTIC = 8,
       AS_POINTWISE = 14,
       AS_DESCRIPTOR = 15,
       AS_REDUCTION = 18
};
enum { /* cudnnBackendAttributeName_t */
       POINTWISE_MODE = 0,
       POINTWISE_TYPE = 1,
       POINTWISE_AXIS = 9,
       HEURISTIC_MODE = 200,
       HEURISTIC_GRAPH = 201,
       HEURISTIC_RESULTS = 202,
       PLAN_HANDLE = 400,
       PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402,
       POINTWISE_WHAT = 750,
       POINTWISE_X = 751,
       POINTWISE_B = 752,
       POINTWISE_Y = 753,
       POINTWISE_T = 758,
       GRAPH_HANDLE = 800,
       GRAPH_OPERATIONS = 801,
       TENSOR_ALIGNMENT = 900,
       TENSOR_TYPE = 901,
       TENSOR_SIZES = 902,
       TENSOR_STRIDES = 903,
       TENSOR_ID = 906,
       TENSOR_IS_INNER = 907,
       TENSOR_IS_NUMBER = 908,
       PACK_IDS = 1000,
       PACK_POINTERS = 1001,
       PACK_WORKSPACE = 1003,
       MATMUL_TYPE = 1500,
       MATMUL_A = 1520,
       MATMUL_B = 1521,
       MATMUL_C = 1522,
       MATMUL_WHAT = 1523,
       REDUCTION_FOLD = 1600,
       REDUCTION_TYPE = 1601,
       REDUCTION_X = 1610,
       REDUCTION_Y = 1611,
       REDUCTION_WHAT = 1612,
       RESHAPE_X = 2200,
       RESHAPE_Y = 2201
};
enum { FALLBACK = 2, BEST = 3 }; /* cudnnBackendHeurMode_t */
enum { MOST_TENSORS = 64, MOST_OPERATIONS = 48, MOST_OPERANDS = 16, MOST_NUMBERS = 16, MOST_PLANS = 8, MOST_IDLE = 8 };

static struct {
    size_t (*version)(void);
    const char *(*words)(int status);
    void (*last_error)(char *message, size_t bytes);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*make)(int kind, void **descriptor);
    int (*drop)(void *descriptor);
    int (*finish)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*get)(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values);
    int (*run)(void *handle, void *plan, void *pack);
} dnn;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char version[48]; /* "": not on this machine */
static int number;
static sat_handles handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void) {
    /* Not libcudnn.so.9: that ends the process where one of the libraries behind it is missing. */
    static const char *const names[] = {"libcudnn_graph.so.9", NULL};
    static const char *const packages[] = {"/nvidia/cudnn/lib", "/torch/lib", NULL};
    static const char *const beside[] = {"libcudnn.so.9", NULL}; /* PyTorch has it; versions may not be mixed */
    static const char *const symbols[] = {"cudnnGetVersion",
                                          "cudnnGetErrorString",
                                          "cudnnGetLastErrorString",
                                          "cudnnCreate",
                                          "cudnnDestroy",
                                          "cudnnSetStream",
                                          "cudnnBackendCreateDescriptor",
                                          "cudnnBackendDestroyDescriptor",
                                          "cudnnBackendFinalize",
                                          "cudnnBackendSetAttribute",
                                          "cudnnBackendGetAttribute",
                                          "cudnnBackendExecute"};
    const sat_cuda_library place = {"SPARSE_AUTOTUNE_CUDNN", names, NULL, packages, beside};
    void *f[12], *library = sat_library_open_cuda(&place);
    if (!library || !sat_library_symbols(library, symbols, f, 12)) return;
    _Static_assert(sizeof dnn == sizeof f, "a symbol for each function");
    memcpy(&dnn, f, sizeof f);
    size_t v = dnn.version();
    if (v / 10000 != 9) return; /* what the numbers above are true of */
    number = (int)v;
    snprintf(version, sizeof version, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

const char *sat_cudnn_version(void) {
    pthread_once(&once, load);
    return version[0] ? version : NULL;
}

int sat_cudnn_number(void) { return sat_cudnn_version() ? number : 0; }

struct sat_dnn {
    double key[SAT_DNN_KEY];
    const sat_variant *variant;
    int device, failed; /* the first status that was not SUCCESS */
    const char *doing;
    void *handle, *tensor[MOST_TENSORS], *what[MOST_OPERATIONS], *operation[MOST_OPERATIONS];
    int tensors, operations, operands, numbers;
    int64_t operand_id[MOST_OPERANDS + MOST_NUMBERS]; /* operands first, numbers from MOST_OPERANDS on until planned */
    union {
        float f;
        int32_t i;
    } value[MOST_NUMBERS];
    void *graph, *plan, *pack, *given[MOST_OPERANDS], *workspace; /* pack: of the pointers `given` */
};

static sat_status judge(int status, const sat_variant *v, const char *doing) {
    char words[256] = "";
    if (status == SUCCESS) return SAT_OK;
    dnn.last_error(words, sizeof words);
    for (char *c = words; *c; c++)
        if (*c == '\n') *c = ' ';
    bool unable = status < BAD_PARAMETER || (status >= NOT_SUPPORTED && status < INTERNAL_ERROR); /* parts missing */
    sat_status as = status == HOST_MEMORY || status == DEVICE_MEMORY ? SAT_OUT_OF_MEMORY : SAT_LIBRARY_ERROR;
    return sat_fail(unable ? SAT_UNSUPPORTED : as, "%s: cuDNN: %s: %s %s", v->name, doing, dnn.words(status), words);
}

/* ---- descriptors ---- */

static void *make(sat_dnn *g, int kind, const char *doing) {
    void *made = NULL;
    if (g->failed) return NULL;
    g->doing = doing;
    g->failed = dnn.make(kind, &made);
    return g->failed ? NULL : made;
}

static void set(sat_dnn *g, void *descriptor, int name, int type, int64_t count, const void *values) {
    if (!g->failed) g->failed = dnn.set(descriptor, name, type, count, values);
}

static void set_int(sat_dnn *g, void *descriptor, int name, int type, int value) { /* the library's enums are ints */
    set(g, descriptor, name, type, 1, &value);
}

static void set_tensor(sat_dnn *g, void *descriptor, int name, int tensor) {
    set(g, descriptor, name, AS_DESCRIPTOR, 1, &g->tensor[tensor - 1]);
}

static void finish(sat_dnn *g, void *descriptor) {
    if (!g->failed) g->failed = dnn.finish(descriptor);
}

static void drop(void **descriptor) {
    if (*descriptor) dnn.drop(*descriptor);
    *descriptor = NULL;
}

/* ---- graphs ---- */

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static sat_dnn *idle[MOST_IDLE]; /* the oldest first */
static int idle_count;

static sat_dnn *take_idle(int at) {
    sat_dnn *g = idle[at];
    memmove(&idle[at], &idle[at + 1], (size_t)(--idle_count - at) * sizeof *idle);
    return g;
}

static bool same_key(const double *x, const double *y) {
    for (int i = 0; i < SAT_DNN_KEY; i++)
        if (x[i] != y[i]) return false;
    return true;
}

static sat_dnn *find_idle(int device, const double *key) {
    sat_dnn *found = NULL;
    pthread_mutex_lock(&idle_lock);
    for (int i = 0; i < idle_count && !found; i++)
        if (idle[i]->device == device && same_key(idle[i]->key, key)) found = take_idle(i);
    pthread_mutex_unlock(&idle_lock);
    return found;
}

sat_status sat_dnn_open(const sat_prepare *p, const double key[SAT_DNN_KEY], sat_dnn **graph) {
    *graph = NULL;
    if (!sat_cudnn_version()) return sat_fail(SAT_LIBRARY_ERROR, "%s: cuDNN is gone", p->variant->name);
    if ((*graph = find_idle(p->device->index, key))) return (*graph)->variant = p->variant, SAT_OK;
    sat_dnn *g = calloc(1, sizeof *g);
    if (!g) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", p->variant->name);
    g->variant = p->variant, g->device = p->device->index;
    memcpy(g->key, key, sizeof g->key);
    g->handle = sat_handles_take(&handles, g->device);
    int status = g->handle ? SUCCESS : dnn.create(&g->handle);
    if (status == SUCCESS) return *graph = g, SAT_OK;
    free(g);
    return judge(status, p->variant, "a handle");
}

bool sat_dnn_planned(const sat_dnn *g) { return g->plan != NULL; }

static void destroy(sat_dnn *g) {
    drop(&g->pack), drop(&g->plan), drop(&g->graph);
    for (int i = 0; i < g->operations; i++) drop(&g->operation[i]), drop(&g->what[i]);
    for (int i = 0; i < g->tensors; i++) drop(&g->tensor[i]);
    if (!sat_handles_give(&handles, g->handle, g->device)) dnn.destroy(g->handle);
    free(g);
}

void sat_dnn_close(sat_dnn *g) {
    sat_dnn *leaves = g && !g->plan ? g : NULL;
    if (g && g->plan) {
        pthread_mutex_lock(&idle_lock);
        if (idle_count == MOST_IDLE) leaves = take_idle(0);
        idle[idle_count++] = g;
        pthread_mutex_unlock(&idle_lock);
    }
    if (leaves) destroy(leaves);
}

/* ---- tensors ---- */

static int tensor(sat_dnn *g, sat_dnn_type t, const sat_dnn_shape *s, int64_t align, int flag) {
    bool yes = true;
    if (!g->failed && g->tensors == MOST_TENSORS) g->failed = INTERNAL_ERROR;
    void *made = make(g, TENSOR, "a tensor");
    if (!made) return 1;
    int64_t id = g->tensors + 1;
    g->tensor[g->tensors++] = made;
    set_int(g, made, TENSOR_TYPE, AS_TYPE, (int)t);
    set(g, made, TENSOR_SIZES, AS_INT64, 4, s->size);
    set(g, made, TENSOR_STRIDES, AS_INT64, 4, s->stride);
    set(g, made, TENSOR_ID, AS_INT64, 1, &id);
    set(g, made, TENSOR_ALIGNMENT, AS_INT64, 1, &align);
    if (flag) set(g, made, flag, AS_BOOL, 1, &yes);
    finish(g, made);
    return (int)id;
}

int sat_dnn_operand(sat_dnn *g, sat_dnn_type t, const sat_dnn_shape *shape, int align) {
    if (!g->failed && g->operands == MOST_OPERANDS) g->failed = INTERNAL_ERROR;
    int id = tensor(g, t, shape, align, 0);
    if (!g->failed) g->operand_id[g->operands++] = id;
    return id;
}

static int one_number(sat_dnn *g, sat_dnn_type t) {
    const sat_dnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    if (!g->failed && g->numbers == MOST_NUMBERS) g->failed = INTERNAL_ERROR;
    int id = tensor(g, t, &one, 4, TENSOR_IS_NUMBER);
    if (!g->failed) g->operand_id[MOST_OPERANDS + g->numbers++] = id;
    return id;
}

int sat_dnn_number_f32(sat_dnn *g, float value) {
    int id = one_number(g, SAT_DNN_F32);
    if (!g->failed) g->value[g->numbers - 1].f = value;
    return id;
}

int sat_dnn_number_i32(sat_dnn *g, int32_t value) {
    int id = one_number(g, SAT_DNN_I32);
    if (!g->failed) g->value[g->numbers - 1].i = value;
    return id;
}

int sat_dnn_inner(sat_dnn *g, sat_dnn_type t, const int64_t size[4]) {
    sat_dnn_shape s = {{size[0], size[1], size[2], size[3]},
                       {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1}};
    return sat_dnn_inner_of(g, t, &s);
}

int sat_dnn_inner_of(sat_dnn *g, sat_dnn_type t, const sat_dnn_shape *shape) {
    return tensor(g, t, shape, 16, TENSOR_IS_INNER);
}

/* ---- operations ---- */

/* Makes the place of an operation and what it does, which is set and finished first; -1: it has no such thing. */
static bool add(sat_dnn *g, int what, int operation, const char *doing) {
    if (!g->failed && g->operations == MOST_OPERATIONS) g->failed = INTERNAL_ERROR;
    void *a = what < 0 ? NULL : make(g, what, doing), *b = make(g, operation, doing);
    if (!g->failed) {
        g->what[g->operations] = a, g->operation[g->operations] = b;
        g->operations++;
    } else drop(&a), drop(&b);
    return !g->failed;
}

void sat_dnn_matmul(sat_dnn *g, int x, int b, int y) {
    if (!add(g, MATMUL, OPERATION_MATMUL, "a product")) return;
    void *what = g->what[g->operations - 1], *to = g->operation[g->operations - 1];
    set_int(g, what, MATMUL_TYPE, AS_TYPE, SAT_DNN_F32);
    finish(g, what);
    set(g, to, MATMUL_WHAT, AS_DESCRIPTOR, 1, &what);
    set_tensor(g, to, MATMUL_A, x), set_tensor(g, to, MATMUL_B, b), set_tensor(g, to, MATMUL_C, y);
    finish(g, to);
}

void sat_dnn_pointwise(sat_dnn *g, sat_dnn_mode mode, sat_dnn_type in, int axis, int x, int b, int t, int y) {
    if (!add(g, POINTWISE, OPERATION_POINTWISE, "an operation on elements")) return;
    void *what = g->what[g->operations - 1], *to = g->operation[g->operations - 1];
    int64_t along = axis;
    set_int(g, what, POINTWISE_MODE, AS_POINTWISE, (int)mode);
    set_int(g, what, POINTWISE_TYPE, AS_TYPE, (int)in);
    if (mode == SAT_DNN_INDEX) set(g, what, POINTWISE_AXIS, AS_INT64, 1, &along);
    finish(g, what);
    set(g, to, POINTWISE_WHAT, AS_DESCRIPTOR, 1, &what);
    set_tensor(g, to, POINTWISE_X, x), set_tensor(g, to, POINTWISE_Y, y);
    if (b) set_tensor(g, to, POINTWISE_B, b);
    if (t) set_tensor(g, to, POINTWISE_T, t);
    finish(g, to);
}

void sat_dnn_transpose(sat_dnn *g, int x, int y) {
    if (!add(g, -1, OPERATION_RESHAPE, "a transpose")) return;
    void *to = g->operation[g->operations - 1];
    set_tensor(g, to, RESHAPE_X, x), set_tensor(g, to, RESHAPE_Y, y);
    finish(g, to);
}

void sat_dnn_reduce(sat_dnn *g, sat_dnn_fold fold, int x, int y) {
    if (!add(g, REDUCTION, OPERATION_REDUCTION, "a reduction")) return;
    void *what = g->what[g->operations - 1], *to = g->operation[g->operations - 1];
    set_int(g, what, REDUCTION_FOLD, AS_REDUCTION, (int)fold);
    set_int(g, what, REDUCTION_TYPE, AS_TYPE, SAT_DNN_F32);
    finish(g, what);
    set(g, to, REDUCTION_WHAT, AS_DESCRIPTOR, 1, &what);
    set_tensor(g, to, REDUCTION_X, x), set_tensor(g, to, REDUCTION_Y, y);
    finish(g, to);
}

/* ---- plans ---- */

/* True where this configuration becomes the plan. That one does not is no failure of the graph. */
static bool take(sat_dnn *g, void *config, size_t workspace) {
    int64_t bytes = 0, count = 0;
    void *plan = make(g, PLAN, "a plan");
    set(g, plan, PLAN_HANDLE, AS_HANDLE, 1, &g->handle);
    set(g, plan, PLAN_CONFIG, AS_DESCRIPTOR, 1, &config);
    finish(g, plan);
    if (!g->failed) g->failed = dnn.get(plan, PLAN_WORKSPACE, AS_INT64, 1, &count, &bytes);
    if (!g->failed && (uint64_t)bytes <= workspace) return g->plan = plan, true;
    drop(&plan);
    if (!g->failed) g->failed = NOT_SUPPORTED, g->doing = "a plan that needs little workspace";
    return false;
}

static void search(sat_dnn *g, int mode, size_t workspace) {
    void *configs[MOST_PLANS] = {NULL}, *heuristic = make(g, HEURISTIC, "the heuristic");
    int64_t count = 0;
    set(g, heuristic, HEURISTIC_GRAPH, AS_DESCRIPTOR, 1, &g->graph);
    set_int(g, heuristic, HEURISTIC_MODE, AS_HEURISTIC, mode);
    finish(g, heuristic);
    for (int i = 0; i < MOST_PLANS; i++) configs[i] = make(g, ENGINE_CONFIG, "the heuristic");
    if (!g->failed) g->failed = dnn.get(heuristic, HEURISTIC_RESULTS, AS_DESCRIPTOR, MOST_PLANS, &count, configs);
    if (!g->failed && count == 0) g->failed = NOT_SUPPORTED;
    for (int64_t i = 0; i < count && i < MOST_PLANS && !g->plan; i++) {
        g->failed = SUCCESS; /* of the configuration before */
        take(g, configs[i], workspace);
    }
    for (int i = 0; i < MOST_PLANS; i++) drop(&configs[i]);
    drop(&heuristic);
}

sat_status sat_dnn_plan(sat_dnn *g, size_t workspace) {
    g->graph = make(g, GRAPH, "the graph");
    set(g, g->graph, GRAPH_HANDLE, AS_HANDLE, 1, &g->handle);
    set(g, g->graph, GRAPH_OPERATIONS, AS_DESCRIPTOR, g->operations, g->operation);
    finish(g, g->graph);
    if (g->failed) return judge(g->failed, g->variant, g->doing);
    search(g, BEST, workspace);
    if (!g->plan) g->failed = SUCCESS, search(g, FALLBACK, workspace);
    memmove(g->operand_id + g->operands, g->operand_id + MOST_OPERANDS, (size_t)g->numbers * sizeof *g->operand_id);
    return judge(g->failed, g->variant, g->doing);
}

/* The pack is kept from run to run: most come with the pointers of the one before. */
static int pack(sat_dnn *g, void *const *pointers, void *workspace) {
    void *all[MOST_OPERANDS + MOST_NUMBERS];
    size_t bytes = (size_t)g->operands * sizeof *all;
    if (g->pack && g->workspace == workspace && memcmp(g->given, pointers, bytes) == 0) return SUCCESS;
    drop(&g->pack);
    memcpy(g->given, pointers, bytes), memcpy(all, pointers, bytes);
    for (int i = 0; i < g->numbers; i++) all[g->operands + i] = &g->value[i];
    g->workspace = workspace;
    void *made = NULL;
    int status = dnn.make(VARIANT_PACK, &made), count = g->operands + g->numbers;
    if (status == SUCCESS) status = dnn.set(made, PACK_IDS, AS_INT64, count, g->operand_id);
    if (status == SUCCESS) status = dnn.set(made, PACK_POINTERS, AS_POINTER, count, all);
    if (status == SUCCESS) status = dnn.set(made, PACK_WORKSPACE, AS_POINTER, 1, &g->workspace);
    if (status == SUCCESS) status = dnn.finish(made);
    if (status == SUCCESS) g->pack = made;
    else drop(&made);
    return status;
}

sat_status sat_dnn_run(const sat_launch *l, sat_dnn *g, void *const *pointers, void *workspace) {
    int status = dnn.set_stream(g->handle, l->stream);
    if (status == SUCCESS) status = pack(g, pointers, workspace);
    if (status == SUCCESS) status = dnn.run(g->handle, g->plan, g->pack);
    return judge(status, l->variant, "a run");
}
