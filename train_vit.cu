// train_vit: fine-tunes a pretrained Vision Transformer (Dosovitskiy et al., 2021) with sheared backpropagation.
//
// The whole model in one file, top to bottom: options, parameters, activations and their plan, forward, backward, one step,
// evaluation, saving and resuming, main. How much is kept for backward and what learns is decided in prebr.h.
#include <unistd.h>

#include "data/loader.h"
#include "data/options.h"
#include "data/photo.h"
#include "data/vit_files.h"
#include "kernels/attention.h"
#include "kernels/embed.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/image.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/philox.h"
#include "prebr.h"

#define VERSION "train_vit 0.1 (prebr)"

// ---------------------------------------------------------------------------------------------------------------------
// Options

enum { AUGMENT_NONE, AUGMENT_FLIP, AUGMENT_CROP };

typedef struct {
    const char *model, *data, *out, *resume, *predict, *classes, *budget, *logits;
    int batch, accumulate, epochs, threads, log_every;
    int64_t steps, eval_every, save_every;
    int eval, plan, precision, overwrite, from_scratch;
    int image_size, augment;
    double crop_scale;
    MethodOptions method;
    UpdateOptions update;
} VitOptions;

static VitOptions vit_defaults(void) {
    VitOptions o;
    memset(&o, 0, sizeof o);
    o.batch = 32;
    o.accumulate = 1;
    o.epochs = 3;
    o.log_every = 10;
    o.augment = AUGMENT_CROP;
    o.crop_scale = 0.5;
    o.method = method_defaults();
    o.update = update_defaults();
    o.precision = precision_built();
    return o;
}

enum { OPTION_ROWS = 64 };

