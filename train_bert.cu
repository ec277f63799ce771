// train_bert: fine-tunes a pretrained BERT (Devlin et al., 2019) on sentences or pairs of them with sheared backpropagation.
//
// The whole model in one file, top to bottom: options, parameters, activations and their plan, forward, backward, one step, evaluation,
// saving and resuming, main. How much is kept for backward and what learns is decided in prebr.h.
//
// BERT normalises after each residual sum. Here a norm belongs to the block that reads it, so that a block is
//
//   n1 = norm(x)   mid = n1 + dropout(proj(attention(qkv(n1))))   n2 = norm(mid)   out = n2 + dropout(fc2(gelu(fc1(n2))))
//
// with the norm of the embeddings, or of the block below, in front. What is kept of it is then what a ViT's block keeps: x, mid and their
// statistics; n1 and n2, which the residuals take too, are made again.
#include <unistd.h>

#include "data/bert_files.h"
#include "data/metrics.h"
#include "data/options.h"
#include "data/tokens.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/embed.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/tanh.h"
#include "kernels/token_embed.h"
#include "prebr.h"

#define VERSION "train_bert 0.1 (prebr)"

// ---------------------------------------------------------------------------------------------------------------------
// Options

typedef struct {
    const char *model, *data, *out, *resume, *budget, *logits, *predictions;
    int batch, accumulate, epochs, threads, log_every;
    int64_t steps, eval_every, save_every;
    int eval, split, plan, precision, overwrite, from_scratch;
    int max_length, group_by_length;
    double dropout;
    MethodOptions method;
    UpdateOptions update;
} BertOptions;

static BertOptions bert_defaults(void) {
    BertOptions o;
    memset(&o, 0, sizeof o);
    o.batch = 8;
    o.accumulate = 1;
    o.epochs = 3;
    o.log_every = 10;
    o.split = SPLIT_DEV;
    o.dropout = -1;
    o.method = method_defaults();
    o.update = update_defaults();
    o.precision = precision_built();
    o.method.gelu = GELU_EXACT;   // the methods' own rates and GELU were measured on ViT (prebr.h): here the usual ones of BERT
    o.update.lr = 5e-5;
    o.update.head_scale = o.update.bias_scale = o.update.column_scale = 1;
    o.update.warmup = 0;
    return o;
}

enum { OPTION_ROWS = 64 };

