// prebr.h: the plan lays out lives without overlap, every way of keeping an input gives the dW it should, pools are exact at every
// resampling, and what did not learn does not change by a bit.
#include "prebr.h"
#include "test.h"

static int lives_meet(const PlanTensor* a, const PlanTensor* b) {
    if (a->last == TICK_ALWAYS || b->last == TICK_ALWAYS) return 1;
    return a->first <= b->last && b->first <= a->last;
}

static void test_plan(void) {
    for (int round = 0; round < 50; round++) {
        Plan p = {0};
        int n = test_int(1, 120);
        void* pointer[256] = {0};
        for (int i = 0; i < n; i++) {
            int first = test_int(0, 40), last = test_int(0, 3) ? first + test_int(0, 12) : TICK_ALWAYS;
            plan_add(&p, REGION_SCRATCH, -1, "t", test_int(1, 50), test_int(1, 30), 4, last == TICK_ALWAYS ? 0 : first, last, &pointer[2 * i], &pointer[2 * i + 1]);
        }
        plan_place(&p);
        size_t most = 0, all = 0;
        for (int i = 0; i < n; i++) {
            const PlanTensor* a = &p.tensor[i];
            all += a->bytes;
            CHECK(a->offset % 64 == 0 && a->offset + a->bytes <= p.bytes, "tensor %d lies outside", i);
            for (int j = 0; j < i; j++) {
                const PlanTensor* b = &p.tensor[j];
                int apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
                CHECK(apart || !lives_meet(a, b), "tensors %d and %d share memory while both live", j, i);
            }
        }
        for (int tick = 0; tick < 60; tick++)
            if (plan_alive_bytes(&p, REGION_COUNT, tick) > most) most = plan_alive_bytes(&p, REGION_COUNT, tick);
        CHECK(p.bytes >= most && p.bytes <= all, "%zu bytes for a peak of %zu", p.bytes, most);
        char* arena = arena_allocate(&p);
        for (int i = 0; i < 2 * n; i++) CHECK(pointer[i] == arena + p.tensor[i / 2].offset, "pointer %d", i);
        device_free(arena, p.bytes);
        plan_free(&p);
    }
}

// A method over `layers` layers of four linears each, allocated; widths as in a small ViT.
typedef struct {
    Method m;
    Params params;
    Plan plan;
    char* arena;
    double* sum;
} Bench;

enum { TOKENS = 5, BATCH = 3, LAYERS = 6, WIDTH = 32 };

static Bench bench_open(MethodOptions o, int at_hand) {
    Bench b = {0};
    b.m.shear.o = o;
    b.m.tokens = b.m.shear.tokens = TOKENS;
    b.m.batch = BATCH;
    b.m.groups = 4;
    b.m.linears = 4 * LAYERS;
    b.m.linear = allocate(4 * LAYERS, sizeof(Linear));
    b.params.capacity = 4 * LAYERS;
    b.params.param = allocate(4 * LAYERS, sizeof(Param));
    for (int i = 0; i < 4 * LAYERS; i++) {
        static const int cout[4] = {3 * WIDTH, WIDTH, 2 * WIDTH, WIDTH}, cin[4] = {WIDTH, WIDTH, WIDTH, 2 * WIDTH};
        Linear* l = &b.m.linear[i];
        l->cin = cin[i % 4];
        l->cout = cout[i % 4];
        l->at_hand = at_hand;
        l->kept_last = 10;
        params_add(&b.params, PARAM_MATRIX, i / 4, "w", l->cout, l->cin)->linear = l;
    }
    params_plan(&b.params, &b.plan, o.preset, OPTIMIZER_ADAMW, 4, 0);
    method_plan(&b.m, &b.plan, 4);
    plan_add(&b.plan, REGION_SCRATCH, -1, "work", (int64_t)method_scratch(&b.m) + (int64_t)squares_scratch(8 * WIDTH * WIDTH), 1, 1, 0, TICK_ALWAYS, &b.m.shear.work, NULL);
    plan_add(&b.plan, REGION_SCRATCH, -1, "threshold", BATCH, 1, 4, 0, TICK_ALWAYS, (void**)&b.m.shear.threshold, NULL);
    plan_add(&b.plan, REGION_SCRATCH, -1, "sum", 2, 1, 8, 0, TICK_ALWAYS, (void**)&b.sum, NULL);
    plan_place(&b.plan);
    b.arena = arena_allocate(&b.plan);
    for (int i = 0; i < 4 * LAYERS; i++) {
        Param* p = &b.params.param[i];
        b.m.linear[i].w = p->w;
        for (int j = 0; j < p->rows * p->cols; j++) p->w[j] = (float)test_random();
    }
    method_start(&b.m);
    return b;
}

static void bench_close(Bench* b) {
    device_free(b->arena, b->plan.bytes);
    plan_free(&b->plan);
    free(b->m.linear);
    free(b->params.param);
}

