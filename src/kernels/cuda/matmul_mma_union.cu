// cuda_matmul_mma_union: 256 rows of small blocks at once, along the union of their columns, so that each piece of B is
// fetched once for all of them. Pays where L2 is the limit: blocks of 16 and 32, not too sparse.

#include "mma_family.cuh"
#include "mma_union.cuh"

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bytes = (double)a->stored_blocks * (double)r.block_elements * 2, most = INT32_MAX;
    if (p->a_dtype != v->instance.dtype || d->capability < 80 || SAT_UNION_SHARED + 1024 > d->l1_bytes) return false;
    if ((r.br != 16 && r.br != 32 && r.br != 64) || r.bc % 16 != 0 || !sat_mma_aligned(p)) return false;
    if (bytes > 16 * most || r.k + r.bc > (int64_t)most || (sat_mma_wide_b(p) && (double)p->b.row_stride * 2 > most))
        return false;
    double tiles = (double)(p->m / SAT_UNION_ROWS + 1) * (double)(p->n / SAT_UNION_COLUMNS + 1) * (double)p->batch;
    return tiles < most && (double)a->stored_blocks * (double)(r.bc / 16) < most;
}

// Units are counted as if blocks lay at random.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    sat_rows r = sat_op_rows(p, a);
    double groups = (double)sat_union_groups(&r), panels = (double)((p->n + SAT_UNION_COLUMNS - 1) / SAT_UNION_COLUMNS);
    double tiles = fmax(1, groups * panels * (double)p->batch), sms = (double)d->threads;
    double any = 1 - pow(1 - fmin(1, a->density), (double)(SAT_UNION_ROWS / r.br));
    double units = any * groups * (double)r.k / 16, cells = (double)a->stored_blocks * (double)(r.block_elements / 256);
    double moved = panels * (double)p->batch * (units * (double)SAT_UNION_B + cells * 512);
    double l2 = moved / (d->memory_rate * 1.9), compute = sat_flops(p, a) / (0.35 * d->flop_rate[SAT_F16]);
    double share = fmax(1, tiles / sms), work = fmax(fmax(l2, compute), sat_bytes(p, a) / d->memory_rate);
    return 4e-6 + 2e-6 * fmin(4, share) + work * fmax(ceil(share) / share, sms / tiles);
}

static size_t plan_bytes(int64_t stages) { return (size_t)stages * sizeof(sat_union_stage); }

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)d;
    sat_rows r = sat_op_rows(p, a);
    return plan_bytes(sat_union_build(&r, NULL, NULL)) + (size_t)(sat_union_groups(&r) + 1) * sizeof(uint32_t);
}

// State: where the groups' first stages are noted, behind the stages.
struct plan {
    const sat_union_stage *stages;
    const uint32_t *first;
};

static void release(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

template <class MATH> struct family {
    static sat_status prepare(const sat_prepare *x, void **state) {
        sat_rows r = sat_op_rows(x->problem, x->pattern);
        int64_t count = sat_union_build(&r, NULL, NULL);
        size_t bytes = plan_bytes(count) + (size_t)(sat_union_groups(&r) + 1) * sizeof(uint32_t);
        sat_union_stage *stages = (sat_union_stage *)malloc(bytes);
        plan *made = (plan *)malloc(sizeof *made);
        sat_status status = sat_mma_allow((const void *)sat_union_matmul<MATH>, SAT_UNION_SHARED, x->variant);
        if (status == SAT_OK && (!stages || !made))
            status = sat_fail(SAT_OUT_OF_MEMORY, "%s: plan of %zu bytes", x->variant->name, bytes);
        if (status == SAT_OK) {
            sat_union_build(&r, stages, (uint32_t *)(stages + count));
            cudaStream_t stream = (cudaStream_t)x->stream;
            cudaError_t e = cudaMemcpyAsync(x->workspace, stages, bytes, cudaMemcpyHostToDevice, stream);
            if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
            if (e != cudaSuccess)
                status = sat_fail(SAT_DEVICE_ERROR, "%s: %s", x->variant->name, cudaGetErrorString(e));
        }
        free(stages);
        if (status != SAT_OK) {
            free(made);
            return status;
        }
        made->stages = (const sat_union_stage *)x->workspace;
        made->first = (const uint32_t *)(made->stages + count);
        *state = made;
        return SAT_OK;
    }

    static sat_status launch(const sat_launch *l) {
        const sat_problem *p = l->problem;
        if (p->m == 0 || p->n == 0) return SAT_OK;
        const plan *made = (const plan *)l->state;
        sat_rows r = sat_op_rows(p, l->pattern);
        sat_union_job job = {};
        job.plan = made->stages, job.first = made->first;
        job.out = sat_mma_out_of(l);
        job.a = (const char *)l->operands[0], job.b = (const char *)l->operands[1];
        job.a_deep = r.col_step == 1, job.b_deep = !sat_mma_wide_b(p);
        job.groups = (unsigned)sat_union_groups(&r);
        job.panels = (unsigned)((p->n + SAT_UNION_COLUMNS - 1) / SAT_UNION_COLUMNS);
        job.tiles = job.groups * job.panels * (unsigned)p->batch;
        job.k = (int)r.k;
        job.a_line = (unsigned)((job.a_deep ? r.row_step : r.col_step) * 2);
        job.b_line = (job.b_deep ? p->b.col_stride : p->b.row_stride) * 2;
        job.b_k = (unsigned)(job.b_deep ? 2 : job.b_line);
        job.b_panel = SAT_UNION_COLUMNS * (job.b_deep ? job.b_line : 2);
        job.a_item = p->a.batch_stride * 2, job.b_item = p->b.batch_stride * 2;
        job.c_item = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
        unsigned grid = (unsigned)sat_min(job.tiles, l->device->threads);
        sat_union_matmul<MATH><<<grid, SAT_UNION_THREADS, SAT_UNION_SHARED, (cudaStream_t)l->stream>>>(job);
        return sat_launched(l);
    }
};

SAT_FAMILY(cuda_matmul_mma_f16_union) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores, 256 rows of small blocks along the union of their columns",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = family<sat_f16_math>::prepare,
    .launch = family<sat_f16_math>::launch,
    .release = release,
};

SAT_FAMILY(cuda_matmul_mma_bf16_union) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "tensor cores, 256 rows of small blocks along the union of their columns",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = family<sat_bf16_math>::prepare,
    .launch = family<sat_bf16_math>::launch,
    .release = release,
};