// The table that parsing, --help, options.txt and --resume share. The last number but one says whether changing the option changes the run.
static void vit_options(Option* table, VitOptions* o) {
    MethodOptions* m = &o->method;
    UpdateOptions* u = &o->update;
    Option rows[] = {
        {OPTION_GROUP, "What to do", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_PATH, "model", 'm', &o->model, "DIR", "checkpoint: config.json + model.safetensors, Hugging Face or timm", 0, 0, 1, 0},
        {OPTION_PATH, "data", 'd', &o->data, "PATH", "CIFAR-10/100 or (Fashion-)MNIST directory, or an image pack", 0, 0, 1, 0},
        {OPTION_TEXT, "out", 'o', &o->out, "DIR", "run directory: log.csv, model/, state/ (without it nothing is written)", 0, 0, 0, 0},
        {OPTION_TEXT, "resume", 0, &o->resume, "DIR", "go on with the run in DIR, bit for bit as if it had never stopped", 0, 0, 0, 0},
        {OPTION_FLAG, "eval", 0, &o->eval, NULL, "only evaluate the model on the test split", 0, 0, 0, 0},
        {OPTION_TEXT, "logits", 0, &o->logits, "FILE", "with --eval: write the logits as raw float32 [images, classes]", 0, 0, 0, 0},
        {OPTION_TEXT, "predict", 0, &o->predict, "PHOTO", "only classify one photo", 0, 0, 0, 0},
        {OPTION_FLAG, "plan", 0, &o->plan, NULL, "only print what the run will need, next to `full`; needs no data", 0, 0, 0, 0},
        {OPTION_CHOICE, "precision", 0, &o->precision, PRECISION_CHOICES, "of activations; another than this program's own with --plan only", 0, 0, 0, 0},
        {OPTION_TEXT, "budget", 0, &o->budget, "SIZE", "choose what is kept or recomputed so that the arena fits, e.g. 6G", 0, 0, 1, 0},
        {OPTION_FLAG, "from-scratch", 0, &o->from_scratch, NULL, "random weights for the config in --model", 0, 0, 1, 0},
        {OPTION_FLAG, "overwrite", 0, &o->overwrite, NULL, "replace an earlier run in --out", 0, 0, 0, 0},
        {OPTION_GROUP, "Training", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_INT, "batch", 'b', &o->batch, "N", "images at once", 1, 65536, 1, 0},
        {OPTION_INT, "accumulate", 0, &o->accumulate, "N", "batches whose gradients make one step", 1, 65536, 1, 0},
        {OPTION_INT, "epochs", 0, &o->epochs, "N", "passes over the training split", 0, 1000000, 1, 0},
        {OPTION_LONG, "steps", 0, &o->steps, "N", "stop after N steps instead (0: epochs decide)", 0, 1e15, 1, 0},
        UPDATE_OPTIONS(u),
        {OPTION_LONG, "seed", 0, &m->seed, "N", "of order, crops and sampling", 0, 9e15, 1, 0},
        {OPTION_INT, "threads", 0, &o->threads, "N", "compute threads (0: all cores)", 0, 4096, 0, 0},
        {OPTION_LONG, "eval-every", 0, &o->eval_every, "N", "steps between evaluations (0: once an epoch, -1: never)", -1, 1e15, 0, 0},
        {OPTION_LONG, "save-every", 0, &o->save_every, "N", "steps between saves (0: once an epoch)", 0, 1e15, 0, 0},
        {OPTION_INT, "log-every", 0, &o->log_every, "N", "in a pipe: steps between progress lines", 1, 1e9, 0, 0},
        METHOD_OPTIONS(m),
        {OPTION_GROUP, "Images", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_TEXT, "classes", 0, &o->classes, "LIST", "only these classes, renumbered, e.g. 0-4,7", 0, 0, 1, 0},
        {OPTION_INT, "image-size", 0, &o->image_size, "N", "pixels (0: the checkpoint's own)", 0, 4096, 1, 0},
        {OPTION_CHOICE, "augment", 0, &o->augment, "none|flip|crop", "of training images; crop: random resized crop and flip", 0, 0, 1, 0},
        {OPTION_FLOAT, "crop-scale", 0, &o->crop_scale, "X", "least share of the area that a crop shows", 0.01, 1, 1, 0},
        {OPTION_END, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0},
    };
    static_assert(sizeof rows / sizeof *rows <= OPTION_ROWS, "OPTION_ROWS is too small");
    memcpy(table, rows, sizeof rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// The model: parameters and activations; those of a layer are in prebr.h, 6

typedef struct {
    VitOptions o;
    VitConfig config;
    int tokens, grid;        // of a sample, class token included; patches along a side
    int raw_channels, raw_height, raw_width;
    int learning;            // 0: forward only
    int deep;                // gradients flow below the head
    Params params;
    Param *patch_w, *patch_b, *cls, *position, *norm_w, *norm_b, *head_w, *head_b;
    Layer* layer;
    Method method;
    Plan plan;
    char* arena;

    // Input and head; T = batch * tokens
    uint8_t* raw;            // [B, channels, height, width] as stored
    Batch next;              // the batch to come, where it was asked for ahead of its step (else its count is 0);
    const uint8_t* ahead;    // and its images, while they are in `raw` or on their way (else NULL)
    Crop* crops;             // [B]
    int *labels, *correct;   // [B]
    float* losses;           // [B]
    floatx *images;          // [B, 3, size, size]
    floatx *patches, *patches_again;   // [B*n, 3*patch*patch]
    floatx *embedded, *dembedded;      // [B*n, C]
    floatx *last;            // [T, C] the last layer's output
    floatx *pooled, *normed; // what the head reads, before and after the final norm (or the other way round)
    float *norm_mean, *norm_rstd;
    floatx *logits, *dlogits, *dnormed, *dpooled;
    floatx *dx;              // [T, C] gradient of the residual stream
    double* norm;            // [2] of all gradients: the sum of squares, and what clipping makes of it
    void* work;              // scratch of the kernels
    void* gemm_workspace;    // where products want one, else NULL
} Vit;

// All parameters in the order of the model. Linear layers come layer by layer: qkv, proj, fc1, fc2.
static void vit_parameters(Vit* v) {
    const VitConfig* c = &v->config;
    Params* p = &v->params;
    int L = c->layers, C = c->width, n = v->grid * v->grid;
    p->capacity = 8 + 12 * L;
    p->param = (Param*)allocate((size_t)p->capacity, sizeof(Param));
    v->layer = (Layer*)allocate((size_t)L, sizeof(Layer));
    v->method.groups = 4;
    v->method.linears = 4 * L;
    v->method.linear = (Linear*)allocate((size_t)(4 * L), sizeof(Linear));

    v->patch_w = params_add(p, PARAM_PATCH, -1, "patch.weight", C, c->channels * c->patch * c->patch);
    v->patch_b = params_add(p, PARAM_BIAS, -1, "patch.bias", C, 1);
    v->cls = c->class_token ? params_add(p, PARAM_EMBEDDING, -1, "class token", C, 1) : NULL;
    v->position = params_add(p, PARAM_EMBEDDING, -1, "position embedding", c->class_token + n, C);
    for (int i = 0; i < L; i++) {
        Layer* l = &v->layer[i];
        l->number = i;
        l->norm1_w = params_add(p, PARAM_NORM, i, "norm1.weight", C, 1);
        l->norm1_b = params_add(p, PARAM_BIAS, i, "norm1.bias", C, 1);
        l->qkv_w = params_add(p, PARAM_MATRIX, i, "qkv.weight", 3 * C, C);
        l->qkv_b = c->qkv_bias ? params_add(p, PARAM_BIAS, i, "qkv.bias", 3 * C, 1) : NULL;
        l->proj_w = params_add(p, PARAM_MATRIX, i, "proj.weight", C, C);
        l->proj_b = params_add(p, PARAM_BIAS, i, "proj.bias", C, 1);
        l->norm2_w = params_add(p, PARAM_NORM, i, "norm2.weight", C, 1);
        l->norm2_b = params_add(p, PARAM_BIAS, i, "norm2.bias", C, 1);
        l->fc1_w = params_add(p, PARAM_MATRIX, i, "fc1.weight", c->mlp, C);
        l->fc1_b = params_add(p, PARAM_BIAS, i, "fc1.bias", c->mlp, 1);
        l->fc2_w = params_add(p, PARAM_MATRIX, i, "fc2.weight", C, c->mlp);
        l->fc2_b = params_add(p, PARAM_BIAS, i, "fc2.bias", C, 1);
        layer_linears(l, &v->method.linear[4 * i]);
    }
    v->norm_w = params_add(p, PARAM_NORM, -1, "norm.weight", C, 1);
    v->norm_b = params_add(p, PARAM_BIAS, -1, "norm.bias", C, 1);
    v->head_w = params_add(p, PARAM_HEAD, -1, "head.weight", c->classes, C);
    v->head_b = params_add(p, PARAM_HEAD_BIAS, -1, "head.bias", c->classes, 1);
}

// The final norm reads all tokens only when their mean is taken after it; else it reads the pooled ones.
static int vit_norm_first(const Vit* v) { return v->config.mean_pool && v->config.norm_before_pool; }

// ---------------------------------------------------------------------------------------------------------------------
// The plan: every tensor with its life. Those of the layers, and the ticks that lives are counted in, are in prebr.h, 6.

static int floatx_bytes(const Vit* v) { return precision_bytes(v->o.precision); }

// Scratch of the kernels: the most that one of them asks for.
static size_t vit_scratch(const Vit* v) {
    const VitConfig* c = &v->config;
    int B = v->o.batch, T = B * v->tokens;
    size_t most = method_scratch(&v->method);
    size_t need[] = {squares_scratch(params_largest(&v->params)), layernorm_scratch(T, c->width), linear_bias_scratch(B, c->classes), linear_bias_scratch(T, c->width),
                     attention_scratch(v->o.method.attention, B, v->tokens, c->heads, c->width),
                     image_scratch(B, v->raw_height, v->raw_width, c->image_size)};
    for (size_t k = 0; k < sizeof need / sizeof *need; k++)
        if (need[k] > most) most = need[k];
    return most;
}

static void vit_plan(Vit* v) {
    const VitConfig* c = &v->config;
    Plan* p = &v->plan;
    int64_t B = v->o.batch, T = B * v->tokens, C = c->width, n = v->grid * v->grid, P = c->channels * c->patch * c->patch;
    int head = tick_head(c->layers), end = tick_end(c->layers), fx = floatx_bytes(v), back = v->deep ? end : -1;
    v->method.shear.o = v->o.method;
    v->method.tokens = v->method.shear.tokens = v->tokens;
    v->method.batch = v->o.batch;
    params_plan(&v->params, p, v->o.method.preset, v->o.update.optimizer, fx, !v->learning);
    plan_add(p, REGION_SCRATCH, -1, "stored images", B * v->raw_channels, (int64_t)v->raw_height * v->raw_width, 1, 0, v->learning && device_uploads_ahead() ? end : 0,
             (void**)&v->raw, NULL);
    plan_add(p, REGION_SCRATCH, -1, "crops", B, sizeof(Crop), 1, 0, 0, (void**)&v->crops, NULL);
    plan_activation(p, v->deep, -1, "images", B * 3, (int64_t)c->image_size * c->image_size, fx, 0, 0, -1, end, (void**)&v->images, NULL);
    plan_activation(p, 0, -1, "patches", B * n, P, fx, 0, 0, back, back, (void**)&v->patches, (void**)&v->patches_again);
    plan_add(p, REGION_SCRATCH, -1, "embedded patches", B * n, C, fx, 0, 0, (void**)&v->embedded, NULL);
    LayerShape shape = {c->layers, v->o.batch, v->tokens, c->width, c->heads, c->mlp, fx, v->deep, 0, 0, 0};
    for (int i = 0; i < c->layers; i++) layer_plan(p, &v->layer[i], &v->o.method, &shape);
    if (v->learning) method_plan(&v->method, p, fx);
    plan_add(p, REGION_SCRATCH, -1, "last layer's output", T, C, fx, forward_tick(c->layers - 1, OP_FC2), head, (void**)&v->last, NULL);
    int64_t pooled = vit_norm_first(v) ? T : B;
    plan_add(p, REGION_SCRATCH, -1, "labels", B, 1, 4, 0, head, (void**)&v->labels, NULL);
    plan_add(p, REGION_SCRATCH, -1, "correct", B, 1, 4, head, head, (void**)&v->correct, NULL);
    plan_add(p, REGION_SCRATCH, -1, "losses", B, 1, 4, head, head, (void**)&v->losses, NULL);
    plan_add(p, REGION_SCRATCH, -1, "pooled", B, C, fx, head, head, (void**)&v->pooled, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm", pooled, C, fx, head, head, (void**)&v->normed, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm mean", pooled, 1, 4, head, head, (void**)&v->norm_mean, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm 1/sigma", pooled, 1, 4, head, head, (void**)&v->norm_rstd, NULL);
    plan_add(p, REGION_SCRATCH, -1, "logits", B, c->classes, fx, head, head, (void**)&v->logits, NULL);
    if (v->learning) {
        plan_add(p, REGION_SCRATCH, -1, "logits gradient", B, c->classes, fx, head, head, (void**)&v->dlogits, NULL);
        plan_add(p, REGION_SCRATCH, -1, "final norm gradient", pooled, C, fx, head, head, (void**)&v->dnormed, NULL);
        plan_add(p, REGION_SCRATCH, -1, "pooled gradient", B, C, fx, head, head, (void**)&v->dpooled, NULL);
        plan_add(p, REGION_SCRATCH, -1, "gradient norm", 2, 1, 8, 0, TICK_ALWAYS, (void**)&v->norm, NULL);
    }
    if (v->deep) {
        plan_add(p, REGION_SCRATCH, -1, "gradient of the residual stream", T, C, fx, head, end, (void**)&v->dx, NULL);
        plan_add(p, REGION_SCRATCH, -1, "embedded patches gradient", B * n, C, fx, end, end, (void**)&v->dembedded, NULL);
    }
    plan_add(p, REGION_SCRATCH, -1, "kernels' scratch", (int64_t)vit_scratch(v), 1, 1, 0, TICK_ALWAYS, (void**)&v->work, NULL);
    if (gemm_workspace_bytes())
        plan_add(p, REGION_SCRATCH, -1, "GEMM workspace", (int64_t)gemm_workspace_bytes(), 1, 1, 0, TICK_ALWAYS, (void**)&v->gemm_workspace, NULL);
    plan_place(p);
}

// A model that is planned but not allocated. learning = 0: for evaluation only.
static Vit vit_create(const VitOptions* o, const VitConfig* c, int channels, int height, int width, int learning) {
    Vit v;
    memset(&v, 0, sizeof v);
    v.o = *o;
    v.config = *c;
    v.grid = c->image_size / c->patch;
    v.tokens = c->class_token + v.grid * v.grid;
    v.raw_channels = channels;
    v.raw_height = height;
    v.raw_width = width;
    v.learning = learning;
    v.deep = learning && preset_goes_deep(o->method.preset);
    vit_parameters(&v);
    return v;
}

static void vit_free(Vit* v) {
    if (v->arena) {
        gemm_use_workspace(NULL);
        device_free(v->arena, v->plan.bytes);
    }
    plan_free(&v->plan);
    free(v->params.param);
    free(v->layer);
    free(v->method.linear);
}

// Lets the linear layers know where their parameters lie, once these lie somewhere.
static void vit_connect(Vit* v) {
    v->method.shear.work = v->work;
    gemm_use_workspace(v->gemm_workspace);
    params_connect(&v->params);
    for (int i = 0; i < v->config.layers; i++) layer_connect(&v->layer[i]);
    if (!v->learning) return;
    method_start(&v->method);
}

static void vit_allocate(Vit* v) {
    v->arena = arena_allocate(&v->plan);
    vit_connect(v);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// One block: out [b*tokens, C] from a->x; every other tensor of `a` is written on the way. out NULL: only what backward needs.
static void block_forward(Vit* v, Layer* l, Acts* a, floatx* out, int b) {
    const VitConfig* c = &v->config;
    const Shear* s = &v->method.shear;
    int T = b * v->tokens, C = c->width;
    timer_start(TIME_NORM);
    layernorm_forward(a->n1, a->mean1, a->rstd1, a->x, l->norm1_w->w, l->norm1_b->w, c->norm_eps, T, C);
    sheared_forward(s, l->qkv, a->qkv, a->n1, NULL, b);
    layer_attention(s, l, a, NULL, no_dropout, b, c->heads, C);
    sheared_forward(s, l->proj, a->mid, a->o, a->x, b);
    timer_start(TIME_NORM);
    layernorm_forward(a->n2, a->mean2, a->rstd2, a->mid, l->norm2_w->w, l->norm2_b->w, c->norm_eps, T, C);
    sheared_forward(s, l->fc1, a->hidden, a->n2, NULL, b);
    sheared_gelu(s, l->fc2, a->act, a->codes, a->hidden, b);
    if (out) sheared_forward(s, l->fc2, out, a->act, a->mid, b);
}

static size_t raw_bytes(const Vit* v, int b) { return (size_t)b * (size_t)(v->raw_channels * v->raw_height * v->raw_width); }

// From stored images to logits. raw [b, channels, height, width], labels [b] (NULL: unknown) and crops [b] are host memory.
static void vit_forward(Vit* v, const uint8_t* raw, const int32_t* labels, const Crop* crops, int b) {
    const VitConfig* c = &v->config;
    int C = c->width, n = v->grid * v->grid, T = b * v->tokens, P = c->channels * c->patch * c->patch;
    timer_start(TIME_DATA);
    device_upload_join();
    if (raw != v->ahead) device_upload(v->raw, raw, raw_bytes(v, b));
    v->ahead = NULL;
    device_upload(v->crops, crops, (size_t)b * sizeof *crops);
    if (labels) device_upload(v->labels, labels, (size_t)b * sizeof *labels);
    images_prepare(v->images, v->raw, v->crops, c->mean, c->std, c->bicubic ? INTERPOLATE_BICUBIC : INTERPOLATE_BILINEAR, b, v->raw_channels,
                   v->raw_height, v->raw_width, c->image_size, v->work);
    device_input_read();
    patches_gather(v->patches, v->images, b, c->channels, c->image_size, c->patch);
    timer_start(TIME_GEMM);
    linear_forward(v->embedded, v->patches, v->patch_w->copy, v->patch_b->copy, NULL, b * n, P, C);
    timer_start(TIME_OTHER);
    tokens_forward(v->layer[0].in.x, v->embedded, v->cls ? v->cls->w : NULL, v->position->w, b, n, c->class_token, C);
    for (int i = 0; i < c->layers; i++)
        block_forward(v, &v->layer[i], &v->layer[i].in, i + 1 < c->layers ? v->layer[i + 1].in.x : v->last, b);
    timer_start(TIME_NORM);
    const floatx* features = v->normed;
    if (vit_norm_first(v)) {
        layernorm_forward(v->normed, v->norm_mean, v->norm_rstd, v->last, v->norm_w->w, v->norm_b->w, c->norm_eps, T, C);
        pool_forward(v->pooled, v->normed, c->mean_pool, c->class_token, b, v->tokens, C);
        features = v->pooled;
    } else {
        pool_forward(v->pooled, v->last, c->mean_pool, c->class_token, b, v->tokens, C);
        layernorm_forward(v->normed, v->norm_mean, v->norm_rstd, v->pooled, v->norm_w->w, v->norm_b->w, c->norm_eps, b, C);
    }
    timer_start(TIME_GEMM);
    linear_forward(v->logits, features, v->head_w->copy, v->head_b->copy, NULL, b, C, c->classes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// Makes again what forward did not keep of a block, or of its attention.
static void block_remake(Vit* v, Layer* l, int b) {
    Acts* a = &l->again;
    Shear* s = &v->method.shear;
    s->storing = 0;
    if (v->o.method.recompute == RECOMPUTE_BLOCK) block_forward(v, l, a, NULL, b);
    if (v->o.method.recompute == RECOMPUTE_ATTENTION) {
        timer_start(TIME_NORM);
        layernorm_remake(a->n1, a->x, a->mean1, a->rstd1, l->norm1_w->w, l->norm1_b->w, b * v->tokens, v->config.width);
        sheared_forward(s, l->qkv, a->qkv, a->n1, NULL, b);
        layer_attention(s, l, a, NULL, no_dropout, b, v->config.heads, v->config.width);
    }
    s->storing = 1;
}

// v->dx [b*tokens, C]: on entry the gradient of the block's output, on return that of its input.
static void block_backward(Vit* v, Layer* l, int b) {
    const VitConfig* c = &v->config;
    const MethodOptions* o = &v->o.method;
    const Shear* s = &v->method.shear;
    const Acts* a = &l->again;
    int T = b * v->tokens, C = c->width, again = o->recompute == RECOMPUTE_BLOCK;
    size_t hidden = (size_t)T * (size_t)c->mlp;
    float beta = s->micro > 0;

    if (again) block_remake(v, l, b);
    sheared_backward(s, l->fc2, l->dact, v->dx, again || o->gelu == GELU_REGELU2 ? input_there(a->act) : input_of_gelu(a->act, a->hidden), b);
    sheared_gelu_backward(s, l->dact, a->codes, a->hidden, hidden);
    Input n2 = again ? input_there(a->n2) : input_of_norm(a->n2, a->mid, a->mean2, a->rstd2, l->norm2_w->w, l->norm2_b->w);
    sheared_backward(s, l->fc1, l->dn2, l->dact, n2, b);
    timer_start(TIME_NORM);
    layernorm_backward(v->dx, l->norm2_w->g, l->norm2_b->g, l->dn2, a->mid, a->mean2, a->rstd2, l->norm2_w->w, 1, beta, T, C, v->work);

    if (o->recompute == RECOMPUTE_ATTENTION) block_remake(v, l, b);
    sheared_backward(s, l->proj, l->d_o, v->dx, input_there(a->o), b);
    if (o->detach_frozen && l->qkv->arms && !linear_learns(l->qkv)) {
        if (!beta) {
            Param* idle[3] = {l->qkv_b, l->norm1_w, l->norm1_b};
            for (int k = 0; k < 3; k++)
                if (idle[k]) device_zero(idle[k]->g, (size_t)idle[k]->rows * sizeof(float));
        }
        return;
    }
    layer_attention_backward(s, l, NULL, no_dropout, b, c->heads, C);
    Input n1 = o->recompute != RECOMPUTE_NONE ? input_there(a->n1) : input_of_norm(a->n1, a->x, a->mean1, a->rstd1, l->norm1_w->w, l->norm1_b->w);
    sheared_backward(s, l->qkv, l->dn1, l->dqkv, n1, b);
    timer_start(TIME_NORM);
    layernorm_backward(v->dx, l->norm1_w->g, l->norm1_b->g, l->dn1, a->x, a->mean1, a->rstd1, l->norm1_w->w, 1, beta, T, C, v->work);
}

// From dlogits to the gradient of everything that learns.
static void vit_backward(Vit* v, int b) {
    const VitConfig* c = &v->config;
    Shear* s = &v->method.shear;
    int C = c->width, n = v->grid * v->grid, T = b * v->tokens, P = c->channels * c->patch * c->patch, norm_first = vit_norm_first(v);
    float beta = s->micro > 0;
    timer_start(TIME_GEMM);
    linear_backward_weight(v->head_w->g, v->dlogits, norm_first ? v->pooled : v->normed, beta, b, C, c->classes);
    linear_backward_bias(v->head_b->g, v->dlogits, beta, b, c->classes, v->work);
    if (!v->deep) return;
    if (norm_first) {
        linear_backward_input(v->dpooled, v->dlogits, v->head_w->copy, 0, b, C, c->classes);
        timer_start(TIME_NORM);
        pool_backward(v->dnormed, v->dpooled, c->mean_pool, c->class_token, b, v->tokens, C);
        layernorm_backward(v->dx, v->norm_w->g, v->norm_b->g, v->dnormed, v->last, v->norm_mean, v->norm_rstd, v->norm_w->w, 0, beta, T, C, v->work);
    } else {
        linear_backward_input(v->dnormed, v->dlogits, v->head_w->copy, 0, b, C, c->classes);
        timer_start(TIME_NORM);
        layernorm_backward(v->dpooled, v->norm_w->g, v->norm_b->g, v->dnormed, v->pooled, v->norm_mean, v->norm_rstd, v->norm_w->w, 0, beta, b, C, v->work);
        pool_backward(v->dx, v->dpooled, c->mean_pool, c->class_token, b, v->tokens, C);
    }
    for (int i = c->layers - 1; i >= 0; i--) block_backward(v, &v->layer[i], b);
    timer_start(TIME_OTHER);
    tokens_backward(v->dembedded, v->cls ? v->cls->g : NULL, v->position->g, v->dx, beta, b, n, c->class_token, C);
    linear_backward_bias(v->patch_b->g, v->dembedded, beta, b * n, C, v->work);
    if (!v->patch_w->g) return;
    patches_gather(v->patches_again, v->images, b, c->channels, c->image_size, c->patch);
    timer_start(TIME_GEMM);
    linear_backward_weight(v->patch_w->g, v->dembedded, v->patches_again, beta, b * n, P, C);
}

// ---------------------------------------------------------------------------------------------------------------------
// Images on their way in

// The largest centred square: what evaluation looks at.
static Crop crop_centre(const Vit* v) {
    int side = v->raw_width < v->raw_height ? v->raw_width : v->raw_height;
    Crop c = {(float)((v->raw_width - side) / 2), (float)((v->raw_height - side) / 2), (float)side, (float)side, 0};
    return c;
}

static int clamp_int(double x, int most) { return x < 1 ? 1 : x > most ? most : (int)x; }

// Random resized crop and flip of record `index` in an epoch; a pure function of its arguments and the seed.
static Crop crop_random(const Vit* v, uint32_t epoch, int32_t index) {
    const VitOptions* o = &v->o;
    Crop c = crop_centre(v);
    if (o->augment == AUGMENT_NONE) return c;
    Philox r = philox((uint64_t)o->method.seed, STREAM_AUGMENT, epoch, 2 * (uint64_t)index);
    Philox f = philox((uint64_t)o->method.seed, STREAM_AUGMENT, epoch, 2 * (uint64_t)index + 1);
    c.flip = (int)(f.v[0] >> 31);
    if (o->augment == AUGMENT_FLIP) return c;
    double area = (double)v->raw_height * v->raw_width * (o->crop_scale + (1 - o->crop_scale) * philox_uniform(r.v[0]));
    double aspect = exp(log(3.0 / 4) + (log(4.0 / 3) - log(3.0 / 4)) * philox_uniform(r.v[1]));
    int w = clamp_int(floor(sqrt(area * aspect) + 0.5), v->raw_width), h = clamp_int(floor(sqrt(area / aspect) + 0.5), v->raw_height);
    c.x = (float)philox_below(r.v[2], (uint32_t)(v->raw_width - w + 1));
    c.y = (float)philox_below(r.v[3], (uint32_t)(v->raw_height - h + 1));
    c.width = (float)w;
    c.height = (float)h;
    return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// One step, and an evaluation

// The next batch to learn from. On a GPU it was asked for while the batch before it was computed, and its images sent on their way.
static Batch next_batch(Vit* v, Loader* loader) {
    Batch batch = v->next.count ? v->next : loader_next(loader);
    v->next.count = 0;
    return batch;
}

// Behind the forward pass, when the batch it was for is not looked at any more.
static void send_ahead(Vit* v, Loader* loader) {
    if (!device_uploads_ahead()) return;
    v->next = loader_next(loader);
    v->ahead = v->next.raw;
    device_upload_ahead(v->raw, v->next.raw, raw_bytes(v, v->next.count));
}

static StepResult vit_step(Vit* v, Loader* loader, int batches_per_epoch, int64_t step, int64_t total) {
    const VitOptions* o = &v->o;
    Shear* s = &v->method.shear;
    StepResult r = {0, 0, learning_rate(&o->update, step, total), 0, ""};
    int b = o->batch;
    Crop* crops = (Crop*)allocate((size_t)b, sizeof *crops);
    float* losses = (float*)allocate((size_t)b, sizeof *losses);
    method_begin_step(&v->method, step);
    s->storing = 1;
    for (s->micro = 0; s->micro < o->accumulate; s->micro++) {
        if (s->micro && signal_seen()) {
            r.unfinished = 1;
            break;
        }
        Batch batch = next_batch(v, loader);
        uint32_t epoch = (uint32_t)((step * o->accumulate + s->micro) / batches_per_epoch);
        for (int i = 0; i < b; i++) crops[i] = crop_random(v, epoch, batch.index[i]);
        vit_forward(v, batch.raw, batch.label, crops, b);
        timer_start(TIME_OTHER);
        cross_entropy(v->losses, v->correct, v->dlogits, v->logits, v->labels, 1.0f / ((float)b * (float)o->accumulate), b, v->config.classes);
        send_ahead(v, loader);
        device_download(losses, v->losses, (size_t)b * sizeof *losses);
        for (int i = 0; i < b; i++) r.loss += losses[i] / ((double)b * o->accumulate);
        if (!isfinite(r.loss)) {
            name_broken_layer(v->layer, v->config.layers, v->last, v->deep, (size_t)b * (size_t)v->tokens * (size_t)v->config.width, r.broke, sizeof r.broke);
            break;
        }
        vit_backward(v, b);
    }
    s->storing = 0;
    if (!*r.broke && !r.unfinished) {
        method_measure(&v->method, step);
        r.norm = params_update(&v->method, &v->params, &o->update, step, r.rate, v->norm);
        if (!isfinite(r.norm)) name_broken_gradient(&v->method, &v->params, r.broke, sizeof r.broke);
    }
    timer_stop();
    free(crops);
    free(losses);
    return r;
}

// Accuracy on a split, and the mean loss (NULL allowed). scored = 0: its labels are not of the model's classes, and both are 0.
// logits (NULL allowed): a file that receives them.
static double vit_evaluate(Vit* v, const Split* split, int scored, FILE* logits, double* mean_loss) {
    int b = v->o.batch, classes = v->config.classes;
    Loader* loader = loader_open(split, v->raw_channels, v->raw_height, v->raw_width, b, 0, 0, 0);
    Crop* crops = (Crop*)allocate((size_t)b, sizeof *crops);
    int* correct = (int*)allocate((size_t)b, sizeof *correct);
    float* losses = (float*)allocate((size_t)b, sizeof *losses);
    float* row = (float*)allocate((size_t)b * (size_t)classes, sizeof *row);
    int64_t right = 0;
    double loss = 0;
    for (int i = 0; i < b; i++) crops[i] = crop_centre(v);
    for (Batch batch = loader_next(loader); batch.count; batch = loader_next(loader)) {
        size_t n = (size_t)batch.count;
        vit_forward(v, batch.raw, scored ? batch.label : NULL, crops, batch.count);
        if (scored) {
            cross_entropy(v->losses, v->correct, NULL, v->logits, v->labels, 0, batch.count, classes);
            device_download(correct, v->correct, n * sizeof *correct);
            device_download(losses, v->losses, n * sizeof *losses);
        }
        for (size_t i = 0; scored && i < n; i++) {
            right += correct[i];
            loss += losses[i];
        }
        if (!logits) continue;
        device_download_floats(row, v->logits, n * (size_t)classes);
        if (fwrite(row, sizeof *row, n * (size_t)classes, logits) != n * (size_t)classes) trouble("cannot write the logits: disk full?");
    }
    timer_stop();
    loader_close(loader);
    free(crops);
    free(correct);
    free(losses);
    free(row);
    if (mean_loss) *mean_loss = loss / split->count;
    return (double)right / split->count;
}

// ---------------------------------------------------------------------------------------------------------------------
// Files: checkpoints in, models and states out

// Pairs every parameter with its place in t. param and view: [params.count]. t->layer is allocated.
static void vit_pair(Vit* v, VitTensors* t, Param** param, float*** view) {
    memset(t, 0, sizeof *t);
    t->layer = (VitLayer*)allocate((size_t)v->config.layers, sizeof *t->layer);
    int n = 0;
    Param* outside[] = {v->patch_w, v->patch_b, v->cls, v->position, v->norm_w, v->norm_b, v->head_w, v->head_b};
    float** place[] = {&t->patch_w, &t->patch_b, &t->cls, &t->position, &t->norm_w, &t->norm_b, &t->head_w, &t->head_b};
    for (int k = 0; k < 8; k++) {
        if (!outside[k]) continue;
        param[n] = outside[k];
        view[n++] = place[k];
    }
    for (int i = 0; i < v->config.layers; i++) {
        Layer* l = &v->layer[i];
        VitLayer* f = &t->layer[i];
        Param* inside[] = {l->norm1_w, l->norm1_b, l->qkv_w, l->qkv_b, l->proj_w, l->proj_b, l->norm2_w, l->norm2_b, l->fc1_w, l->fc1_b, l->fc2_w, l->fc2_b};
        float** spot[] = {&f->norm1_w, &f->norm1_b, &f->qkv_w, &f->qkv_b, &f->proj_w, &f->proj_b,
                          &f->norm2_w, &f->norm2_b, &f->fc1_w, &f->fc1_b, &f->fc2_w, &f->fc2_b};
        for (int k = 0; k < 12; k++) {
            if (!inside[k]) continue;
            param[n] = inside[k];
            view[n++] = spot[k];
        }
    }
}

// Every parameter as host memory, in the form in which checkpoints are read (write = 1) and written; `use` works on it.
static char* vit_with_tensors(Vit* v, int write, char* (*use)(const Vit*, VitTensors*, const void*), const void* argument) {
    VitTensors t;
    Param** param = (Param**)allocate((size_t)v->params.count, sizeof *param);
    float*** view = (float***)allocate((size_t)v->params.count, sizeof *view);
    vit_pair(v, &t, param, view);
    for (int i = 0; i < v->params.count; i++) *view[i] = host_view_open(param[i]->w, (size_t)param[i]->rows * (size_t)param[i]->cols);
    char* result = use(v, &t, argument);
    for (int i = 0; i < v->params.count; i++) host_view_close(*view[i], param[i]->w, (size_t)param[i]->rows * (size_t)param[i]->cols, write);
    free(t.layer);
    free(param);
    free(view);
    return result;
}

static char* read_tensors(const Vit* v, VitTensors* t, const void* file) {
    return vit_tensors_read(v->o.model, (const VitConfig*)file, &v->config, t);
}

static char* write_tensors(const Vit* v, VitTensors* t, const void* dir) {
    vit_write((const char*)dir, &v->config, t);
    return NULL;
}

static void vit_load(Vit* v, const VitConfig* file) {
    char* lines = vit_with_tensors(v, 1, read_tensors, file);
    printf("%s", lines);
    free(lines);
    params_round(&v->params);
}

// A new network: matrices, class token and positions from a normal distribution, norms 1, biases and the head 0.
static void vit_initialise(Vit* v) {
    for (int i = 0; i < v->params.count; i++) {
        Param* p = &v->params.param[i];
        size_t n = (size_t)p->rows * (size_t)p->cols;
        float* w = host_view_open(p->w, n);
        if (p->kind == PARAM_MATRIX || p->kind == PARAM_PATCH || p->kind == PARAM_EMBEDDING) fill_normal(w, n, (uint64_t)v->o.method.seed, i);
        else for (size_t j = 0; j < n; j++) w[j] = p->kind == PARAM_NORM;
        host_view_close(w, p->w, n, 1);
    }
    params_round(&v->params);
}

// DIR/name, complete or not at all.
static void vit_save(Vit* v, const char* dir, const char* name) {
    char *to = format_string("%s/%s", dir, name), *from = format_string("%s/%s.tmp", dir, name);
    directory_fresh(from);
    vit_with_tensors(v, 0, write_tensors, from);
    directory_replace(from, to);
    free(to);
    free(from);
}

// What a later run needs: the model for others, the state for --resume.
static void vit_save_run(Vit* v, int64_t steps_done, double best) {
    if (!v->o.out) return;
    vit_save(v, v->o.out, "model");
    char* state = state_path(v->o.out);
    state_save(&v->method, &v->params, state, steps_done, best);
    free(state);
}

// ---------------------------------------------------------------------------------------------------------------------
// --plan and --budget

static Vit vit_planned(const VitOptions* o, const VitConfig* c, const Images* d, int learning) {
    Vit v = vit_create(o, c, d->channels, d->height, d->width, learning);
    vit_plan(&v);
    return v;
}

static void vit_print_plan(const VitOptions* o, const VitConfig* c, const Images* d) {
    VitOptions full_options = *o;
    method_make_full(&full_options.method);
    Vit v = vit_planned(o, c, d, 1), full = vit_planned(&full_options, c, d, 1);
    printf("%d layers, %d wide, patch %d, %d px: %d tokens; batch %d; %s activations; method %s\n", c->layers, c->width, c->patch, c->image_size,
           v.tokens, o->batch, precision_name(o->precision), preset_name(o->method.preset));
    plan_print(&v.plan, &full.plan, c->layers);
    vit_free(&v);
    vit_free(&full);
}

typedef struct {
    VitOptions* o;
    const VitConfig* c;
    const Images* d;
} BudgetCase;

static size_t vit_plan_bytes(const void* context) {
    const BudgetCase* a = (const BudgetCase*)context;
    Vit v = vit_planned(a->o, a->c, a->d, 1);
    size_t bytes = v.plan.bytes;
    vit_free(&v);
    return bytes;
}

static void vit_fit_budget(VitOptions* o, const VitConfig* c, const Images* d) {
    BudgetCase a = {o, c, d};
    fit_budget(&o->method, o->budget, vit_plan_bytes, &a);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the program does

static void vit_check(const VitOptions* o, const VitConfig* c) {
    if (c->image_size < c->patch) usage_error("--image-size %d is less than one patch (%d)", c->image_size, c->patch);
    method_check(&o->method, c->width, c->mlp, o->precision, o->plan);
}

static Images images_of_data(const VitOptions* o) {
    if (!o->data) usage_error("--data is missing: a CIFAR or Fashion-MNIST directory, or an image pack");
    return images_open(o->data, o->classes);
}

static void run_eval(VitOptions* o, VitConfig* file) {
    Images data = images_of_data(o);
    if (!data.test.count) trouble("%s has no test split to evaluate on", data.path);
    int comparable = data.classes == file->classes;
    if (!file->classes) trouble("%s: the model has no classifier; fine-tune it first", o->model);
    if (!comparable && !o->logits)
        trouble("%s: the model knows %d classes but %s has %d; fine-tune it first, or ask for its --logits alone", o->model, file->classes, data.path,
                data.classes);
    VitConfig c = *file;
    if (o->image_size) c.image_size = o->image_size;
    vit_check(o, &c);
    Vit v = vit_planned(o, &c, &data, 0);
    vit_allocate(&v);
    vit_load(&v, file);
    FILE* logits = o->logits ? file_create(o->logits) : NULL;
    double loss, start = device_seconds(), accuracy = vit_evaluate(&v, &data.test, comparable, logits, &loss), seconds = device_seconds() - start;
    if (logits) file_finish(logits, o->logits);
    printf("%d test images: ", data.test.count);
    if (comparable) printf("accuracy %.2f %%, loss %.4f, ", 100 * accuracy, loss);
    else printf("logits of %d classes, ", file->classes);
    printf("%.1f images/s\n", data.test.count / seconds);
    vit_free(&v);
    images_close(&data);
}

static void run_predict(VitOptions* o, VitConfig* file) {
    Photo photo;
    const char* reason = photo_read(o->predict, &photo);
    if (reason) trouble("%s: %s; name a JPEG, PNG, BMP or PNM photo", o->predict, reason);
    if (!file->classes) trouble("%s: the model has no classifier; fine-tune it first", o->model);
    VitConfig c = *file;
    if (o->image_size) c.image_size = o->image_size;
    o->batch = 1;
    vit_check(o, &c);
    Vit v = vit_create(o, &c, 3, photo.height, photo.width, 0);
    vit_plan(&v);
    vit_allocate(&v);
    vit_load(&v, file);
    Crop crop = crop_centre(&v);
    vit_forward(&v, photo.rgb, NULL, &crop, 1);
    timer_stop();
    float* logits = (float*)allocate((size_t)c.classes, sizeof *logits);
    device_download_floats(logits, v.logits, (size_t)c.classes);
    double most = logits[0], sum = 0;
    for (int i = 0; i < c.classes; i++) most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < c.classes; i++) sum += exp(logits[i] - most);
    for (int rank = 0; rank < 5 && rank < c.classes; rank++) {
        int best = 0;
        for (int i = 1; i < c.classes; i++)
            if (logits[i] > logits[best]) best = i;
        char number[24];
        snprintf(number, sizeof number, "class %d", best);
        printf("%6.2f %%  %s\n", 100 * exp(logits[best] - most) / sum, c.class_name ? c.class_name[best] : number);
        logits[best] = -INFINITY;
    }
    free(logits);
    photo_free(&photo);
    vit_free(&v);
}

static int run_training(VitOptions* o, Option* table, VitConfig* file) {
    signals_watch();
    Images data = images_of_data(o);
    VitConfig c = *file;
    c.classes = data.classes;
    c.class_name = data.class_name;
    if (o->image_size) c.image_size = o->image_size;
    vit_check(o, &c);
    if (o->batch > data.train.count) trouble("--batch %d is larger than the %d training images of %s", o->batch, data.train.count, data.path);
    int batches = data.train.count / o->batch, per_epoch = batches / o->accumulate > 0 ? batches / o->accumulate : 1;
    int64_t total = o->steps ? o->steps : (int64_t)o->epochs * batches / o->accumulate;
    int64_t eval_every = o->eval_every ? o->eval_every : per_epoch, save_every = o->save_every ? o->save_every : per_epoch;
    if (!total) usage_error("nothing to do: %d epochs of %d batches make no step of %d batches", o->epochs, batches, o->accumulate);
    if (o->budget) vit_fit_budget(o, &c, &data);

    if (o->out) run_claim(o->out, o->model, o->resume != NULL, o->overwrite);
    Vit v = vit_planned(o, &c, &data, 1);
    char bytes[32];
    printf("%s, %s\nmodel: %s, %d layers, %d wide, %d px, %d classes\ndata: %s (%s), %d training and %d test images of %d x %d\narena: %s\n", device_name(), precision_name(o->precision),
           o->model, c.layers, c.width, c.image_size, c.classes, data.path, data.kind, data.train.count, data.test.count, data.width, data.height,
           human_bytes(v.plan.bytes, bytes));
    fflush(stdout);
    if (o->out) v.method.data_hash = (int64_t)images_hash(&data);
    vit_allocate(&v);
    int64_t step = 0, saved = -1;   // steps done; how many of them are on disk
    double accuracy = NAN, best = -1;
    char* state = o->out ? state_path(o->out) : NULL;
    if (o->resume) {
        if (access(state, F_OK)) trouble("%s: there is none: the run stopped before its first save; start it again with --overwrite", state);
        state_load(&v.method, &v.params, state, &step, &best);
        saved = step;
        printf("resuming after step %lld of %lld%s\n", (long long)step, (long long)total, step < total ? "" : ": nothing is left to do");
    } else if (o->from_scratch) {
        vit_initialise(&v);
    } else {
        vit_load(&v, file);
    }
    if (!o->out) printf("nothing will be saved: no --out was given\n");

    Log* log = log_open(o->out, step, total, o->log_every, o->overwrite || o->resume);
    if (o->out && !o->resume) {
        run_clear(o->out);
        write_options(o->out, table);
    }
    Loader* loader = loader_open(&data.train, data.channels, data.height, data.width, o->batch, 1, (uint64_t)o->method.seed, step * o->accumulate);
    int64_t begun = step;
    double start = device_seconds(), samples = 0;
    int status = 0;
    timer_enable(1);
    while (step < total) {
        double t0 = device_seconds();
        StepResult r = vit_step(&v, loader, batches, step, total);
        double seconds = device_seconds() - t0, n = (double)o->batch * o->accumulate;
        if ((*r.broke || r.unfinished) && !broken_parameter(&v.params)) {   // the step left everything as it was
            vit_save_run(&v, step, best);
            saved = step;
        }
        if (*r.broke) {
            log_close(log);
            end_diverged(o->out, step + 1, isfinite(r.loss) ? "the gradient norm" : "the loss", r.broke, saved);
        }
        if (r.unfinished) {
            status = say_stopped(log, step, o->out);
            break;
        }
        step++;
        samples += n;
        if (step == begun + 1 && step < total) {   // the first step also pays for what is made at first use
            timer_reset();
            samples = 0;
        }
        int last = step == total, evaluates = data.test.count && o->eval_every >= 0 && (last || step % eval_every == 0);
        int stopped = signal_seen(), saves = last || stopped || step % save_every == 0;
        const char* broken = saves || evaluates ? broken_parameter(&v.params) : NULL;
        if (broken) {
            log_close(log);
            end_diverged(o->out, step, broken, "after its update", saved);
        }
        accuracy = NAN;
        if (evaluates) {
            timer_enable(0);
            accuracy = vit_evaluate(&v, &data.test, 1, NULL, NULL);
            timer_enable(1);
        }
        LogLine line = {step, (double)(step * o->accumulate) / batches, r.loss, r.rate, r.norm, accuracy, 1e3 * seconds, n / seconds, method_kept_bytes(&v.method, &v.plan), v.plan.bytes};
        log_step(log, &line);
        if (accuracy > best) {
            best = accuracy;
            if (o->out) vit_save(&v, o->out, "model-best");
        }
        if (saves) {
            vit_save_run(&v, step, best);
            saved = step;
        }
        if (stopped && !last) {
            status = say_stopped(log, step, o->out);
            break;
        }
    }
    log_close(log);
    loader_close(loader);
    if (samples > 0) print_summary(&v.plan, "test accuracy", "images", step, accuracy, best, device_seconds() - start, samples);
    free(state);
    vit_free(&v);
    images_close(&data);
    return status;
}

int main(int argc, char** argv) {
    device_prepare(argv);
    VitOptions o = vit_defaults();
    Option table[OPTION_ROWS];
    vit_options(table, &o);
    options_parse(table, argc, argv, "train_vit -m MODEL -d DATA [-o RUN] [options]", VERSION);
    if (o.resume) {
        char* path = format_string("%s/options.txt", o.resume);
        options_resume(table, path);
        free(path);
        if (option_find(table, "out")->given && strcmp(o.out, o.resume)) usage_error("--resume %s goes on in %s: leave out --out", o.resume, o.resume);
        o.out = o.resume;
    }
    if (o.resume && (o.eval || o.predict)) usage_error("--resume goes on with training: to use what it made, give --model %s/model instead", o.resume);
    if (o.eval || o.predict) refuse_given(table, o.eval ? "eval" : "predict", "out plan budget from-scratch overwrite steps epochs");
    if (o.logits && !o.eval) usage_error("--logits are written by --eval: add it");
    fill_preset_defaults(&o.method, &o.update);
    if (!o.model) usage_error("--model is missing: a directory with config.json and model.safetensors");
    device_threads(o.threads);
    VitConfig file = vit_config_read(o.model, !(o.from_scratch || o.plan || o.resume));
    if (o.plan) {
        Images data = {0};
        data.channels = 3;
        data.height = data.width = 256;
        data.classes = file.classes;
        if (o.data) data = images_of_data(&o);
        VitConfig c = file;
        c.classes = data.classes;
        if (o.image_size) c.image_size = o.image_size;
        vit_check(&o, &c);
        if (o.budget) vit_fit_budget(&o, &c, &data);
        vit_print_plan(&o, &c, &data);
        return 0;
    }
    if (o.predict) return run_predict(&o, &file), 0;
    if (o.eval) return run_eval(&o, &file), 0;
    return run_training(&o, table, &file);
}