// The table that parsing, --help, options.txt and --resume share. The last number but one says whether changing the option changes the run.
static void bert_options(Option* table, BertOptions* o) {
    MethodOptions* m = &o->method;
    UpdateOptions* u = &o->update;
    Option rows[] = {
        {OPTION_GROUP, "What to do", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_PATH, "model", 'm', &o->model, "DIR", "checkpoint: config.json + model.safetensors of a Hugging Face BERT", 0, 0, 1, 0},
        {OPTION_PATH, "data", 'd', &o->data, "FILE", "token file, made from text by scripts/tokenize_glue.py", 0, 0, 1, 0},
        {OPTION_TEXT, "out", 'o', &o->out, "DIR", "run directory: log.csv, model/, state/ (without it nothing is written)", 0, 0, 0, 0},
        {OPTION_TEXT, "resume", 0, &o->resume, "DIR", "go on with the run in DIR, bit for bit as if it had never stopped", 0, 0, 0, 0},
        {OPTION_FLAG, "eval", 0, &o->eval, NULL, "only evaluate the model", 0, 0, 0, 0},
        {OPTION_CHOICE, "split", 0, &o->split, "train|dev|test", "with --eval: on which part of the data", 0, 0, 0, 0},
        {OPTION_TEXT, "predictions", 0, &o->predictions, "FILE", "with --eval: write the predictions, one line a sequence", 0, 0, 0, 0},
        {OPTION_TEXT, "logits", 0, &o->logits, "FILE", "with --eval: write the outputs as raw float32 [sequences, outputs]", 0, 0, 0, 0},
        {OPTION_FLAG, "plan", 0, &o->plan, NULL, "only print what the run will need, next to `full`; needs no data", 0, 0, 0, 0},
        {OPTION_CHOICE, "precision", 0, &o->precision, PRECISION_CHOICES, "of activations; another than this program's own with --plan only", 0, 0, 0, 0},
        {OPTION_TEXT, "budget", 0, &o->budget, "SIZE", "choose what is kept or recomputed so that the arena fits, e.g. 6G", 0, 0, 1, 0},
        {OPTION_FLAG, "from-scratch", 0, &o->from_scratch, NULL, "random weights for the config in --model", 0, 0, 1, 0},
        {OPTION_FLAG, "overwrite", 0, &o->overwrite, NULL, "replace an earlier run in --out", 0, 0, 0, 0},
        {OPTION_GROUP, "Training", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_INT, "batch", 'b', &o->batch, "N", "sequences at once", 1, 65536, 1, 0},
        {OPTION_INT, "accumulate", 0, &o->accumulate, "N", "batches whose gradients make one step", 1, 65536, 1, 0},
        {OPTION_INT, "epochs", 0, &o->epochs, "N", "passes over the training split", 0, 1000000, 1, 0},
        {OPTION_LONG, "steps", 0, &o->steps, "N", "stop after N steps instead (0: epochs decide)", 0, 1e15, 1, 0},
        UPDATE_OPTIONS(u),
        {OPTION_LONG, "seed", 0, &m->seed, "N", "of order, dropout and sampling", 0, 9e15, 1, 0},
        {OPTION_INT, "threads", 0, &o->threads, "N", "compute threads (0: all cores)", 0, 4096, 0, 0},
        {OPTION_LONG, "eval-every", 0, &o->eval_every, "N", "steps between evaluations (0: once an epoch, -1: never)", -1, 1e15, 0, 0},
        {OPTION_LONG, "save-every", 0, &o->save_every, "N", "steps between saves (0: once an epoch)", 0, 1e15, 0, 0},
        {OPTION_INT, "log-every", 0, &o->log_every, "N", "in a pipe: steps between progress lines", 1, 1e9, 0, 0},
        METHOD_OPTIONS(m),
        {OPTION_GROUP, "Text", 0, NULL, NULL, NULL, 0, 0, 0, 0},
        {OPTION_INT, "max-length", 0, &o->max_length, "N", "tokens of the longest sequence to plan for (0: that of the data)", 0, 65536, 1, 0},
        {OPTION_FLOAT, "dropout", 0, &o->dropout, "X", "probability, everywhere (-1: the checkpoint's own)", -1, 0.999, 1, 0},
        {OPTION_FLAG, "group-by-length", 0, &o->group_by_length, NULL, "batches of sequences of nearly the same length", 0, 0, 1, 0},
        {OPTION_END, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0},
    };
    static_assert(sizeof rows / sizeof *rows <= OPTION_ROWS, "OPTION_ROWS is too small");
    memcpy(table, rows, sizeof rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// The model: parameters and activations; those of a layer are in prebr.h, 6. T = batch * tokens of the longest sequence there may be; a batch has its own,
// v->t tokens to a sequence, and then uses the first rows of every place.

typedef struct {
    BertOptions o;
    BertConfig config;
    int regression;
    int tokens, t;           // of a sequence: the most that is planned for; in this batch
    int learning;            // 0: forward only
    int deep;                // gradients flow below the head
    int training;            // dropout is on
    uint32_t batch_number;   // over the whole run, for dropout
    Params params;
    Param *word, *position, *segment, *norm_w, *norm_b, *pooler_w, *pooler_b, *head_w, *head_b;
    Layer* layer;
    Method method;
    Plan plan;
    char* arena;

    int *ids, *segments, *lengths;     // [T], [T], [B]
    int *labels, *correct;   // [B]
    float *scores, *losses;  // [B]
    floatx *last;            // [T, C] the last layer's output before its norm
    floatx *first, *normed;  // [B, C] its first tokens, before and after the norm
    float *first_mean, *first_rstd;
    floatx *pooler, *dropped;          // [B, C] tanh of the pooler; what the head reads
    floatx *logits, *dlogits, *dpooler, *dnormed, *dfirst;
    floatx *dx;              // [T, C] gradient of the sums between norms
    double* norm;            // [2] of all gradients: the sum of squares, and what clipping makes of it
    void* work;              // scratch of the kernels
    void* gemm_workspace;    // where products want one, else NULL
} Bert;

// All parameters in the order of the model. Linear layers come layer by layer: qkv, proj, fc1, fc2.
static void bert_parameters(Bert* v) {
    const BertConfig* c = &v->config;
    Params* p = &v->params;
    int L = c->layers, C = c->width;
    p->capacity = 9 + 12 * L;
    p->param = (Param*)allocate((size_t)p->capacity, sizeof(Param));
    v->layer = (Layer*)allocate((size_t)L, sizeof(Layer));
    v->method.groups = 4;
    v->method.linears = 4 * L;
    v->method.linear = (Linear*)allocate((size_t)(4 * L), sizeof(Linear));

    v->word = params_add(p, PARAM_EMBEDDING, -1, "word embedding", c->vocabulary, C);
    v->position = params_add(p, PARAM_EMBEDDING, -1, "position embedding", c->positions, C);
    v->segment = params_add(p, PARAM_EMBEDDING, -1, "segment embedding", c->segments, C);
    v->norm_w = params_add(p, PARAM_NORM, -1, "embedding norm.weight", C, 1);
    v->norm_b = params_add(p, PARAM_BIAS, -1, "embedding norm.bias", C, 1);
    for (int i = 0; i < L; i++) {
        Layer* l = &v->layer[i];
        l->number = i;
        l->norm1_w = i ? v->layer[i - 1].out_w : v->norm_w;
        l->norm1_b = i ? v->layer[i - 1].out_b : v->norm_b;
        l->qkv_w = params_add(p, PARAM_MATRIX, i, "qkv.weight", 3 * C, C);
        l->qkv_b = params_add(p, PARAM_BIAS, i, "qkv.bias", 3 * C, 1);
        l->proj_w = params_add(p, PARAM_MATRIX, i, "proj.weight", C, C);
        l->proj_b = params_add(p, PARAM_BIAS, i, "proj.bias", C, 1);
        l->norm2_w = params_add(p, PARAM_NORM, i, "norm1.weight", C, 1);
        l->norm2_b = params_add(p, PARAM_BIAS, i, "norm1.bias", C, 1);
        l->fc1_w = params_add(p, PARAM_MATRIX, i, "fc1.weight", c->mlp, C);
        l->fc1_b = params_add(p, PARAM_BIAS, i, "fc1.bias", c->mlp, 1);
        l->fc2_w = params_add(p, PARAM_MATRIX, i, "fc2.weight", C, c->mlp);
        l->fc2_b = params_add(p, PARAM_BIAS, i, "fc2.bias", C, 1);
        l->out_w = params_add(p, PARAM_NORM, i, "norm2.weight", C, 1);
        l->out_b = params_add(p, PARAM_BIAS, i, "norm2.bias", C, 1);
        layer_linears(l, &v->method.linear[4 * i]);
    }
    v->pooler_w = params_add(p, PARAM_PATCH, -1, "pooler.weight", C, C);
    v->pooler_b = params_add(p, PARAM_BIAS, -1, "pooler.bias", C, 1);
    v->head_w = params_add(p, PARAM_HEAD, -1, "head.weight", c->outputs, C);
    v->head_b = params_add(p, PARAM_HEAD_BIAS, -1, "head.bias", c->outputs, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// The plan: every tensor with its life. Those of the layers, and the ticks that lives are counted in, are in prebr.h, 6.

// The dropout of the embeddings lies behind their norm, which belongs to the first layer.
static int drops_input(const Bert* v, int layer) { return layer == 0 && v->config.dropout > 0; }

static int floatx_bytes(const Bert* v) { return precision_bytes(v->o.precision); }

// Scratch of the kernels: the most that one of them asks for.
static size_t bert_scratch(const Bert* v) {
    const BertConfig* c = &v->config;
    int B = v->o.batch, T = B * v->tokens;
    size_t most = method_scratch(&v->method);
    size_t need[] = {squares_scratch(params_largest(&v->params)), layernorm_scratch(T, c->width), linear_bias_scratch(B, c->outputs), linear_bias_scratch(B, c->width),
                     attention_scratch(v->o.method.attention, B, v->tokens, c->heads, c->width)};
    for (size_t k = 0; k < sizeof need / sizeof *need; k++)
        if (need[k] > most) most = need[k];
    return most;
}

static void bert_plan(Bert* v) {
    const BertConfig* c = &v->config;
    Plan* p = &v->plan;
    int64_t B = v->o.batch, T = B * v->tokens, C = c->width;
    int head = tick_head(c->layers), end = v->deep ? tick_end(c->layers) : head, fx = floatx_bytes(v);
    v->method.shear.o = v->o.method;
    v->method.tokens = v->method.shear.tokens = v->tokens;
    v->method.batch = v->o.batch;
    params_plan(&v->params, p, v->o.method.preset, v->o.update.optimizer, fx, !v->learning);
    plan_add(p, REGION_SCRATCH, -1, "token numbers", T, 1, 4, 0, end, (void**)&v->ids, NULL);
    plan_add(p, REGION_SCRATCH, -1, "segments", T, 1, 4, 0, end, (void**)&v->segments, NULL);
    plan_add(p, REGION_SCRATCH, -1, "lengths", B, 1, 4, 0, end, (void**)&v->lengths, NULL);
    LayerShape shape = {c->layers, v->o.batch, v->tokens, c->width, c->heads, c->mlp, fx, v->deep, 1, c->dropout > 0, c->dropout > 0};
    for (int i = 0; i < c->layers; i++) layer_plan(p, &v->layer[i], &v->o.method, &shape);
    if (v->learning) method_plan(&v->method, p, fx);
    plan_add(p, REGION_SCRATCH, -1, "last layer's output", T, C, fx, forward_tick(c->layers - 1, OP_FC2), head, (void**)&v->last, NULL);
    plan_add(p, REGION_SCRATCH, -1, "labels", B, 1, 4, 0, head, (void**)&v->labels, NULL);
    plan_add(p, REGION_SCRATCH, -1, "scores", B, 1, 4, 0, head, (void**)&v->scores, NULL);
    plan_add(p, REGION_SCRATCH, -1, "correct", B, 1, 4, head, head, (void**)&v->correct, NULL);
    plan_add(p, REGION_SCRATCH, -1, "losses", B, 1, 4, head, head, (void**)&v->losses, NULL);
    plan_add(p, REGION_SCRATCH, -1, "first tokens", B, C, fx, head, head, (void**)&v->first, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm", B, C, fx, head, head, (void**)&v->normed, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm mean", B, 1, 4, head, head, (void**)&v->first_mean, NULL);
    plan_add(p, REGION_SCRATCH, -1, "final norm 1/sigma", B, 1, 4, head, head, (void**)&v->first_rstd, NULL);
    plan_add(p, REGION_SCRATCH, -1, "pooler", B, C, fx, head, head, (void**)&v->pooler, NULL);
    plan_add(p, REGION_SCRATCH, -1, "pooler after dropout", B, C, fx, head, head, (void**)&v->dropped, NULL);
    plan_add(p, REGION_SCRATCH, -1, "logits", B, c->outputs, fx, head, head, (void**)&v->logits, NULL);
    if (v->learning) {
        plan_add(p, REGION_SCRATCH, -1, "logits gradient", B, c->outputs, fx, head, head, (void**)&v->dlogits, NULL);
        plan_add(p, REGION_SCRATCH, -1, "pooler gradient", B, C, fx, head, head, (void**)&v->dpooler, NULL);
        plan_add(p, REGION_SCRATCH, -1, "final norm gradient", B, C, fx, head, head, (void**)&v->dnormed, NULL);
        plan_add(p, REGION_SCRATCH, -1, "first tokens gradient", B, C, fx, head, head, (void**)&v->dfirst, NULL);
        plan_add(p, REGION_SCRATCH, -1, "gradient norm", 2, 1, 8, 0, TICK_ALWAYS, (void**)&v->norm, NULL);
    }
    if (v->deep) plan_add(p, REGION_SCRATCH, -1, "gradient between blocks", T, C, fx, head, end, (void**)&v->dx, NULL);
    plan_add(p, REGION_SCRATCH, -1, "kernels' scratch", (int64_t)bert_scratch(v), 1, 1, 0, TICK_ALWAYS, (void**)&v->work, NULL);
    if (gemm_workspace_bytes())
        plan_add(p, REGION_SCRATCH, -1, "GEMM workspace", (int64_t)gemm_workspace_bytes(), 1, 1, 0, TICK_ALWAYS, (void**)&v->gemm_workspace, NULL);
    plan_place(p);
}

// A model that is planned but not allocated. learning = 0: for evaluation only.
static Bert bert_planned(const BertOptions* o, const BertConfig* c, int tokens, int learning) {
    Bert v;
    memset(&v, 0, sizeof v);
    v.o = *o;
    v.config = *c;
    v.tokens = tokens;
    v.learning = learning;
    v.deep = learning && preset_goes_deep(o->method.preset);
    v.regression = c->outputs == 1;
    bert_parameters(&v);
    bert_plan(&v);
    return v;
}

static void bert_free(Bert* v) {
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
static void bert_connect(Bert* v) {
    v->method.shear.work = v->work;
    gemm_use_workspace(v->gemm_workspace);
    params_connect(&v->params);
    for (int i = 0; i < v->config.layers; i++) layer_connect(&v->layer[i]);
    if (!v->learning) return;
    method_start(&v->method);
}

static void bert_allocate(Bert* v) {
    v->arena = arena_allocate(&v->plan);
    bert_connect(v);
}

// ---------------------------------------------------------------------------------------------------------------------
// Dropout. Every place has its number, so that its mask can be drawn again: 0 the embeddings, then three for each layer, then the head.

enum { SITE_EMBEDDING, SITE_LAYERS };
enum { SITE_ATTENTION, SITE_PROJ, SITE_FC2, SITES };

static Dropout dropout_at(const Bert* v, int site, float p) {
    Dropout d = {v->training ? p : 0, (uint64_t)v->o.method.seed, v->batch_number, (uint32_t)site};
    return d;
}

static Dropout layer_dropout(const Bert* v, const Layer* l, int site) {
    return dropout_at(v, SITE_LAYERS + l->number * SITES + site, site == SITE_ATTENTION ? v->config.attention_dropout : v->config.dropout);
}

static Dropout head_dropout(const Bert* v) { return dropout_at(v, SITE_LAYERS + v->config.layers * SITES, v->config.head_dropout); }


// ---------------------------------------------------------------------------------------------------------------------
// Forward

// A residual branch's end: y [b*t, C] = residual + dropout(x w^T + bias).
static void branch_forward(Bert* v, Linear* linear, floatx* y, const floatx* x, const floatx* residual, Dropout dropout, int b) {
    sheared_forward(&v->method.shear, linear, y, x, dropout.p > 0 ? NULL : residual, b);
    timer_start(TIME_ACTIVATION);
    if (dropout.p > 0) dropout_apply(y, y, residual, dropout, (size_t)b * (size_t)v->t * (size_t)v->config.width);
}

// n1 is there, but in the first layer still without the dropout of the embeddings.
static void input_dropout(Bert* v, const Layer* l, floatx* n1, int b) {
    Dropout dropout = dropout_at(v, SITE_EMBEDDING, v->config.dropout);
    timer_start(TIME_ACTIVATION);
    if (l->number == 0 && dropout.p > 0) dropout_apply(n1, n1, NULL, dropout, (size_t)b * (size_t)v->t * (size_t)v->config.width);
}

static void input_remake(Bert* v, const Layer* l, const Acts* a, int b) {
    timer_start(TIME_NORM);
    layernorm_remake(a->n1, a->x, a->mean1, a->rstd1, l->norm1_w->w, l->norm1_b->w, b * v->t, v->config.width);
    input_dropout(v, l, a->n1, b);
}

// Where backward finds the input of qkv. Dropout behind the norm (in the first layer) asks for all of it.
static Input input_again(Bert* v, const Layer* l, int b) {
    const Acts* a = &l->again;
    if (v->o.method.recompute != RECOMPUTE_NONE) return input_there(a->n1);
    if (!drops_input(v, l->number)) return input_of_norm(a->n1, a->x, a->mean1, a->rstd1, l->norm1_w->w, l->norm1_b->w);
    if (linear_learns(l->qkv)) input_remake(v, l, a, b);
    return input_there(a->n1);
}

// One block: out [b*t, C] from a->x; every other tensor of `a` is written on the way. out NULL: only what backward needs.
static void block_forward(Bert* v, Layer* l, Acts* a, floatx* out, int b) {
    const BertConfig* c = &v->config;
    const Shear* s = &v->method.shear;
    int T = b * v->t, C = c->width;
    timer_start(TIME_NORM);
    layernorm_forward(a->n1, a->mean1, a->rstd1, a->x, l->norm1_w->w, l->norm1_b->w, c->norm_eps, T, C);
    input_dropout(v, l, a->n1, b);
    sheared_forward(s, l->qkv, a->qkv, a->n1, NULL, b);
    layer_attention(s, l, a, v->lengths, layer_dropout(v, l, SITE_ATTENTION), b, c->heads, C);
    branch_forward(v, l->proj, a->mid, a->o, a->n1, layer_dropout(v, l, SITE_PROJ), b);
    timer_start(TIME_NORM);
    layernorm_forward(a->n2, a->mean2, a->rstd2, a->mid, l->norm2_w->w, l->norm2_b->w, c->norm_eps, T, C);
    sheared_forward(s, l->fc1, a->hidden, a->n2, NULL, b);
    sheared_gelu(s, l->fc2, a->act, a->codes, a->hidden, b);
    if (out) branch_forward(v, l->fc2, out, a->act, a->n2, layer_dropout(v, l, SITE_FC2), b);
}

// From token numbers to logits.
static void bert_forward(Bert* v, const TokenBatch* batch) {
    const BertConfig* c = &v->config;
    int C = c->width, b = batch->count;
    size_t tokens = (size_t)b * (size_t)batch->length, pooled = (size_t)b * (size_t)C;
    Layer* top = &v->layer[c->layers - 1];
    v->t = v->method.shear.tokens = batch->length;
    timer_start(TIME_DATA);
    device_upload(v->ids, batch->ids, tokens * sizeof *batch->ids);
    device_upload(v->segments, batch->segment, tokens * sizeof *batch->segment);
    device_upload(v->lengths, batch->lengths, (size_t)b * sizeof *batch->lengths);
    device_upload(v->labels, batch->label, (size_t)b * sizeof *batch->label);
    device_upload(v->scores, batch->score, (size_t)b * sizeof *batch->score);
    timer_start(TIME_OTHER);
    token_embed_forward(v->layer[0].in.x, v->word->w, v->position->w, v->segment->w, v->ids, v->segments, b, v->t, C);
    for (int i = 0; i < c->layers; i++)
        block_forward(v, &v->layer[i], &v->layer[i].in, i + 1 < c->layers ? v->layer[i + 1].in.x : v->last, b);
    timer_start(TIME_NORM);
    pool_forward(v->first, v->last, 0, 0, b, v->t, C);
    layernorm_forward(v->normed, v->first_mean, v->first_rstd, v->first, top->out_w->w, top->out_b->w, c->norm_eps, b, C);
    timer_start(TIME_GEMM);
    linear_forward(v->pooler, v->normed, v->pooler_w->copy, v->pooler_b->copy, NULL, b, C, C);
    timer_start(TIME_ACTIVATION);
    tanh_forward(v->pooler, v->pooler, pooled);
    dropout_apply(v->dropped, v->pooler, NULL, head_dropout(v), pooled);
    timer_start(TIME_GEMM);
    linear_forward(v->logits, v->dropped, v->head_w->copy, v->head_b->copy, NULL, b, C, c->outputs);
}

// Losses of the batch, and with `scale` > 0 the gradient of their sum times it.
static void bert_loss(Bert* v, float scale, int b) {
    floatx* dlogits = scale > 0 ? v->dlogits : NULL;
    timer_start(TIME_OTHER);
    if (v->regression) squared_error(v->losses, dlogits, v->logits, v->scores, scale, b);
    else cross_entropy(v->losses, v->correct, dlogits, v->logits, v->labels, scale, b, v->config.outputs);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// Makes again what forward did not keep of a block, or of its attention.
static void block_remake(Bert* v, Layer* l, int b) {
    Acts* a = &l->again;
    Shear* s = &v->method.shear;
    s->storing = 0;
    if (v->o.method.recompute == RECOMPUTE_BLOCK) block_forward(v, l, a, NULL, b);
    if (v->o.method.recompute == RECOMPUTE_ATTENTION) {
        input_remake(v, l, a, b);
        sheared_forward(s, l->qkv, a->qkv, a->n1, NULL, b);
        layer_attention(s, l, a, v->lengths, layer_dropout(v, l, SITE_ATTENTION), b, v->config.heads, v->config.width);
    }
    s->storing = 1;
}

// The gradient of a branch before its dropout, from that of the sum behind it: dx itself where there is no dropout.
static const floatx* branch_gradient(Bert* v, floatx* before, Dropout dropout, int b) {
    if (!(dropout.p > 0)) return v->dx;
    timer_start(TIME_ACTIVATION);
    dropout_apply(before, v->dx, NULL, dropout, (size_t)b * (size_t)v->t * (size_t)v->config.width);
    return before;
}

// v->dx [b*t, C]: on entry the gradient of the block's output, on return that of its input.
static void block_backward(Bert* v, Layer* l, int b) {
    const BertConfig* c = &v->config;
    const MethodOptions* o = &v->o.method;
    const Shear* s = &v->method.shear;
    const Acts* a = &l->again;
    int T = b * v->t, C = c->width, again = o->recompute == RECOMPUTE_BLOCK;
    size_t hidden = (size_t)T * (size_t)c->mlp, stream = (size_t)T * (size_t)C;
    float beta = s->micro > 0;

    if (again) block_remake(v, l, b);
    Input act = again || o->gelu == GELU_REGELU2 ? input_there(a->act) : input_of_gelu(a->act, a->hidden);
    sheared_backward(s, l->fc2, l->dact, branch_gradient(v, l->dfc2, layer_dropout(v, l, SITE_FC2), b), act, b);
    sheared_gelu_backward(s, l->dact, a->codes, a->hidden, hidden);
    Input n2 = again ? input_there(a->n2) : input_of_norm(a->n2, a->mid, a->mean2, a->rstd2, l->norm2_w->w, l->norm2_b->w);
    sheared_backward(s, l->fc1, l->dn2, l->dact, n2, b);
    timer_start(TIME_NORM);
    dropout_apply(l->dn2, l->dn2, v->dx, no_dropout, stream);   // the residual's share
    layernorm_backward(v->dx, l->norm2_w->g, l->norm2_b->g, l->dn2, a->mid, a->mean2, a->rstd2, l->norm2_w->w, 0, beta, T, C, v->work);

    if (o->recompute == RECOMPUTE_ATTENTION) block_remake(v, l, b);
    sheared_backward(s, l->proj, l->d_o, branch_gradient(v, l->dproj, layer_dropout(v, l, SITE_PROJ), b), input_there(a->o), b);
    if (o->detach_frozen && l->qkv->arms && !linear_learns(l->qkv)) {   // only the residual goes on
        if (!beta) device_zero(l->qkv_b->g, (size_t)l->qkv_b->rows * sizeof(float));
        device_copy(l->dn1, v->dx, stream * sizeof *v->dx);
    } else {
        layer_attention_backward(s, l, v->lengths, layer_dropout(v, l, SITE_ATTENTION), b, c->heads, C);
        sheared_backward(s, l->qkv, l->dn1, l->dqkv, input_again(v, l, b), b);
        timer_start(TIME_NORM);
        dropout_apply(l->dn1, l->dn1, v->dx, no_dropout, stream);
    }
    input_dropout(v, l, l->dn1, b);
    timer_start(TIME_NORM);
    layernorm_backward(v->dx, l->norm1_w->g, l->norm1_b->g, l->dn1, a->x, a->mean1, a->rstd1, l->norm1_w->w, 0, beta, T, C, v->work);
}

// From dlogits to the gradient of everything that learns.
static void bert_backward(Bert* v, int b) {
    const BertConfig* c = &v->config;
    const Shear* s = &v->method.shear;
    const Layer* top = &v->layer[c->layers - 1];
    int C = c->width;
    size_t pooled = (size_t)b * (size_t)C;
    float beta = s->micro > 0;
    timer_start(TIME_GEMM);
    linear_backward_weight(v->head_w->g, v->dlogits, v->dropped, beta, b, C, c->outputs);
    linear_backward_bias(v->head_b->g, v->dlogits, beta, b, c->outputs, v->work);
    if (!v->deep) return;
    linear_backward_input(v->dpooler, v->dlogits, v->head_w->copy, 0, b, C, c->outputs);
    timer_start(TIME_ACTIVATION);
    dropout_apply(v->dpooler, v->dpooler, NULL, head_dropout(v), pooled);
    tanh_backward(v->dpooler, v->dpooler, v->pooler, pooled);
    timer_start(TIME_GEMM);
    if (v->pooler_w->g) linear_backward_weight(v->pooler_w->g, v->dpooler, v->normed, beta, b, C, C);
    linear_backward_bias(v->pooler_b->g, v->dpooler, beta, b, C, v->work);
    linear_backward_input(v->dnormed, v->dpooler, v->pooler_w->copy, 0, b, C, C);
    timer_start(TIME_NORM);
    layernorm_backward(v->dfirst, top->out_w->g, top->out_b->g, v->dnormed, v->first, v->first_mean, v->first_rstd, top->out_w->w, 0, beta, b, C, v->work);
    pool_backward(v->dx, v->dfirst, 0, 0, b, v->t, C);
    for (int i = c->layers - 1; i >= 0; i--) block_backward(v, &v->layer[i], b);
    timer_start(TIME_OTHER);
    if (v->word->g)
        token_embed_backward(v->word->g, v->position->g, v->segment->g, v->dx, v->ids, v->segments, beta, b, v->t, C, c->vocabulary, c->positions, c->segments);
}

// ---------------------------------------------------------------------------------------------------------------------
// One step, and an evaluation

static StepResult bert_step(Bert* v, const Tokens* data, TokenOrder* order, TokenBatch* batch, int64_t step, int64_t total) {
    const BertOptions* o = &v->o;
    Shear* s = &v->method.shear;
    StepResult r = {0, 0, learning_rate(&o->update, step, total), 0, ""};
    int b = o->batch;
    float* losses = (float*)allocate((size_t)b, sizeof *losses);
    method_begin_step(&v->method, step);
    s->storing = v->training = 1;
    for (s->micro = 0; s->micro < o->accumulate && !*r.broke; s->micro++) {
        if (s->micro && signal_seen()) {
            r.unfinished = 1;
            break;
        }
        int64_t number = step * o->accumulate + s->micro;
        v->batch_number = (uint32_t)number;
        token_batch_fill(batch, data, order->split, token_order_batch(order, number), b);
        bert_forward(v, batch);
        bert_loss(v, 1.0f / ((float)b * (float)o->accumulate), b);
        device_download(losses, v->losses, (size_t)b * sizeof *losses);
        for (int i = 0; i < b; i++) r.loss += losses[i] / ((double)b * o->accumulate);
        if (isfinite(r.loss)) bert_backward(v, b);
        else name_broken_layer(v->layer, v->config.layers, v->last, v->deep, (size_t)b * (size_t)v->t * (size_t)v->config.width, r.broke, sizeof r.broke);
    }
    s->storing = v->training = 0;
    if (!*r.broke && !r.unfinished) {
        method_measure(&v->method, step);
        r.norm = params_update(&v->method, &v->params, &o->update, step, r.rate, v->norm);
        if (!isfinite(r.norm)) name_broken_gradient(&v->method, &v->params, r.broke, sizeof r.broke);
    }
    timer_stop();
    free(losses);
    return r;
}

// What an evaluation says of a split, in its order.
typedef struct {
    float* logits;           // [count, outputs]
    double *predicted, *truth;   // [count] classes or scores
    double loss;             // mean; 0 without labels
} Evaluation;

static Evaluation bert_evaluate(Bert* v, const Tokens* data, const TokenSplit* split, TokenBatch* batch) {
    int outputs = v->config.outputs, b = v->o.batch, n = split->count;
    Evaluation e = {(float*)allocate((size_t)n * (size_t)outputs, sizeof(float)), (double*)allocate((size_t)n, sizeof(double)),
                    (double*)allocate((size_t)n, sizeof(double)), 0};
    int32_t* index = (int32_t*)allocate((size_t)b, sizeof *index);
    float* losses = (float*)allocate((size_t)b, sizeof *losses);
    for (int first = 0; first < n; first += b) {
        int count = n - first < b ? n - first : b;
        for (int i = 0; i < count; i++) index[i] = first + i;
        token_batch_fill(batch, data, split, index, count);
        bert_forward(v, batch);
        if (split->labelled) {
            bert_loss(v, 0, count);
            device_download(losses, v->losses, (size_t)count * sizeof *losses);
            for (int i = 0; i < count; i++) e.loss += losses[i] / (double)n;
        }
        device_download_floats(e.logits + (size_t)first * (size_t)outputs, v->logits, (size_t)count * (size_t)outputs);
    }
    timer_stop();
    for (int i = 0; i < n; i++) {
        const float* row = e.logits + (size_t)i * (size_t)outputs;
        int best = 0;
        for (int k = 1; k < outputs; k++)
            if (row[k] > row[best]) best = k;
        e.predicted[i] = v->regression ? row[0] : best;
        if (split->labelled) e.truth[i] = v->regression ? split->score[i] : split->label[i];
    }
    free(index);
    free(losses);
    return e;
}

static void evaluation_free(Evaluation* e) {
    free(e->logits);
    free(e->predicted);
    free(e->truth);
}

// The mean of the task's metrics, as GLUE counts a task that has two.
static double evaluation_score(const Evaluation* e, const Tokens* data, int n) {
    double sum = 0;
    for (int k = 0; k < data->metrics; k++) sum += metric_of(data->metric[k], e->predicted, e->truth, n);
    return sum / data->metrics;
}

// ---------------------------------------------------------------------------------------------------------------------
// Files: checkpoints in, models and states out

// Pairs every parameter with its place in t. param and view: [params.count]. t->layer is allocated.
static void bert_pair(Bert* v, BertTensors* t, Param** param, float*** view) {
    memset(t, 0, sizeof *t);
    t->layer = (BertLayer*)allocate((size_t)v->config.layers, sizeof *t->layer);
    int n = 0;
    Param* outside[] = {v->word, v->position, v->segment, v->norm_w, v->norm_b, v->pooler_w, v->pooler_b, v->head_w, v->head_b};
    float** place[] = {&t->word, &t->position, &t->segment, &t->norm_w, &t->norm_b, &t->pooler_w, &t->pooler_b, &t->head_w, &t->head_b};
    for (int k = 0; k < 9; k++) {
        param[n] = outside[k];
        view[n++] = place[k];
    }
    for (int i = 0; i < v->config.layers; i++) {
        Layer* l = &v->layer[i];
        BertLayer* f = &t->layer[i];
        Param* inside[] = {l->qkv_w, l->qkv_b, l->proj_w, l->proj_b, l->norm2_w, l->norm2_b, l->fc1_w, l->fc1_b, l->fc2_w, l->fc2_b, l->out_w, l->out_b};
        float** spot[] = {&f->qkv_w, &f->qkv_b, &f->proj_w, &f->proj_b, &f->norm1_w, &f->norm1_b, &f->fc1_w, &f->fc1_b, &f->fc2_w, &f->fc2_b, &f->norm2_w, &f->norm2_b};
        for (int k = 0; k < 12; k++) {
            param[n] = inside[k];
            view[n++] = spot[k];
        }
    }
}

// Every parameter as host memory, in the form in which checkpoints are read (write = 1) and written; `use` works on it.
static char* bert_with_tensors(Bert* v, int write, char* (*use)(const Bert*, BertTensors*, const void*), const void* argument) {
    BertTensors t;
    Param** param = (Param**)allocate((size_t)v->params.count, sizeof *param);
    float*** view = (float***)allocate((size_t)v->params.count, sizeof *view);
    bert_pair(v, &t, param, view);
    for (int i = 0; i < v->params.count; i++) *view[i] = host_view_open(param[i]->w, (size_t)param[i]->rows * (size_t)param[i]->cols);
    char* result = use(v, &t, argument);
    for (int i = 0; i < v->params.count; i++) host_view_close(*view[i], param[i]->w, (size_t)param[i]->rows * (size_t)param[i]->cols, write);
    free(t.layer);
    free(param);
    free(view);
    return result;
}

static char* read_tensors(const Bert* v, BertTensors* t, const void* file) {
    return bert_tensors_read(v->o.model, (const BertConfig*)file, &v->config, t);
}

static char* write_tensors(const Bert* v, BertTensors* t, const void* dir) {
    bert_write((const char*)dir, &v->config, t, v->o.model);
    return NULL;
}

// A new parameter: matrices and embeddings from a normal distribution, norms 1, biases and the head 0.
static void initialise(Bert* v, Param* p) {
    size_t n = (size_t)p->rows * (size_t)p->cols;
    float* w = host_view_open(p->w, n);
    if (p->kind == PARAM_MATRIX || p->kind == PARAM_PATCH || p->kind == PARAM_EMBEDDING) fill_normal(w, n, (uint64_t)v->o.method.seed, (int)(p - v->params.param));
    else for (size_t j = 0; j < n; j++) w[j] = p->kind == PARAM_NORM;
    host_view_close(w, p->w, n, 1);
}

static void bert_load(Bert* v, const BertConfig* file) {
    char* lines = bert_with_tensors(v, 1, read_tensors, file);
    if (!file->pooler) initialise(v, v->pooler_w);
    params_round(&v->params);
    printf("%s", lines);
    free(lines);
}

// DIR/name, complete or not at all.
static void bert_save(Bert* v, const char* dir, const char* name) {
    char *to = format_string("%s/%s", dir, name), *from = format_string("%s/%s.tmp", dir, name);
    directory_fresh(from);
    bert_with_tensors(v, 0, write_tensors, from);
    directory_replace(from, to);
    free(to);
    free(from);
}

// What a later run needs: the model for others, the state for --resume.
static void bert_save_run(Bert* v, int64_t steps_done, double best) {
    if (!v->o.out) return;
    bert_save(v, v->o.out, "model");
    char* state = state_path(v->o.out);
    state_save(&v->method, &v->params, state, steps_done, best);
    free(state);
}

// ---------------------------------------------------------------------------------------------------------------------
// --plan and --budget

static void bert_print_plan(const BertOptions* o, const BertConfig* c, int tokens) {
    BertOptions full_options = *o;
    method_make_full(&full_options.method);
    Bert v = bert_planned(o, c, tokens, 1), full = bert_planned(&full_options, c, tokens, 1);
    printf("%d layers, %d wide, at most %d tokens; batch %d; %s activations; method %s\n", c->layers, c->width, tokens, o->batch,
           precision_name(o->precision), preset_name(o->method.preset));
    plan_print(&v.plan, &full.plan, c->layers);
    bert_free(&v);
    bert_free(&full);
}

typedef struct {
    BertOptions* o;
    const BertConfig* c;
    int tokens;
} BudgetCase;

static size_t bert_plan_bytes(const void* context) {
    const BudgetCase* a = (const BudgetCase*)context;
    Bert v = bert_planned(a->o, a->c, a->tokens, 1);
    size_t bytes = v.plan.bytes;
    bert_free(&v);
    return bytes;
}

static void bert_fit_budget(BertOptions* o, const BertConfig* c, int tokens) {
    BudgetCase a = {o, c, tokens};
    fit_budget(&o->method, o->budget, bert_plan_bytes, &a);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the program does

static BertConfig bert_configure(const BertOptions* o, const BertConfig* file, const Tokens* data) {
    BertConfig c = *file;
    if (data) {
        c.outputs = data->classes ? data->classes : 1;
        c.class_name = data->classes ? data->class_name : NULL;
    }
    if (!c.outputs) c.outputs = 2;   // for a plan, where nothing says how many
    if (o->dropout >= 0) c.dropout = c.attention_dropout = c.head_dropout = (float)o->dropout;
    method_check(&o->method, c.width, c.mlp, o->precision, o->plan);
    return c;
}

// The data, and whether it is for this model.
static Tokens tokens_of_data(const BertOptions* o, const BertConfig* c) {
    if (!o->data) usage_error("--data is missing: a token file made by scripts/tokenize_glue.py");
    Tokens data = tokens_open(o->data);
    if (data.vocabulary > c->vocabulary)
        trouble("%s: made with a vocabulary of %d tokens, %s knows %d; make it again with the model's own", data.path, data.vocabulary, o->model, c->vocabulary);
    if (data.segments > c->segments)
        trouble("%s: has %d kinds of segments, %s knows %d; it takes single sentences only", data.path, data.segments, o->model, c->segments);
    char* vocabulary = format_string("%s/vocab.txt", o->model);
    int tokens;
    uint64_t hash = vocabulary_hash(vocabulary, &tokens);
    if (tokens && hash != data.hash)
        trouble("%s: made with another vocabulary (of %d tokens) than %s (%d tokens); make it again with the model's own", data.path, data.vocabulary,
                vocabulary, tokens);
    free(vocabulary);
    return data;
}

// Tokens of the longest sequence to plan for, when these splits (bits) are to be used.
static int longest_planned(const BertOptions* o, const BertConfig* c, const Tokens* data, int splits) {
    int longest = 0;
    for (int k = 0; data && k < SPLITS; k++)
        if (splits >> k & 1 && data->split[k].longest > longest) longest = data->split[k].longest;
    if (o->max_length > c->positions) usage_error("--max-length %d is more than the %d positions of %s", o->max_length, c->positions, o->model);
    if (longest > c->positions)
        trouble("%s: has a sequence of %d tokens, %s knows %d positions; make it again with --max-length %d", data->path, longest, o->model, c->positions,
                c->positions);
    if (o->max_length && longest > o->max_length)
        trouble("%s: has a sequence of %d tokens, more than --max-length %d; make it again with that --max-length", data->path, longest, o->max_length);
    if (o->max_length) return o->max_length;
    return longest ? longest : c->positions < 128 ? c->positions : 128;
}

static void write_predictions(FILE* f, const char* path, const Evaluation* e, const BertConfig* c, int n) {
    int failed = fputs("index\tprediction\n", f) < 0;
    for (int i = 0; i < n; i++) {
        if (c->class_name) failed |= fprintf(f, "%d\t%s\n", i, c->class_name[(int)e->predicted[i]]) < 0;
        else failed |= fprintf(f, "%d\t%.6g\n", i, e->predicted[i]) < 0;
    }
    if (failed) trouble("%s: cannot be written: disk full?", path);
    file_finish(f, path);
}

// A model that was made for other classes, or for classes in another order, says nothing about these.
static void check_classes(const BertOptions* o, const BertConfig* file, const Tokens* data) {
    int outputs = data->classes ? data->classes : 1;
    if (file->outputs != outputs) trouble("%s: the model has %d outputs but %s needs %d; fine-tune it first", o->model, file->outputs, data->path, outputs);
    for (int i = 0; file->class_name && i < data->classes; i++)
        if (strcmp(file->class_name[i], data->class_name[i]))
            trouble("%s: class %d is '%s' in the model and '%s' in %s; give tokenize_glue.py the model's --labels", o->model, i, file->class_name[i],
                    data->class_name[i], data->path);
}

static void run_eval(BertOptions* o, const BertConfig* file) {
    Tokens data = tokens_of_data(o, file);
    const TokenSplit* split = &data.split[o->split];
    if (!split->count) trouble("%s has no %s split to evaluate on", data.path, split_name[o->split]);
    int labelled = data.split[SPLIT_TRAIN].labelled || data.split[SPLIT_DEV].labelled || data.split[SPLIT_TEST].labelled;
    if (!file->outputs) trouble("%s: the model has no classifier; fine-tune it first", o->model);
    if (labelled) check_classes(o, file, &data);
    BertConfig c = bert_configure(o, file, labelled ? &data : NULL);   // text alone is predicted in the model's own classes
    Bert v = bert_planned(o, &c, longest_planned(o, &c, &data, 1 << o->split), 0);
    bert_allocate(&v);
    bert_load(&v, file);
    TokenBatch batch = token_batch_make(o->batch, v.tokens);
    // Before the evaluation: what cannot be written need not be computed.
    FILE *predictions = o->predictions ? file_create(o->predictions) : NULL, *logits = o->logits ? file_create(o->logits) : NULL;
    double start = device_seconds();
    Evaluation e = bert_evaluate(&v, &data, split, &batch);
    double seconds = device_seconds() - start;
    printf("%d %s sequences: ", split->count, split_name[o->split]);
    for (int k = 0; split->labelled && k < data.metrics; k++)
        printf("%s %.2f %%, ", data.metric[k], 100 * metric_of(data.metric[k], e.predicted, e.truth, split->count));
    if (split->labelled) printf("loss %.4f, ", e.loss);
    else printf("no labels, predictions only, ");
    printf("%.1f sequences/s\n", split->count / seconds);
    if (predictions) write_predictions(predictions, o->predictions, &e, &c, split->count);
    if (logits) {
        size_t n = (size_t)split->count * (size_t)c.outputs;
        if (fwrite(e.logits, sizeof(float), n, logits) != n) trouble("%s: cannot be written: disk full?", o->logits);
        file_finish(logits, o->logits);
    }
    evaluation_free(&e);
    token_batch_free(&batch);
    bert_free(&v);
    tokens_close(&data);
}

static int run_training(BertOptions* o, Option* table, const BertConfig* file) {
    signals_watch();
    Tokens data = tokens_of_data(o, file);
    const TokenSplit *train = &data.split[SPLIT_TRAIN], *dev = &data.split[SPLIT_DEV];
    int has_dev = dev->count && dev->labelled;
    BertConfig c = bert_configure(o, file, &data);
    if (!train->count) trouble("%s has no training split", data.path);
    if (!train->labelled) trouble("%s: its training split has no labels; it can only be used with --eval --split train --predictions FILE", data.path);
    if (o->batch > train->count) trouble("--batch %d is larger than the %d training sequences of %s", o->batch, train->count, data.path);
    int batches = train->count / o->batch, per_epoch = batches / o->accumulate > 0 ? batches / o->accumulate : 1;
    int64_t total = o->steps ? o->steps : (int64_t)o->epochs * batches / o->accumulate;
    int64_t eval_every = o->eval_every ? o->eval_every : per_epoch, save_every = o->save_every ? o->save_every : per_epoch;
    if (!total) usage_error("nothing to do: %d epochs of %d batches make no step of %d batches", o->epochs, batches, o->accumulate);
    int tokens = longest_planned(o, &c, &data, 1 << SPLIT_TRAIN | (has_dev && o->eval_every >= 0) << SPLIT_DEV);
    if (o->budget) bert_fit_budget(o, &c, tokens);

    if (o->out) run_claim(o->out, o->model, o->resume != NULL, o->overwrite);
    Bert v = bert_planned(o, &c, tokens, 1);
    char bytes[32], score_name[64] = "dev";
    for (int k = 0; k < data.metrics; k++) snprintf(score_name + strlen(score_name), sizeof score_name - strlen(score_name), " %s", data.metric[k]);
    printf("%s, %s\nmodel: %s, %d layers, %d wide, %d outputs, dropout %g\ndata: %s (%s), %d training and %d dev sequences of at most %d tokens\narena: %s\n",
           device_name(), precision_name(o->precision), o->model, c.layers, c.width, c.outputs, c.dropout, data.path, data.task, train->count, has_dev ? dev->count : 0, tokens,
           human_bytes(v.plan.bytes, bytes));
    char* vocabulary = format_string("%s/vocab.txt", o->model);
    if (access(vocabulary, F_OK)) printf("%s: there is none, so only the size of the data's vocabulary could be compared with the model's\n", vocabulary);
    free(vocabulary);
    fflush(stdout);
    if (o->out) v.method.data_hash = (int64_t)hash_bytes(HASH_START, data.map, data.bytes);
    bert_allocate(&v);
    int64_t step = 0, saved = -1;   // steps done; how many of them are on disk
    double score = NAN, best = -INFINITY;
    char* state = o->out ? state_path(o->out) : NULL;
    if (o->resume) {
        if (access(state, F_OK)) trouble("%s: there is none: the run stopped before its first save; start it again with --overwrite", state);
        state_load(&v.method, &v.params, state, &step, &best);
        saved = step;
        printf("resuming after step %lld of %lld%s\n", (long long)step, (long long)total, step < total ? "" : ": nothing is left to do");
    } else if (o->from_scratch) {
        for (int i = 0; i < v.params.count; i++) initialise(&v, &v.params.param[i]);
        params_round(&v.params);
    } else {
        bert_load(&v, file);
    }
    if (!o->out) printf("nothing will be saved: no --out was given\n");

    Log* log = log_open(o->out, step, total, o->log_every, o->overwrite || o->resume);
    if (o->out && !o->resume) {
        run_clear(o->out);
        write_options(o->out, table);
    }
    TokenOrder order = token_order_make(train, o->batch, o->group_by_length, (uint64_t)o->method.seed);
    TokenBatch batch = token_batch_make(o->batch, tokens);
    int64_t begun = step;
    double start = device_seconds(), samples = 0;
    int status = 0;
    timer_enable(1);
    while (step < total) {
        double t0 = device_seconds();
        StepResult r = bert_step(&v, &data, &order, &batch, step, total);
        double seconds = device_seconds() - t0, n = (double)o->batch * o->accumulate;
        if ((*r.broke || r.unfinished) && !broken_parameter(&v.params)) {   // the step left everything as it was
            bert_save_run(&v, step, best);
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
        int last = step == total, evaluates = has_dev && o->eval_every >= 0 && (last || step % eval_every == 0);
        int stopped = signal_seen(), saves = last || stopped || step % save_every == 0;
        const char* broken = saves || evaluates ? broken_parameter(&v.params) : NULL;
        if (broken) {
            log_close(log);
            end_diverged(o->out, step, broken, "after its update", saved);
        }
        score = NAN;
        if (evaluates) {
            timer_enable(0);
            Evaluation e = bert_evaluate(&v, &data, dev, &batch);
            score = evaluation_score(&e, &data, dev->count);
            evaluation_free(&e);
            timer_enable(1);
        }
        LogLine line = {step, (double)(step * o->accumulate) / batches, r.loss, r.rate, r.norm, score, 1e3 * seconds, n / seconds,
                        method_kept_bytes(&v.method, &v.plan), v.plan.bytes};
        log_step(log, &line);
        if (score > best) {
            best = score;
            if (o->out) bert_save(&v, o->out, "model-best");
        }
        if (saves) {
            bert_save_run(&v, step, best);
            saved = step;
        }
        if (stopped && !last) {
            status = say_stopped(log, step, o->out);
            break;
        }
    }
    log_close(log);
    if (samples > 0) print_summary(&v.plan, score_name, "sequences", step, score, best, device_seconds() - start, samples);
    token_order_free(&order);
    token_batch_free(&batch);
    free(state);
    bert_free(&v);
    tokens_close(&data);
    return status;
}

int main(int argc, char** argv) {
    device_prepare(argv);
    BertOptions o = bert_defaults();
    Option table[OPTION_ROWS];
    bert_options(table, &o);
    options_parse(table, argc, argv, "train_bert -m MODEL -d DATA [-o RUN] [options]", VERSION);
    if (o.resume) {
        char* path = format_string("%s/options.txt", o.resume);
        options_resume(table, path);
        free(path);
        if (option_find(table, "out")->given && strcmp(o.out, o.resume)) usage_error("--resume %s goes on in %s: leave out --out", o.resume, o.resume);
        o.out = o.resume;
    }
    if (o.dropout < 0 && o.dropout != -1) usage_error("--dropout %g: a probability is expected, or -1 for the checkpoint's own", o.dropout);
    if (o.resume && o.eval) usage_error("--resume goes on with training: to use what it made, give --model %s/model instead", o.resume);
    if (o.eval) refuse_given(table, "eval", "out plan budget from-scratch overwrite steps epochs");
    if ((o.logits || o.predictions) && !o.eval) usage_error("--%s is written by --eval: add it", o.logits ? "logits" : "predictions");
    fill_preset_defaults(&o.method, &o.update);
    if (!o.model) usage_error("--model is missing: a directory with config.json and model.safetensors");
    device_threads(o.threads);
    BertConfig file = bert_config_read(o.model, !(o.from_scratch || o.plan || o.resume));
    if (o.plan) {
        Tokens data;
        if (o.data) data = tokens_of_data(&o, &file);
        BertConfig c = bert_configure(&o, &file, o.data ? &data : NULL);
        int tokens = longest_planned(&o, &c, o.data ? &data : NULL, 1 << SPLIT_TRAIN | 1 << SPLIT_DEV);
        if (o.budget) bert_fit_budget(&o, &c, tokens);
        bert_print_plan(&o, &c, tokens);
        return 0;
    }
    if (o.eval) return run_eval(&o, &file), 0;
    return run_training(&o, table, &file);
}
