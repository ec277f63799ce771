// The arena against memory of each tensor's own: same bits, for every preset, GELU, attention and recomputation.
//
// In the arena tensors whose lives do not meet share their place, and backward may find things where forward left them. Here every
// tensor also gets a block of its own of exactly its size, filled with NaN. If both runs end with the same bits, no tensor was
// overwritten while it was still needed, and nothing was read that had not been written; under the address sanitizer, no op has
// touched a byte outside its tensors.
#include <assert.h>

#define main train_vit_main
#include "../train_vit.cu"
#undef main
#include "test.h"

enum { RECORDS = 23, CLASSES = 5, STEPS = 5 };

typedef struct {
    const char* name;
    int class_token, mean_pool, norm_before_pool, qkv_bias, raw_channels;
} Variant;

static VitConfig config_of(const Variant* variant) {
    VitConfig c;
    memset(&c, 0, sizeof c);
    c.layers = 3;
    c.width = 24;
    c.heads = 3;
    c.mlp = 40;
    c.patch = 5;
    c.image_size = 15;
    c.channels = 3;
    c.classes = CLASSES;
    c.class_token = variant->class_token;
    c.mean_pool = variant->mean_pool;
    c.norm_before_pool = variant->norm_before_pool;
    c.qkv_bias = variant->qkv_bias;
    c.norm_eps = 1e-6f;
    for (int i = 0; i < 3; i++) c.mean[i] = c.std[i] = 0.5f;
    c.bicubic = 1;
    return c;
}

// Every tensor of the plan in its own block, to be freed by the caller. What must be zero at the start is, the rest is NaN (or -1).
static void** allocate_apart(const Plan* p) {
    void** block = allocate((size_t)p->count, sizeof *block);
    for (int i = 0; i < p->count; i++) {
        const PlanTensor* t = &p->tensor[i];
        size_t bytes = (size_t)t->rows * (size_t)t->cols * (size_t)t->item;
        if (posix_memalign(&block[i], 64, bytes)) trouble("out of memory");
        memset(block[i], t->region == REGION_PARAMETERS || t->region == REGION_OPTIMIZER ? 0 : 0xff, bytes);
        for (int k = 0; k < 2; k++)
            if (t->pointer[k]) *t->pointer[k] = block[i];
    }
    return block;
}

// Random numbers in every parameter, the same in every call: a head of zeros would pass no gradient on.
static void fill_parameters(Vit* v) {
    uint64_t before = test_state;
    test_state = 4711;
    for (int i = 0; i < v->params.count; i++) {
        Param* p = &v->params.param[i];
        for (int j = 0; j < p->rows * p->cols; j++) p->w[j] = (float)((p->kind == PARAM_NORM) + 0.2 * test_random());
    }
    test_state = before;
}

// Weights, moments and arms after the last step, losses and gradient norms of all of them, logits of an evaluation. A fresh block.
static uint8_t* train(const VitOptions* o, const VitConfig* c, const Split* split, int raw_channels, int apart, size_t* bytes) {
    Vit v = vit_create(o, c, raw_channels, 11, 13, 1);
    vit_plan(&v);
    void** block = NULL;
    if (apart) {
        block = allocate_apart(&v.plan);
        vit_connect(&v);
    } else {
        vit_allocate(&v);
    }
    fill_parameters(&v);

    int most = 3 * v.params.count + 16;
    StateEntry* e = allocate((size_t)most, sizeof *e);
    int count = state_entries(&v.method, &v.params, e, most);
    double seen[3 * STEPS];
    *bytes = sizeof seen;
    for (int i = 0; i < count; i++) *bytes += (size_t)e[i].n * dtype_bytes(e[i].dtype);
    uint8_t *result = allocate(*bytes, 1), *to = result;

    Loader* loader = loader_open(split, raw_channels, 11, 13, o->batch, 1, 1, 0);
    for (int step = 0; step < STEPS; step++) {
        StepResult r = vit_step(&v, loader, RECORDS / o->batch, step, STEPS);
        seen[3 * step] = r.loss;
        seen[3 * step + 1] = r.norm;
        seen[3 * step + 2] = vit_evaluate(&v, split, 1, NULL, NULL);   // between steps, as in a run
        CHECK(isfinite(r.loss) && isfinite(r.norm) && r.norm > 0, "step %d: loss %g, norm %g, %s", step, r.loss, r.norm, apart ? "apart" : "arena");
    }
    loader_close(loader);
    memcpy(to, seen, sizeof seen);
    to += sizeof seen;
    for (int i = 0; i < count; i++) {
        size_t n = (size_t)e[i].n * dtype_bytes(e[i].dtype);
        memcpy(to, e[i].device, n);
        to += n;
    }
    for (int i = 0; apart && i < v.plan.count; i++) free(block[i]);
    free(block);
    free(e);
    vit_free(&v);
    return result;
}