static MethodOptions options(int preset) {
    MethodOptions o = {.preset = preset, .keep = 0.4, .prune = 0.7, .alpha = 1e-3, .p_min = 1e-3, .column_block = 8, .resample = 2, .seed = 3};
    return o;
}

// dW of one linear, compact or whole, against sums in double over the input that its rule keeps.
static void check_gradient(const Bench* b, const Linear* l, const float* x, const float* dy, int rows) {
    int t = rows * TOKENS, n = TOKENS * l->cin, width = b->m.shear.o.column_block;
    float* pruned = malloc((size_t)t * l->cin * sizeof *pruned);
    memcpy(pruned, x, (size_t)t * l->cin * sizeof *pruned);
    for (int s = 0; l->keep == KEEP_TOPK && s < rows; s++) {   // by counting: kept are those with fewer than capacity larger ones
        int capacity = topk_capacity(n, b->m.shear.o.prune);
        for (int i = 0; i < n; i++) {
            int larger = 0;
            for (int j = 0; j < n; j++) larger += fabsf(x[s * n + j]) > fabsf(x[s * n + i]);
            if (larger >= capacity) pruned[s * n + i] = 0;
        }
    }
    int columns = l->keep == KEEP_COLUMNS ? l->n * width : l->cin;
    for (int o = 0; o < l->cout; o++) {
        for (int k = 0; k < columns; k++) {
            int column = l->keep == KEEP_COLUMNS ? l->blocks[k / width] * width + k % width : k;
            double sum = 0;
            for (int r = 0; r < t; r++) sum += (double)dy[r * l->cout + o] * pruned[r * l->cin + column];
            double got = l->dw[o * columns + k];
            CHECK(fabs(got - sum) < 1e-5 * (1 + fabs(sum)), "dW[%d][%d] is %g, should be %g", o, k, got, sum);
        }
    }
    free(pruned);
}

static void test_keeping(int preset, int rows) {
    Bench hand = bench_open(options(preset), 1), kept = bench_open(options(preset), 0);
    method_begin_step(&hand.m, 0);
    method_begin_step(&kept.m, 0);
    hand.m.shear.storing = kept.m.shear.storing = 1;
    int learned = 0;
    for (int i = 0; i < 4 * LAYERS; i++) {
        Linear *a = &hand.m.linear[i], *b = &kept.m.linear[i];
        if (preset == METHOD_FULL) b->at_hand = 1;   // the caller keeps it whole
        size_t t = (size_t)rows * TOKENS;
        float *x = test_array(t * a->cin), *dy = test_array(t * a->cout), *y = test_array(t * a->cout), *dx = test_array(t * a->cin);
        sheared_forward(&hand.m.shear, a, y, x, NULL, rows);
        sheared_forward(&kept.m.shear, b, y, x, NULL, rows);
        sheared_backward(&hand.m.shear, a, dx, dy, input_there(x), rows);
        sheared_backward(&kept.m.shear, b, dx, dy, input_there(b->at_hand ? x : NULL), rows);
        CHECK(a->keep == b->keep && a->n == b->n, "linear %d is kept differently", i);
        if (linear_learns(a)) {
            int columns = a->keep == KEEP_COLUMNS ? a->n * 8 : a->cin;
            CHECK(!memcmp(a->dw, b->dw, (size_t)a->cout * columns * sizeof(float)), "linear %d: kept and remade inputs differ", i);
            check_gradient(&hand, a, x, dy, rows);
            learned++;
        }
        for (size_t r = 0; r < t; r += 4)
            for (int k = 0; k < a->cin; k += 5) {
                double sum = 0;
                for (int o = 0; o < a->cout; o++) sum += (double)dy[r * a->cout + o] * b->w[o * a->cin + k];
                CHECK(fabs(dx[r * a->cin + k] - sum) < 1e-5 * (1 + fabs(sum)), "dX");
            }
        free(x);
        free(dy);
        free(y);
        free(dx);
    }
    CHECK(preset == METHOD_BITFIT ? learned == 0 : learned > 0, "%d layers learned", learned);
    bench_close(&hand);
    bench_close(&kept);
}

// Inputs that a norm or GELU makes again, whole or in columns: the weights' gradients are those of the inputs themselves, bit for bit.
static void test_remaking(int preset) {
    Bench b = bench_open(options(preset), 1);
    method_begin_step(&b.m, 0);
    b.m.shear.storing = 1;
    for (int i = 0; i < 4 * LAYERS; i++) {
        Linear* l = &b.m.linear[i];
        int t = BATCH * TOKENS, columns = l->keep == KEEP_COLUMNS ? l->n * 8 : l->cin;
        size_t n = (size_t)t * l->cin, weights = (size_t)l->cout * columns;
        if (!linear_learns(l)) continue;
        float *from = test_array(n), *x = malloc(n * 4), *made = malloc(n * 4), *dy = test_array((size_t)t * l->cout), *dx = malloc(n * 4), *dw = malloc(weights * 4);
        float *gamma = test_array(l->cin), *beta = test_array(l->cin), *mean = malloc(t * 4), *rstd = malloc(t * 4);
        for (int norm = 0; norm < 2; norm++) {
            if (norm) layernorm_forward(x, mean, rstd, from, gamma, beta, 1e-6f, t, l->cin);
            else gelu_forward(x, from, n);
            sheared_backward(&b.m.shear, l, dx, dy, input_there(x), BATCH);
            memcpy(dw, l->dw, weights * 4);
            for (size_t k = 0; k < n; k++) made[k] = NAN;
            memset(l->dw, 0xff, weights * 4);
            sheared_backward(&b.m.shear, l, dx, dy, norm ? input_of_norm(made, from, mean, rstd, gamma, beta) : input_of_gelu(made, from), BATCH);
            CHECK(!memcmp(dw, l->dw, weights * 4), "linear %d: the input made again by %s gives another gradient", i, norm ? "its norm" : "GELU");
            CHECK(l->keep != KEEP_COLUMNS || isnan(made[0]), "linear %d: all of the input was made, of which columns were asked", i);
        }
        free(from), free(x), free(made), free(dy), free(dx), free(dw), free(gamma), free(beta), free(mean), free(rstd);
    }
    bench_close(&b);
}

// GELU packs the columns that the layer behind it keeps; the layer itself would pack the same.
static void test_packing(void) {
    MethodOptions o = options(METHOD_PREBRPP);
    o.gelu = GELU_REGELU2;
    Bench b = bench_open(o, 0);
    method_begin_step(&b.m, 0);
    b.m.shear.storing = 1;
    for (int i = 0; i < 4 * LAYERS; i++) {
        Linear* l = &b.m.linear[i];
        size_t t = BATCH * TOKENS, n = t * l->cin, kept = t * l->n * 8;
        float *hidden = test_array(n), *act = malloc(n * 4), *y = malloc(t * l->cout * 4), *packed = malloc(kept * 4 + 4);
        uint8_t* codes = malloc(n / 4 + 1);
        sheared_gelu(&b.m.shear, l, act, codes, hidden, BATCH);
        memcpy(packed, l->kept, kept * 4);
        memset(l->kept, 0xff, kept * 4);
        l->packed_by_gelu = 1;
        sheared_forward(&b.m.shear, l, y, act, NULL, BATCH);
        for (size_t k = 0; k < kept; k++) CHECK(isnan(l->kept[k]), "linear %d packs what GELU has packed", i);
        l->packed_by_gelu = 0;
        sheared_forward(&b.m.shear, l, y, act, NULL, BATCH);
        CHECK(!memcmp(packed, l->kept, kept * 4), "linear %d: GELU packs something else", i);
        free(hidden), free(act), free(y), free(packed), free(codes);
    }
    bench_close(&b);
}

// Over many resamplings: the number of bytes never changes, the mixture of layers does, the pools are not overrun, and each arm's turn comes.
static void test_pools(int preset, int policy) {
    MethodOptions o = options(preset);
    o.policy = policy;
    Bench b = bench_open(o, 0);
    size_t bytes = 0;
    int changed = 0, before[4 * LAYERS] = {0};
    for (int64_t step = 0; step < 60; step++) {
        method_begin_step(&b.m, step);
        size_t now = 0;
        int drawn[4] = {0};
        for (int i = 0; i < 4 * LAYERS; i++) {
            Linear* l = &b.m.linear[i];
            now += linear_kept_bytes(&b.m.shear, l, BATCH, TOKENS);
            drawn[i % 4] += l->n;
            changed += l->n != before[i];
            before[i] = l->n;
        }
        for (int g = 0; g < 4; g++) CHECK(drawn[g] == b.m.group[g].budget, "group %d drew %d of %d", g, drawn[g], b.m.group[g].budget);
        if (step == 0) bytes = now;
        CHECK(now == bytes, "step %d keeps %zu bytes, the first kept %zu", (int)step, now, bytes);
        b.m.shear.storing = 1;
        for (int i = 0; i < 4 * LAYERS; i++) {
            Linear* l = &b.m.linear[i];
            size_t t = BATCH * TOKENS;
            float *x = test_array(t * l->cin), *dy = test_array(t * l->cout), *out = test_array(t * (l->cin > l->cout ? l->cin : l->cout));
            sheared_forward(&b.m.shear, l, out, x, NULL, BATCH);
            sheared_backward(&b.m.shear, l, out, dy, input_there(NULL), BATCH);
            free(x);
            free(dy);
            free(out);
        }
        method_measure(&b.m, step);
    }
    size_t planned = plan_region_bytes(&b.plan, REGION_KEPT);
    CHECK(planned >= bytes && planned < bytes + 64 * 8, "planned %zu, kept %zu", planned, bytes);
    CHECK(changed > 4 * LAYERS, "the mixture of layers never changes (%d)", changed);
    bench_close(&b);
}