int main(void) {
    omp_set_num_threads(1);
    uint8_t raw[RECORDS * 3 * 11 * 13];
    const uint8_t* image[RECORDS];
    int32_t label[RECORDS];
    for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < RECORDS; i++) {
        image[i] = raw + i * 3 * 11 * 13;
        label[i] = i % CLASSES;
    }
    Split split = {RECORDS, image, label};

    static const Variant variants[] = {{"class token", 1, 0, 1, 1, 3}, {"mean of tokens", 1, 1, 1, 1, 1},
                                       {"no class token, norm after the mean", 0, 1, 0, 1, 3}, {"no bias of q, k, v", 1, 0, 1, 0, 1}};
    int runs = 0;
    for (int preset = METHOD_FULL; preset <= METHOD_PREBRPP; preset++)
        for (int policy = POLICY_BANDIT; policy <= (preset_samples(preset) ? POLICY_NORM : POLICY_BANDIT); policy++)
            for (int gelu = GELU_EXACT; gelu <= GELU_REGELU2; gelu++)
                for (int attention = ATTENTION_FLASH; attention <= ATTENTION_MATERIALIZED; attention++) {
                    const Variant* variant = &variants[runs % 4];
                    VitConfig c = config_of(variant);
                    VitOptions o = vit_defaults();
                    o.batch = 3;
                    o.accumulate = 1 + runs % 2;
                    o.update.lr = 0.01;
                    o.update.optimizer = runs % 3 == 2 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
                    o.method.preset = preset;
                    o.method.policy = policy;
                    o.method.gelu = gelu;
                    o.method.attention = attention;
                    o.method.column_block = 8;
                    o.method.resample = 2;
                    o.method.importance_weight = runs % 5 == 4;
                    o.method.detach_frozen = runs % 7 == 6;
                    runs++;
                    uint8_t* first = NULL;
                    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++) {
                        if (recompute && preset == METHOD_BACKRAZOR && attention == ATTENTION_MATERIALIZED) continue;
                        o.method.recompute = recompute;
                        size_t bytes, bytes_apart;
                        uint8_t* together = train(&o, &c, &split, variant->raw_channels, 0, &bytes);
                        uint8_t* apart = train(&o, &c, &split, variant->raw_channels, 1, &bytes_apart);
                        CHECK(bytes == bytes_apart && memcmp(together, apart, bytes) == 0,
                              "bits differ: preset %d policy %d gelu %d attention %d recompute %d, %s", preset, policy, gelu, attention, recompute, variant->name);
                        if (first) CHECK(memcmp(first, together, bytes) == 0, "recompute %d changes bits: preset %d policy %d gelu %d attention %d, %s",
                                         recompute, preset, policy, gelu, attention, variant->name);
                        free(apart);
                        if (first) free(together);
                        else first = together;
                    }
                    free(first);
                }
    printf("%d settings, each with every kind of recomputation\n", runs);
    TEST_END();
}