// One update under prebr++: columns that were not drawn keep weights and moments to the bit; the others move.
static void test_untouched(void) {
    Bench b = bench_open(options(METHOD_PREBRPP), 1);
    UpdateOptions u = {.optimizer = OPTIMIZER_ADAMW, .lr = 0.1, .head_scale = 1, .bias_scale = 1, .column_scale = 1, .weight_decay = 0.1, .clip = 1};
    method_begin_step(&b.m, 0);
    float* old[4 * LAYERS];
    for (int i = 0; i < 4 * LAYERS; i++) {
        Linear* l = &b.m.linear[i];
        Param* p = &b.params.param[i];
        size_t n = (size_t)p->rows * p->cols;
        old[i] = malloc(n * sizeof(float));
        memcpy(old[i], p->w, n * sizeof(float));
        for (int j = 0; j < l->cout * l->n * 8; j++) l->dw[j] = (float)test_random();
    }
    double squares = 0;
    for (int i = 0; i < 4 * LAYERS; i++)
        for (int j = 0; j < b.m.linear[i].cout * b.m.linear[i].n * 8; j++) squares += (double)b.m.linear[i].dw[j] * b.m.linear[i].dw[j];
    float first = b.m.linear[0].dw[0];
    b.m.linear[0].dw[0] = NAN;
    CHECK(isnan(params_update(&b.m, &b.params, &u, 0, 0.1, b.sum)), "a norm of NaN is lost");
    for (int i = 0; i < 4 * LAYERS; i++) {
        Param* p = &b.params.param[i];
        CHECK(!memcmp(p->w, old[i], (size_t)p->rows * p->cols * sizeof(float)), "a norm that is not finite updates parameter %d", i);
    }
    for (int i = 0; i < b.m.group[0].arms; i++) CHECK(b.m.group[0].updates[i] == 0, "and counts it");
    b.m.linear[0].dw[0] = first;
    double norm = params_update(&b.m, &b.params, &u, 0, 0.1, b.sum);
    CHECK(fabs(norm - sqrt(squares)) < 1e-9 * norm, "norm %g, should be %g", norm, sqrt(squares));
    for (int i = 0; i < 4 * LAYERS; i++) {
        Linear* l = &b.m.linear[i];
        Param* p = &b.params.param[i];
        for (int c = 0; c < p->cols; c++) {
            int drawn = 0;
            for (int j = 0; j < l->n; j++) drawn |= l->blocks[j] == c / 8;
            for (int r = 0; r < p->rows; r++) {
                int k = r * p->cols + c;
                if (!drawn) CHECK(p->w[k] == old[i][k] && p->m[k] == 0 && p->v[k] == 0, "a frozen column moved");
                else CHECK(p->w[k] != old[i][k] && p->m[k] != 0, "a drawn column did not move");
            }
        }
        free(old[i]);
    }
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < b.m.group[g].arms; i++) CHECK(b.m.group[g].updates[i] == b.m.group[g].sampled[i], "updates are counted by arm");
    bench_close(&b);
}

static void test_schedule(void) {
    UpdateOptions u = {.lr = 2, .warmup = 4};
    CHECK(learning_rate(&u, 0, 20) == 0.5 && learning_rate(&u, 3, 20) == 2 && learning_rate(&u, 4, 20) == 2, "warm-up");
    CHECK(fabs(learning_rate(&u, 12, 20) - 1) < 1e-12, "half of a cosine");
    u.schedule = SCHEDULE_LINEAR;
    CHECK(fabs(learning_rate(&u, 8, 20) - 1.5) < 1e-12, "a quarter of a line");
    u.schedule = SCHEDULE_CONSTANT;
    CHECK(learning_rate(&u, 19, 20) == 2, "constant");
}

int main(void) {
    test_plan();
    static const int presets[] = {METHOD_FULL, METHOD_BITFIT, METHOD_BACKRAZOR, METHOD_PREBR, METHOD_PREBRPP};
    for (int i = 0; i < 5; i++)
        for (int rows = 1; rows <= BATCH; rows += 2) test_keeping(presets[i], rows);
    for (int i = 0; i < 5; i++) test_remaking(presets[i]);
    test_packing();
    for (int policy = POLICY_BANDIT; policy <= POLICY_NORM; policy++) {
        test_pools(METHOD_PREBR, policy);
        test_pools(METHOD_PREBRPP, policy);
    }
    test_untouched();
    test_schedule();
    TEST_END();
}
