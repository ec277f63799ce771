// prebr.h: the method. What each tensor keeps for backward, where it lies, which columns learn, and how they are updated.
//
// Read in this order:
//   1. Plan and arena     every tensor is named, with its life; then laid out in one allocation
//   2. Presets            what learns, what a linear layer keeps of its input
//   3. Linear layers      forward and backward under a preset (PreBackRazor, Yu et al., CVPR 2024)
//   4. Arms               groups, budgets, sampling and the bandit (JointSpar, Liu & Mozafari, ICML 2022)
//   5. Update             rates per kind of parameter, clipping, AdamW and SGD on what learned
//   6. Layers             what both models' layers keep, and for how long
//   7. State              everything that the next step depends on, as one file
//   8. Around a run       what both trainers' mains need: options, budget, checks, what went wrong, the summary
//
// The trainers include this file and call kernels/; what a model computes is said there.
#ifndef PREBR_H
#define PREBR_H

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/options.h"
#include "data/run.h"
#include "data/safetensors.h"
#include "data/trouble.h"
#include "kernels/attention.h"
#include "kernels/bandit.h"
#include "kernels/columns.h"
#include "kernels/device.h"
#include "kernels/gelu.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/philox.h"
#include "kernels/topk.h"

// ---------------------------------------------------------------------------------------------------------------------
// 1. Plan and arena
//
// A step is a row of ticks: forward ops count up, backward ops go on counting. A tensor lives from its first tick to its
// last one; two tensors whose lives do not meet may lie in the same place. The plan knows everything before a byte is
// allocated, and the arena is exactly as large as the plan says.

typedef enum { REGION_PARAMETERS, REGION_GRADIENTS, REGION_OPTIMIZER, REGION_KEPT, REGION_SCRATCH, REGION_COUNT } Region;
static const char* const region_name[REGION_COUNT] = {"parameters", "gradients", "optimizer state", "kept activations", "scratch"};

enum { TICK_ALWAYS = INT_MAX };   // as `last`: lives for the whole run and shares its place with nothing

typedef struct {
    char name[48];
    int layer;               // -1: belongs to no layer
    Region region;
    int64_t rows, cols;
    int item;                // bytes of an element
    int first, last;         // ticks, both included
    size_t bytes, offset;    // bytes are a multiple of 64
    void** pointer[2];       // set by arena_allocate; the second may be NULL
} PlanTensor;

typedef struct {
    PlanTensor* tensor;
    int count, capacity;
    size_t bytes;            // of the arena, after plan_place
} Plan;

// Adds a tensor [rows, cols] of `item` bytes an element. pointer and pointer2 (NULL allowed) receive its address.
static void plan_add(Plan* p, Region region, int layer, const char* name, int64_t rows, int64_t cols, int item, int first, int last,
                     void** pointer, void** pointer2) {
    if (p->count == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 256;
        PlanTensor* grown = (PlanTensor*)allocate((size_t)capacity, sizeof *grown);
        if (p->count) memcpy(grown, p->tensor, (size_t)p->count * sizeof *grown);
        free(p->tensor);
        p->tensor = grown;
        p->capacity = capacity;
    }
    PlanTensor* t = &p->tensor[p->count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->layer = layer;
    t->region = region;
    t->rows = rows;
    t->cols = cols;
    t->item = item;
    t->first = first;
    t->last = last;
    t->bytes = ((size_t)rows * (size_t)cols * (size_t)item + 63) / 64 * 64;
    t->pointer[0] = pointer;
    t->pointer[1] = pointer2;
}

// Adds an activation that forward writes at tick `first` and reads until `last`, and backward reads from back_first to back_last.
// keeps = 1: one place for all that time. Else forward's copy passes, and backward's (through `again`) is made anew; back_first < 0:
// backward has no use for it.
static void plan_activation(Plan* p, int keeps, int layer, const char* name, int64_t rows, int64_t cols, int item, int first, int last,
                            int back_first, int back_last, void** in, void** again) {
    if (keeps) {
        plan_add(p, REGION_KEPT, layer, name, rows, cols, item, first, back_last, in, again);
        return;
    }
    plan_add(p, REGION_SCRATCH, layer, name, rows, cols, item, first, last, in, NULL);
    if (back_first >= 0) plan_add(p, REGION_SCRATCH, layer, name, rows, cols, item, back_first, back_last, again, NULL);
}

// Tensors that last come first (in the order they were added), then the passing ones, largest first.
static int plan_order(const void* a, const void* b) {
    const PlanTensor *x = *(const PlanTensor* const*)a, *y = *(const PlanTensor* const*)b;
    int x_stays = x->last == TICK_ALWAYS, y_stays = y->last == TICK_ALWAYS;
    if (x_stays != y_stays) return y_stays - x_stays;
    if (!x_stays && x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int plan_by_offset(const void* a, const void* b) {
    const PlanTensor *x = *(const PlanTensor* const*)a, *y = *(const PlanTensor* const*)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

// Gives every tensor its offset: each in turn takes the lowest gap between those already placed whose lives meet its own.
static void plan_place(Plan* p) {
    PlanTensor** order = (PlanTensor**)allocate((size_t)p->count + 1, sizeof *order);
    PlanTensor** meeting = (PlanTensor**)allocate((size_t)p->count + 1, sizeof *meeting);
    for (int i = 0; i < p->count; i++) order[i] = &p->tensor[i];
    qsort(order, (size_t)p->count, sizeof *order, plan_order);
    p->bytes = 0;
    for (int i = 0; i < p->count; i++) {
        PlanTensor* t = order[i];
        size_t offset = 0;
        if (t->last == TICK_ALWAYS) {
            offset = p->bytes;
        } else {
            int n = 0;
            for (int j = 0; j < i; j++)
                if (order[j]->last == TICK_ALWAYS || (order[j]->first <= t->last && t->first <= order[j]->last)) meeting[n++] = order[j];
            qsort(meeting, (size_t)n, sizeof *meeting, plan_by_offset);
            for (int j = 0; j < n; j++) {
                if (meeting[j]->offset >= offset + t->bytes) break;
                if (meeting[j]->offset + meeting[j]->bytes > offset) offset = meeting[j]->offset + meeting[j]->bytes;
            }
        }
        t->offset = offset;
        if (offset + t->bytes > p->bytes) p->bytes = offset + t->bytes;
    }
    free(order);
    free(meeting);
}

static size_t plan_region_bytes(const Plan* p, Region region) {
    size_t sum = 0;
    for (int i = 0; i < p->count; i++)
        if (p->tensor[i].region == region) sum += p->tensor[i].bytes;
    return sum;
}

// Bytes alive at a tick; with REGION_COUNT over all regions.
static size_t plan_alive_bytes(const Plan* p, Region region, int tick) {
    size_t sum = 0;
    for (int i = 0; i < p->count; i++) {
        const PlanTensor* t = &p->tensor[i];
        if ((region == REGION_COUNT || t->region == region) && (t->last == TICK_ALWAYS || (t->first <= tick && tick <= t->last))) sum += t->bytes;
    }
    return sum;
}

// The tick at which most is alive.
static int plan_peak_tick(const Plan* p) {
    int peak = 0;
    size_t most = 0;
    for (int i = 0; i < p->count; i++) {   // a peak begins where some tensor begins
        if (p->tensor[i].last == TICK_ALWAYS) continue;
        size_t alive = plan_alive_bytes(p, REGION_COUNT, p->tensor[i].first);
        if (alive > most) {
            most = alive;
            peak = p->tensor[i].first;
        }
    }
    return peak;
}

static void plan_print_pair(const char* label, size_t this_bytes, size_t full_bytes) {
    char a[32], b[32];
    printf("  %-34s %12s %12s\n", label, human_bytes(this_bytes, a), human_bytes(full_bytes, b));
}

// Bytes of a kept activation, by name, over all layers (layer < 0), or of everything that one layer keeps (name NULL).
static size_t plan_kept_bytes(const Plan* p, const char* name, int layer) {
    size_t sum = 0;
    for (int i = 0; i < p->count; i++) {
        const PlanTensor* t = &p->tensor[i];
        if (t->region == REGION_KEPT && (!name || !strcmp(t->name, name)) && (layer < 0 || t->layer == layer)) sum += t->bytes;
    }
    return sum;
}

// One line for each name among the kept activations of `from` that `seen` (NULL: nothing) does not have.
static void plan_print_kept(const Plan* from, const Plan* seen, const Plan* p, const Plan* full) {
    for (int i = 0; i < from->count; i++) {
        const PlanTensor* t = &from->tensor[i];
        int first = t->region == REGION_KEPT && !(seen && plan_kept_bytes(seen, t->name, -1));
        for (int j = 0; first && j < i; j++) first = from->tensor[j].region != REGION_KEPT || strcmp(from->tensor[j].name, t->name);
        if (first) plan_print_pair(t->name, plan_kept_bytes(p, t->name, -1), plan_kept_bytes(full, t->name, -1));
    }
}

// The whole plan for a person, beside that of the same run under `full`.
static void plan_print(const Plan* p, const Plan* full, int layers) {
    int peak = plan_peak_tick(p), full_peak = plan_peak_tick(full);
    printf("\n  %-34s %12s %12s\n", "bytes by region", "this run", "full");
    for (int r = 0; r < REGION_KEPT; r++)
        plan_print_pair(region_name[r], plan_region_bytes(p, (Region)r), plan_region_bytes(full, (Region)r));
    plan_print_pair("kept activations (all together)", plan_region_bytes(p, REGION_KEPT), plan_region_bytes(full, REGION_KEPT));
    plan_print_pair("  of them alive at the peak", plan_alive_bytes(p, REGION_KEPT, peak), plan_alive_bytes(full, REGION_KEPT, full_peak));
    plan_print_pair("scratch alive at the peak", plan_alive_bytes(p, REGION_SCRATCH, peak), plan_alive_bytes(full, REGION_SCRATCH, full_peak));
    plan_print_pair("gaps between tensors", p->bytes - plan_alive_bytes(p, REGION_COUNT, peak), full->bytes - plan_alive_bytes(full, REGION_COUNT, full_peak));
    plan_print_pair("arena: the peak", p->bytes, full->bytes);
    printf("  %-34s %12zu %12zu\n", "  to the byte", p->bytes, full->bytes);
    printf("\n  %-34s %12s %12s\n", "kept activations by kind", "this run", "full");
    plan_print_kept(p, NULL, p, full);
    plan_print_kept(full, p, p, full);
    printf("\n  %-34s %12s %12s\n", "kept activations by layer", "this run", "full");
    for (int layer = 0; layer < layers; layer++) {
        char label[48];
        snprintf(label, sizeof label, "layer %d", layer);
        plan_print_pair(label, plan_kept_bytes(p, NULL, layer), plan_kept_bytes(full, NULL, layer));
    }
    size_t in_layers = 0, full_in_layers = 0;
    for (int layer = 0; layer < layers; layer++) {
        in_layers += plan_kept_bytes(p, NULL, layer);
        full_in_layers += plan_kept_bytes(full, NULL, layer);
    }
    plan_print_pair("shared by layers, and outside them", plan_region_bytes(p, REGION_KEPT) - in_layers, plan_region_bytes(full, REGION_KEPT) - full_in_layers);
}

static void plan_free(Plan* p) {
    free(p->tensor);
    memset(p, 0, sizeof *p);
}

// One allocation, zeroed; every pointer of the plan is set. Trouble when it would not fit into free memory.
static char* arena_allocate(const Plan* p) {
    char need[32], have[32];
    size_t available = device_memory_available();
    if (available && p->bytes > available)
        trouble("the plan needs %s but only %s of memory are free; try a smaller --batch with --accumulate, --recompute block, or --budget",
                human_bytes(p->bytes, need), human_bytes(available, have));
    char* arena = (char*)device_alloc(p->bytes);
    if (!arena) trouble("cannot allocate %s; try a smaller --batch or --budget", human_bytes(p->bytes, need));
    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < 2; k++)
            if (p->tensor[i].pointer[k]) *p->tensor[i].pointer[k] = arena + p->tensor[i].offset;
    return arena;
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. Presets

typedef enum { METHOD_FULL, METHOD_HEAD, METHOD_BITFIT, METHOD_BACKRAZOR, METHOD_PREBR, METHOD_PREBRPP } Preset;
typedef enum { POLICY_BANDIT, POLICY_UNIFORM, POLICY_NORM } Policy;
typedef enum { GELU_EXACT, GELU_REGELU2, GELU_AUTO } Gelu;
typedef enum { ATTENTION_FLASH, ATTENTION_MATERIALIZED } AttentionKind;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_BLOCK } Recompute;

#define METHOD_CHOICES "full|head|bitfit|backrazor|prebr|prebr++"
#define POLICY_CHOICES "bandit|uniform|norm"
#define GELU_CHOICES "exact|regelu2|auto"
#define ATTENTION_CHOICES "flash|materialized"
#define RECOMPUTE_CHOICES "none|attention|block"

typedef struct {
    int preset, policy, gelu, attention, recompute;   // the enums above, as options.h stores choices
    double keep;             // share of arms that learn in a step (prebr, prebr++)
    double prune;            // share of elements dropped (backrazor, prebr)
    double alpha, p_min;     // bandit
    int column_block, resample;
    int importance_weight, detach_frozen;
    int64_t seed;
} MethodOptions;

// What a parameter is decides its rate, its decay and whether it learns. PATCH: a matrix outside the layers (patch embedding, pooler).
typedef enum { PARAM_MATRIX, PARAM_BIAS, PARAM_NORM, PARAM_EMBEDDING, PARAM_PATCH, PARAM_HEAD, PARAM_HEAD_BIAS } ParamKind;

static int preset_samples(int preset) { return preset == METHOD_PREBR || preset == METHOD_PREBRPP; }

// Whether gradients flow below the head at all.
static int preset_goes_deep(int preset) { return preset != METHOD_HEAD; }

static int preset_learns(int preset, ParamKind kind) {
    if (kind == PARAM_HEAD || kind == PARAM_HEAD_BIAS) return 1;
    if (preset == METHOD_HEAD) return 0;
    return preset == METHOD_BITFIT ? kind == PARAM_BIAS : 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Linear layers
//
// dW = dY^T X needs X, and X is most of the memory. Often backward can have X again for little (a norm's output from its input, GELU's
// from its input, what attention keeps for itself): then the layer itself keeps nothing, and the sheared form is cut from it on the
// spot, or, of columns, only these are made. Otherwise forward stores the sheared form. All give the same bits.

typedef enum { KEEP_NOTHING, KEEP_ALL, KEEP_TOPK, KEEP_COLUMNS } Keep;

typedef struct {
    const floatx* w;         // [cout, cin]
    const floatx* b;         // [cout] or NULL
    float* dw;               // [cout, cin], or compact [cout, columns], or NULL when nothing learns in this step
    float* db;               // [cout] or NULL when the bias does not learn
    int cin, cout;
    int at_hand;             // backward is given the whole input
    int packed_by_gelu;      // its columns are packed by sheared_gelu, which makes its input
    int kept_first, kept_last;   // else: the ticks between which it is kept
    Keep keep;               // in this step
    int group, arm, arms;    // its arms in their group; arms = 0 where nothing is sampled
    int n;                   // sampled column blocks in this step
    int* blocks;             // [n] device
    int* slots;              // [cin / width] device: the place of each block in `blocks`, or -1
    int* updates;            // [n] device: number of each sampled arm's update, this one included
    float* scale;            // [n] device: importance weights
    floatx* kept;            // TOPK: values [batch, capacity]; COLUMNS: [t, n*width]
    uint32_t* mask;          // TOPK: [batch, ceil(tokens*cin/32)]
} Linear;

// What all linear layers of a run share.
typedef struct {
    MethodOptions o;
    int tokens;              // of a sample in this batch
    int measure_inputs;      // this step's forward measures arms for policy `norm`
    int storing;             // forward is followed by backward (0 in evaluation)
    int micro;               // number of the micro-batch in the step; gradients add up from the second on
    void* work;              // scratch of the kernels
    float* threshold;        // [batch]
    int* thirds;             // {0, 1, 2}: q, k, v as column blocks of [T, 3C]
    double* squares[4];      // [arms] of each group
} Shear;

static int linear_learns(const Linear* l) { return l->keep != KEEP_NOTHING; }
static int topk_words(int n) { return (n + 31) / 32; }
static int block_width(const MethodOptions* o, const Linear* l) { return o->preset == METHOD_PREBRPP ? o->column_block : l->cin; }

// y [b*tokens, cout] = x w^T + bias (+ residual), and keeps of x what backward will need.
static void sheared_forward(const Shear* s, Linear* l, floatx* y, const floatx* x, const floatx* residual, int b) {
    int t = b * s->tokens, n = s->tokens * l->cin;
    timer_start(TIME_GEMM);
    linear_forward(y, x, l->w, l->b, residual, t, l->cin, l->cout);
    if (!s->storing) return;
    timer_start(TIME_SHEAR);
    if (s->measure_inputs && l->arms)
        columns_squares(s->squares[l->group] + l->arm, x, s->micro > 0, block_width(&s->o, l), t, l->cin, s->work);
    if (l->at_hand) return;
    if (l->keep == KEEP_TOPK) {
        topk_threshold(s->threshold, x, s->o.prune, b, n);
        topk_pack(l->kept, l->mask, x, s->threshold, topk_capacity(n, s->o.prune), b, n);
    }
    if (l->keep == KEEP_COLUMNS && !l->packed_by_gelu) columns_gather(l->kept, x, l->blocks, l->n, s->o.column_block, t, l->cin);
}

// act [b*tokens, cin of l] = GELU of hidden, for l to read; with ReGELU2 also its codes, and in the same pass the columns of act that l keeps.
static void sheared_gelu(const Shear* s, Linear* l, floatx* act, uint8_t* codes, const floatx* hidden, int b) {
    int t = b * s->tokens, packs = s->storing && !l->at_hand && l->keep == KEEP_COLUMNS;
    size_t n = (size_t)t * (size_t)l->cin;
    timer_start(TIME_ACTIVATION);
    if (s->o.gelu == GELU_EXACT) gelu_forward(act, hidden, n);
    else if (packs) regelu2_forward_columns(act, codes, l->kept, hidden, l->slots, l->n, s->o.column_block, t, l->cin);
    else regelu2_forward(act, codes, hidden, n);
}

// dact becomes the gradient of hidden, from that of act.
static void sheared_gelu_backward(const Shear* s, floatx* dact, const uint8_t* codes, const floatx* hidden, size_t n) {
    timer_start(TIME_ACTIVATION);
    if (s->o.gelu == GELU_EXACT) gelu_backward(dact, dact, hidden, n);
    else regelu2_backward(dact, dact, codes, n);
}

// Where backward finds an input that is at hand.
typedef enum { INPUT_THERE, INPUT_OF_NORM, INPUT_OF_GELU } InputSource;
typedef struct {
    InputSource source;
    floatx* x;               // [t, cin]: the whole input is there, or is to be made there if all of it is needed
    const floatx* from;      // [t, cin] what the norm or GELU read
    const float *mean, *rstd, *gamma, *beta;   // of the norm
} Input;

static Input input_there(floatx* x) { return (Input){INPUT_THERE, x, NULL, NULL, NULL, NULL, NULL}; }
static Input input_of_gelu(floatx* x, const floatx* from) { return (Input){INPUT_OF_GELU, x, from, NULL, NULL, NULL, NULL}; }
static Input input_of_norm(floatx* x, const floatx* from, const float* mean, const float* rstd, const float* gamma, const float* beta) {
    return (Input){INPUT_OF_NORM, x, from, mean, rstd, gamma, beta};
}

// The columns of an input that learn, packed.
static void input_columns(const Linear* l, floatx* packed, Input in, int width, int t) {
    timer_start(in.source == INPUT_OF_NORM ? TIME_NORM : in.source == INPUT_OF_GELU ? TIME_ACTIVATION : TIME_SHEAR);
    if (in.source == INPUT_THERE) columns_gather(packed, in.x, l->blocks, l->n, width, t, l->cin);
    if (in.source == INPUT_OF_NORM) layernorm_remake_columns(packed, in.from, in.mean, in.rstd, in.gamma, in.beta, l->blocks, l->n, width, t, l->cin);
    if (in.source == INPUT_OF_GELU) gelu_forward_columns(packed, in.from, l->blocks, l->n, width, t, l->cin);
}

// All of it.
static const floatx* input_whole(const Linear* l, Input in, int t) {
    timer_start(in.source == INPUT_OF_NORM ? TIME_NORM : TIME_ACTIVATION);
    if (in.source == INPUT_OF_NORM) layernorm_remake(in.x, in.from, in.mean, in.rstd, in.gamma, in.beta, t, l->cin);
    if (in.source == INPUT_OF_GELU) gelu_forward(in.x, in.from, (size_t)t * (size_t)l->cin);
    return in.x;
}

// The learning part of the input of l, from `in` where it is at hand, else from what was kept. work [b*tokens, cin] may be overwritten.
static const floatx* sheared_input(const Shear* s, Linear* l, Input in, floatx* work, int b) {
    int t = b * s->tokens, n = s->tokens * l->cin, capacity = topk_capacity(n, s->o.prune);
    if (l->keep == KEEP_ALL) return input_whole(l, in, t);
    if (l->keep == KEEP_COLUMNS && !l->at_hand) return l->kept;
    if (l->keep == KEEP_COLUMNS) {
        input_columns(l, work, in, s->o.column_block, t);
        return work;
    }
    if (l->at_hand) {
        const floatx* x = input_whole(l, in, t);
        timer_start(TIME_SHEAR);
        topk_threshold(s->threshold, x, s->o.prune, b, n);
        topk_prune(work, x, s->threshold, capacity, b, n);
    } else {
        timer_start(TIME_SHEAR);
        topk_unpack(work, l->kept, l->mask, capacity, b, n);
    }
    return work;
}

// Gradients of the weights that learn and of the bias, then dx [b*tokens, cin] = dy w. in: where the input is at hand, else it is not looked
// at. dx serves as scratch before it is written, so it must not be dy or in.x.
static void sheared_backward(const Shear* s, Linear* l, floatx* dx, const floatx* dy, Input in, int b) {
    int t = b * s->tokens, bias = l->db != NULL;
    float beta = s->micro > 0;
    if (linear_learns(l)) {
        const floatx* input = sheared_input(s, l, in, dx, b);
        int columns = l->keep == KEEP_COLUMNS ? l->n * s->o.column_block : l->cin;
        timer_start(TIME_GEMM);
        if (bias && beta == 0 && linear_backward_weight_bias(l->dw, l->db, dy, input, t, columns, l->cout)) bias = 0;
        else linear_backward_weight(l->dw, dy, input, beta, t, columns, l->cout);
    }
    timer_start(TIME_OTHER);
    if (bias) linear_backward_bias(l->db, dy, beta, t, l->cout, s->work);
    timer_start(TIME_GEMM);
    linear_backward_input(dx, dy, l->w, 0, t, l->cin, l->cout);
}

// Materialized attention under BackRazor keeps q, k, v and the softmax weights pruned, each in its own values and mask.
typedef struct {
    floatx* values[4];       // q, k, v [batch, capacity of tokens*width]; weights [batch, capacity of heads*tokens*tokens]
    uint32_t* mask[4];
} Razor;

static int razor_elements(int k, int tokens, int heads, int width) { return k < 3 ? tokens * width : heads * tokens * tokens; }

// They are kept from the tick of attention's forward to that of its backward. batch, tokens: as many as there may be.
static void razor_plan(Plan* p, Razor* r, int layer, double prune, int batch, int tokens, int heads, int width, int floatx_bytes, int first, int last) {
    static const char* const names[4] = {"q", "k", "v", "softmax weights"};
    for (int k = 0; k < 4; k++) {
        char name[48];
        int n = razor_elements(k, tokens, heads, width);
        snprintf(name, sizeof name, "%s, values", names[k]);
        plan_add(p, REGION_KEPT, layer, name, batch, topk_capacity(n, prune), floatx_bytes, first, last, (void**)&r->values[k], NULL);
        snprintf(name, sizeof name, "%s, mask", names[k]);
        plan_add(p, REGION_KEPT, layer, name, batch, topk_words(n), 4, first, last, (void**)&r->mask[k], NULL);
    }
}

// part [b*tokens, width] may be overwritten.
static void razor_keep(const Shear* s, Razor* r, floatx* part, const floatx* qkv, const floatx* probs, int b, int heads, int width) {
    timer_start(TIME_SHEAR);
    for (int k = 0; k < 4; k++) {
        int n = razor_elements(k, s->tokens, heads, width);
        if (k < 3) columns_gather(part, qkv, s->thirds + k, 1, width, b * s->tokens, 3 * width);
        const floatx* x = k < 3 ? part : probs;
        topk_threshold(s->threshold, x, s->o.prune, b, n);
        topk_pack(r->values[k], r->mask[k], x, s->threshold, topk_capacity(n, s->o.prune), b, n);
    }
}

static void razor_restore(const Shear* s, const Razor* r, floatx* part, floatx* qkv, floatx* probs, int b, int heads, int width) {
    timer_start(TIME_SHEAR);
    for (int k = 0; k < 4; k++) {
        int n = razor_elements(k, s->tokens, heads, width);
        topk_unpack(k < 3 ? part : probs, r->values[k], r->mask[k], topk_capacity(n, s->o.prune), b, n);
        if (k < 3) columns_scatter(qkv, part, s->thirds + k, 1, width, b * s->tokens, 3 * width);
    }
}

// Bytes of activations that this layer itself keeps in this step, with its input as long as it may be.
static size_t linear_kept_bytes(const Shear* s, const Linear* l, int batch, int tokens) {
    if (l->at_hand) return 0;
    size_t n = (size_t)tokens * (size_t)l->cin;
    if (l->keep == KEEP_COLUMNS) return (size_t)batch * (size_t)tokens * (size_t)(l->n * s->o.column_block) * sizeof(floatx);
    if (l->keep == KEEP_TOPK)
        return (size_t)batch * ((size_t)topk_capacity((int)n, s->o.prune) * sizeof(floatx) + (size_t)topk_words((int)n) * sizeof(uint32_t));
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Arms
//
// An arm is what is sampled: a weight matrix (prebr) or a block of its input columns (prebr++; q, k and v share their input and so
// their arms). Arms that cost the same memory form a group: all layers' qkv, all proj, all fc1, all fc2. A group draws an exact number
// of arms, so it owns pools of an exact size, and its layers take their share of them anew at every resampling.

typedef struct {
    int arms, budget;
    double *p, *squares;     // [arms] probabilities; squared norms measured last
    int *sampled, *updates;  // [arms] drawn now; updates so far
    int *slots;              // [arms]
    int *block_pool, *update_pool;   // [budget]
    float *scale_pool;       // [budget]
    float* gradient_pool;    // budget compact gradients
    floatx* kept_pool;       // budget kept inputs (values); NULL where the input is at hand
    uint32_t* mask_pool;
} Group;

typedef struct {
    Shear shear;
    Linear* linear;          // [linears], layer by layer, `groups` of them each
    int linears, groups;
    Group group[4];
    int batch, tokens;       // tokens of a sample at most, as planned; shear.tokens may be less from batch to batch
    int64_t data_hash;       // of what the run learns from, which must not change before it is resumed
} Method;

static const char* group_pool_name(int group) {
    static const char* const name[4] = {"qkv inputs (pool)", "proj inputs (pool)", "fc1 inputs (pool)", "fc2 inputs (pool)"};
    return name[group];
}

static Linear* method_linear(Method* m, int group, int layer) { return &m->linear[layer * m->groups + group]; }

// Plans what the method itself needs: gradients of matrices, arms and kept inputs, a few numbers. Every Linear has cin, cout, at_hand and its ticks
// set before; a pool lives as long as the first layer's input, which is kept longest.
static void method_plan(Method* m, Plan* plan, int floatx_bytes) {
    const MethodOptions* o = &m->shear.o;
    int layers = m->linears / m->groups;
    plan_add(plan, REGION_SCRATCH, -1, "numbers of q, k, v", 3, 1, 4, 0, TICK_ALWAYS, (void**)&m->shear.thirds, NULL);
    plan_add(plan, REGION_SCRATCH, -1, "thresholds", m->batch, 1, 4, 0, TICK_ALWAYS, (void**)&m->shear.threshold, NULL);
    for (int g = 0; g < m->groups; g++) {
        Group* group = &m->group[g];
        Linear* example = method_linear(m, g, 0);
        int64_t n = (int64_t)m->tokens * example->cin, capacity = topk_capacity((int)n, o->prune), words = topk_words((int)n);
        int width = block_width(o, example), per_layer = example->cin / width;
        char name[48];
        static const char* const group_name[4] = {"qkv", "proj", "fc1", "fc2"};
        group->arms = preset_samples(o->preset) ? layers * per_layer : 0;
        group->budget = (int)(o->keep * group->arms + 0.5);
        if (group->budget < 1) group->budget = 1;
        for (int layer = 0; layer < layers; layer++) {
            Linear* l = method_linear(m, g, layer);
            l->group = g;
            l->arms = group->arms ? per_layer : 0;
            l->arm = layer * per_layer;
            l->keep = o->preset == METHOD_FULL ? KEEP_ALL : o->preset == METHOD_BACKRAZOR ? KEEP_TOPK : KEEP_NOTHING;
            if (l->keep == KEEP_NOTHING) continue;
            snprintf(name, sizeof name, "%s.weight gradient", group_name[g]);
            plan_add(plan, REGION_GRADIENTS, layer, name, l->cout, l->cin, 4, 0, TICK_ALWAYS, (void**)&l->dw, NULL);
            if (l->keep == KEEP_TOPK && !l->at_hand) {
                snprintf(name, sizeof name, "%s input values", group_name[g]);
                plan_add(plan, REGION_KEPT, layer, name, m->batch, capacity, floatx_bytes, l->kept_first, l->kept_last, (void**)&l->kept, NULL);
                snprintf(name, sizeof name, "%s input mask", group_name[g]);
                plan_add(plan, REGION_KEPT, layer, name, m->batch, words, 4, l->kept_first, l->kept_last, (void**)&l->mask, NULL);
            }
        }
        if (!group->arms) continue;
        snprintf(name, sizeof name, "%s arms", group_name[g]);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->arms, 1, 8, 0, TICK_ALWAYS, (void**)&group->p, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->arms, 1, 8, 0, TICK_ALWAYS, (void**)&group->squares, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->arms, 1, 4, 0, TICK_ALWAYS, (void**)&group->sampled, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->arms, 1, 4, 0, TICK_ALWAYS, (void**)&group->updates, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->arms, 1, 4, 0, TICK_ALWAYS, (void**)&group->slots, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->budget, 1, 4, 0, TICK_ALWAYS, (void**)&group->block_pool, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->budget, 1, 4, 0, TICK_ALWAYS, (void**)&group->update_pool, NULL);
        plan_add(plan, REGION_OPTIMIZER, -1, name, group->budget, 1, 4, 0, TICK_ALWAYS, (void**)&group->scale_pool, NULL);
        snprintf(name, sizeof name, "%s.weight gradients (pool)", group_name[g]);
        plan_add(plan, REGION_GRADIENTS, -1, name, (int64_t)group->budget * example->cout, width, 4, 0, TICK_ALWAYS, (void**)&group->gradient_pool, NULL);
        if (example->at_hand) continue;
        const char* pool = group_pool_name(g);
        if (o->preset == METHOD_PREBRPP) {
            plan_add(plan, REGION_KEPT, -1, pool, (int64_t)group->budget * m->batch * m->tokens, width, floatx_bytes, example->kept_first, example->kept_last,
                     (void**)&group->kept_pool, NULL);
        } else {
            plan_add(plan, REGION_KEPT, -1, pool, (int64_t)group->budget * m->batch, capacity, floatx_bytes, example->kept_first, example->kept_last,
                     (void**)&group->kept_pool, NULL);
            plan_add(plan, REGION_KEPT, -1, pool, (int64_t)group->budget * m->batch, words, 4, example->kept_first, example->kept_last,
                     (void**)&group->mask_pool, NULL);
        }
    }
}

// Before the first step: every arm equally likely.
static void method_start(Method* m) {
    static const int thirds[3] = {0, 1, 2};
    device_upload(m->shear.thirds, thirds, sizeof thirds);
    for (int g = 0; g < m->groups; g++) {
        Group* group = &m->group[g];
        double* p = (double*)allocate((size_t)group->arms + 1, sizeof *p);
        for (int i = 0; i < group->arms; i++) p[i] = (double)group->budget / group->arms;
        if (group->arms) device_upload(group->p, p, (size_t)group->arms * sizeof *p);
        m->shear.squares[g] = group->squares;
        free(p);
    }
}

// Gives every layer of a group its share of the pools, by which arms are sampled now.
static void group_assign(Method* m, int g) {
    const MethodOptions* o = &m->shear.o;
    Group* group = &m->group[g];
    size_t arms = (size_t)group->arms;
    int* sampled = (int*)allocate(arms, sizeof *sampled);
    int* slots = (int*)allocate(arms, sizeof *slots);
    int* blocks = (int*)allocate((size_t)group->budget, sizeof *blocks);
    double* p = (double*)allocate(arms, sizeof *p);
    float* scale = (float*)allocate((size_t)group->budget, sizeof *scale);
    device_download(sampled, group->sampled, arms * sizeof *sampled);
    device_download(p, group->p, arms * sizeof *p);
    int taken = 0;
    for (int layer = 0; layer < m->linears / m->groups; layer++) {
        Linear* l = method_linear(m, g, layer);
        size_t t = (size_t)m->batch * (size_t)m->tokens, n = (size_t)m->tokens * (size_t)l->cin;
        size_t width = (size_t)block_width(o, l), start = (size_t)taken;
        l->n = 0;
        for (int i = 0; i < l->arms; i++) {
            slots[l->arm + i] = sampled[l->arm + i] ? l->n : -1;
            if (!sampled[l->arm + i]) continue;
            blocks[taken] = i;
            scale[taken++] = (float)(1 / p[l->arm + i]);
            l->n++;
        }
        l->keep = l->n == 0 ? KEEP_NOTHING : o->preset == METHOD_PREBR ? KEEP_TOPK : KEEP_COLUMNS;
        l->blocks = group->block_pool + start;
        l->slots = group->slots + l->arm;
        l->updates = group->update_pool + start;
        l->scale = group->scale_pool + start;
        l->dw = group->gradient_pool + start * (size_t)l->cout * width;
        if (l->at_hand) continue;
        if (o->preset == METHOD_PREBRPP) {
            l->kept = group->kept_pool + start * t * width;
        } else {
            l->kept = group->kept_pool + start * (size_t)m->batch * (size_t)topk_capacity((int)n, o->prune);
            l->mask = group->mask_pool + start * (size_t)m->batch * (size_t)topk_words((int)n);
        }
    }
    device_upload(group->slots, slots, arms * sizeof *slots);
    device_upload(group->block_pool, blocks, (size_t)taken * sizeof *blocks);
    device_upload(group->scale_pool, scale, (size_t)taken * sizeof *scale);
    free(sampled);
    free(slots);
    free(blocks);
    free(p);
    free(scale);
}

// Start of a step (0 for the first): every `resample` steps learns from what was measured and draws the arms anew.
static void method_begin_step(Method* m, int64_t step) {
    const MethodOptions* o = &m->shear.o;
    m->shear.measure_inputs = preset_samples(o->preset) && o->policy == POLICY_NORM && (step + 1) % o->resample == 0;
    if (!preset_samples(o->preset) || step % o->resample != 0) return;
    uint32_t drawing = (uint32_t)(step / o->resample);
    for (int g = 0; g < m->groups; g++) {
        Group* group = &m->group[g];
        if (drawing > 0 && o->policy == POLICY_BANDIT) {
            bandit_update(group->p, group->squares, group->sampled, o->alpha, o->p_min, group->budget, group->arms);
            device_zero(group->squares, (size_t)group->arms * sizeof *group->squares);   // learned once, also where a run resumes at this step
        }
        if (drawing > 0 && o->policy == POLICY_NORM)
            largest_arms(group->sampled, group->squares, group->budget, group->arms);
        else
            sample_arms(group->sampled, group->p, (uint64_t)o->seed, drawing, (uint32_t)g, group->arms);
        group_assign(m, g);
    }
}

// After backward: on the last step before a resampling the bandit looks at the gradients of the arms that learned; then, if asked,
// every gradient is divided by its arm's probability.
static void method_measure(Method* m, int64_t step) {
    const MethodOptions* o = &m->shear.o;
    int measure = o->policy == POLICY_BANDIT && (step + 1) % o->resample == 0;
    timer_start(TIME_SHEAR);
    for (int i = 0; i < m->linears; i++) {
        Linear* l = &m->linear[i];
        if (!l->arms || !linear_learns(l)) continue;
        int width = block_width(o, l);
        if (measure) columns_gradient_squares(m->group[l->group].squares + l->arm, l->dw, l->blocks, l->n, width, l->cout, m->shear.work);
        if (o->importance_weight) columns_scale(l->dw, l->scale, width, l->cout, l->n);
    }
}

// Counts one more update for every sampled arm and hands the counts of the sampled ones to the optimizer.
static void method_count_updates(Method* m, const float* gradient_scale) {
    for (int g = 0; g < m->groups; g++) {
        Group* group = &m->group[g];
        if (group->arms) count_updates(group->updates, group->update_pool, group->sampled, gradient_scale, group->arms);
    }
}

// Scratch that the calls above need at most, for planning.
static size_t method_scratch(const Method* m) {
    size_t most = 0;
    for (int i = 0; i < m->linears; i++) {
        const Linear* l = &m->linear[i];
        int width = block_width(&m->shear.o, l), t = m->batch * m->tokens;
        size_t need[3] = {columns_squares_scratch(t, l->cin, width), columns_squares_scratch(l->cout, l->cin, width), linear_bias_scratch(t, l->cout)};
        for (int k = 0; k < 3; k++)
            if (need[k] > most) most = need[k];
    }
    return most;
}

// Bytes kept for backward in this step, as they are: the plan's, with the pools counted by what is drawn.
static size_t method_kept_bytes(const Method* m, const Plan* plan) {
    size_t sum = plan_region_bytes(plan, REGION_KEPT);
    for (int g = 0; g < m->groups; g++) {
        if (!m->group[g].arms || m->linear[g].at_hand) continue;
        sum -= plan_kept_bytes(plan, group_pool_name(g), -1);
        for (int i = g; i < m->linears; i += m->groups) sum += linear_kept_bytes(&m->shear, &m->linear[i], m->batch, m->tokens);
    }
    return sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. Update

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD } OptimizerKind;
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT } Schedule;
#define OPTIMIZER_CHOICES "adamw|sgd"
#define SCHEDULE_CHOICES "cosine|linear|constant"

typedef struct {
    int optimizer, schedule;
    double lr, head_scale, bias_scale, column_scale;
    double weight_decay, momentum, clip;
    int warmup;              // steps
} UpdateOptions;

// One parameter tensor. A matrix under the method has its gradient in its Linear (dense or compact); all others in g.
typedef struct {
    char name[48];
    ParamKind kind;
    int layer, rows, cols;
    float *w, *g;            // g NULL where it does not learn
    floatx* copy;            // what a linear layer reads: w itself, or its rounding where floatx is narrower
    float *m, *v;            // moments (SGD: m is the velocity, v NULL)
    Linear* linear;          // PARAM_MATRIX only
} Param;

typedef struct {
    Param* param;
    int count, capacity;
} Params;

static Param* params_add(Params* p, ParamKind kind, int layer, const char* name, int rows, int cols) {
    if (p->count == p->capacity) trouble("too many parameters (%d)", p->count);
    Param* q = &p->param[p->count++];
    memset(q, 0, sizeof *q);
    snprintf(q->name, sizeof q->name, "%s", name);
    q->kind = kind;
    q->layer = layer;
    q->rows = rows;
    q->cols = cols;
    return q;
}

// Elements of the largest parameter, for scratch.
static size_t params_largest(const Params* p) {
    size_t most = 0;
    for (int i = 0; i < p->count; i++) {
        size_t n = (size_t)p->param[i].rows * (size_t)p->param[i].cols;
        if (n > most) most = n;
    }
    return most;
}

// Where floatx is float the linear layers read the weights themselves. To be called once these lie somewhere, before linear_connect.
static void params_connect(Params* p) {
    for (int i = 0; i < p->count && sizeof(floatx) == sizeof(float); i++) p->param[i].copy = (floatx*)p->param[i].w;
}

static floatx* param_rounding(const Param* p) { return (void*)p->copy == (void*)p->w ? NULL : p->copy; }

// After weights came from elsewhere than an update: a file, or a random start.
static void params_round(const Params* p) {
    for (int i = 0; i < p->count; i++) {
        const Param* q = &p->param[i];
        if (param_rounding(q)) device_round(q->copy, q->w, (size_t)q->rows * (size_t)q->cols);
    }
}

// Tells the linear layer of a matrix where its weight and bias (NULL: none) lie.
static void linear_connect(const Param* weight, const Param* bias) {
    weight->linear->w = weight->copy;
    weight->linear->b = bias ? bias->copy : NULL;
    weight->linear->db = bias ? bias->g : NULL;
}

// Plans weights (and, where activations are narrower than float, the copies that linear layers read), and for what learns under the preset
// gradients (matrices: see method_plan) and moments. forward_only: weights alone.
static void params_plan(Params* p, Plan* plan, int preset, int optimizer, int floatx_bytes, int forward_only) {
    for (int i = 0; i < p->count; i++) {
        Param* q = &p->param[i];
        int linear = q->kind != PARAM_NORM && q->kind != PARAM_EMBEDDING;
        plan_add(plan, REGION_PARAMETERS, q->layer, q->name, q->rows, q->cols, 4, 0, TICK_ALWAYS, (void**)&q->w, NULL);
        if (linear && floatx_bytes < 4)
            plan_add(plan, REGION_PARAMETERS, q->layer, q->name, q->rows, q->cols, floatx_bytes, 0, TICK_ALWAYS, (void**)&q->copy, NULL);
    }
    for (int i = 0; i < p->count && !forward_only; i++) {
        Param* q = &p->param[i];
        if (!preset_learns(preset, q->kind)) continue;
        if (q->kind != PARAM_MATRIX) plan_add(plan, REGION_GRADIENTS, q->layer, q->name, q->rows, q->cols, 4, 0, TICK_ALWAYS, (void**)&q->g, NULL);
        plan_add(plan, REGION_OPTIMIZER, q->layer, q->name, q->rows, q->cols, 4, 0, TICK_ALWAYS, (void**)&q->m, NULL);
        if (optimizer == OPTIMIZER_ADAMW) plan_add(plan, REGION_OPTIMIZER, q->layer, q->name, q->rows, q->cols, 4, 0, TICK_ALWAYS, (void**)&q->v, NULL);
    }
}

// What each method starts from where the user leaves it open (lr and scales 0, --gelu auto): AdamW's rate, the multipliers of rate_scale, and
// GELU's backward. Measured on a ViT-Ti fine-tuned on CIFAR-10: docs/accuracy_vit.md.
typedef struct { double lr, head_scale, bias_scale, column_scale; int gelu; } PresetDefaults;
static const PresetDefaults preset_defaults[] = {
    {3e-4, 10, 1, 1, GELU_EXACT},      // full
    {3e-4, 10, 1, 1, GELU_EXACT},      // head
    {1e-3, 10, 10, 1, GELU_REGELU2},   // bitfit
    {3e-4, 10, 10, 1, GELU_REGELU2},   // backrazor
    {1e-4, 100, 100, 3, GELU_REGELU2}, // prebr
    {1e-4, 100, 100, 3, GELU_REGELU2}, // prebr++
};

static void fill_preset_defaults(MethodOptions* m, UpdateOptions* u) {
    const PresetDefaults* own = &preset_defaults[m->preset];
    if (u->lr == 0 && u->optimizer != OPTIMIZER_ADAMW) usage_error("--optimizer sgd: give it a rate with --lr; the methods' own are AdamW's");
    if (u->lr == 0) u->lr = own->lr;
    if (u->head_scale == 0) u->head_scale = own->head_scale;
    if (u->bias_scale == 0) u->bias_scale = own->bias_scale;
    if (u->column_scale == 0) u->column_scale = own->column_scale;
    if (m->gelu == GELU_AUTO) m->gelu = own->gelu;
}

// Learning rate of a step (0 for the first) of `total`, before the multipliers of the kinds.
static double learning_rate(const UpdateOptions* o, int64_t step, int64_t total) {
    if (step < o->warmup) return o->lr * (double)(step + 1) / o->warmup;
    double t = (double)(step - o->warmup) / (double)(total - o->warmup > 1 ? total - o->warmup : 1);
    if (o->schedule == SCHEDULE_COSINE) return o->lr * 0.5 * (1 + cos(M_PI * t));
    return o->schedule == SCHEDULE_LINEAR ? o->lr * (1 - t) : o->lr;
}

static double rate_scale(const UpdateOptions* o, int preset, ParamKind kind) {
    if (kind == PARAM_HEAD || kind == PARAM_HEAD_BIAS) return o->head_scale;
    if (kind == PARAM_BIAS || kind == PARAM_NORM) return o->bias_scale;
    return kind == PARAM_MATRIX && preset_samples(preset) ? o->column_scale : 1;
}

static int decays(ParamKind kind) { return kind == PARAM_MATRIX || kind == PARAM_PATCH || kind == PARAM_HEAD; }

// The gradient of a parameter in this step and its number of elements; NULL where nothing of it learned.
static float* param_gradient(const Method* m, const Param* p, size_t* n) {
    *n = (size_t)p->rows * (size_t)p->cols;
    if (p->kind != PARAM_MATRIX) return p->g;
    if (!linear_learns(p->linear)) return NULL;
    if (p->linear->keep == KEEP_COLUMNS) *n = (size_t)p->rows * (size_t)(p->linear->n * m->shear.o.column_block);
    return p->linear->dw;
}

// One update of everything that learned. step: 0 for the first. room: two doubles on the device. Returns the global L2 norm of all gradients; where
// it is not finite nothing was updated. The device goes from the norm to the update by itself; the host asks for the norm when all is given out.
static double params_update(Method* m, Params* params, const UpdateOptions* o, int64_t step, double rate, double* room) {
    const MethodOptions* method = &m->shear.o;
    float* gradient_scale = (float*)(room + 1);
    double squares;
    timer_start(TIME_OPTIMIZER);
    device_zero(room, sizeof *room);
    for (int i = 0; i < params->count; i++) {
        size_t n;
        const float* g = param_gradient(m, &params->param[i], &n);
        if (g) squares_add(room, g, n, m->shear.work);
    }
    clip_scale(gradient_scale, room, o->clip);
    method_count_updates(m, gradient_scale);
    for (int i = 0; i < params->count; i++) {
        Param* p = &params->param[i];
        size_t n;
        const float* g = param_gradient(m, p, &n);
        if (!g) continue;
        double lr = rate * rate_scale(o, method->preset, p->kind), decay = decays(p->kind) ? o->weight_decay : 0;
        AdamW adamw = {lr, 0.9, 0.999, 1e-8, decay, gradient_scale};
        SGD sgd = {lr, o->momentum, decay, gradient_scale};
        Linear* l = p->linear;
        floatx* copy = param_rounding(p);
        if (l && l->arms) {   // an arm is a block of columns, or all of them, and has its own number of updates
            int width = block_width(method, l);
            if (o->optimizer == OPTIMIZER_ADAMW) adamw_columns(p->w, copy, p->m, p->v, g, adamw, l->updates, l->blocks, l->n, width, p->rows, p->cols);
            else sgd_columns(p->w, copy, p->m, g, sgd, l->updates, l->blocks, l->n, width, p->rows, p->cols);
            continue;
        }
        int t = (int)step + 1;
        if (o->optimizer == OPTIMIZER_ADAMW) adamw_dense(p->w, copy, p->m, p->v, g, adamw, t, n);
        else sgd_dense(p->w, copy, p->m, g, sgd, t == 1, n);
    }
    device_download(&squares, room, sizeof squares);
    return sqrt(squares);
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. Layers
//
// ViT and BERT are made of the same layer,
//
//   n1 = norm(x)   qkv = n1 Wqkv   o = attention(qkv)   mid = o Wproj + residual
//   n2 = norm(mid)   hidden = n2 Wfc1   act = gelu(hidden)   out = act Wfc2 + residual
//
// whose residuals take x and mid (ViT), or n1 and n2 (BERT, which normalises behind each sum: there a layer begins with the last norm of the layer
// below). How a layer computes is said in the trainers; what its tensors are, how long each lives, and what is kept of attention is the same for both
// and said here. T = batch x tokens, C = width, H = heads, t = tokens of a sample: the most that is planned for; a batch of fewer uses the
// first rows of every place.

typedef struct {
    floatx *x;               // [T, C] input
    floatx *n1, *qkv, *o;    // [T, C] its norm; [T, 3C]; [T, C] attention's output
    floatx *probs;           // [B, H, t, t], materialized attention only
    floatx *part;            // [T, C] one of q, k, v on its way to being pruned
    floatx *mid;             // [T, C] sum after attention
    floatx *n2, *hidden, *act;   // [T, C] its norm; [T, mlp] before and after GELU
    float *mean1, *rstd1, *mean2, *rstd2;   // [T]
    float *lse;              // [B, H, t]
    uint8_t *codes;          // [T * mlp / 4] of ReGELU2
} Acts;

typedef struct {
    int number;
    Param *norm1_w, *norm1_b, *qkv_w, *qkv_b, *proj_w, *proj_b;   // qkv_b may be NULL
    Param *norm2_w, *norm2_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
    Param *out_w, *out_b;    // BERT: the norm behind the layer, norm1 of the next
    Linear *qkv, *proj, *fc1, *fc2;
    Acts in, again;          // as forward makes them; as backward finds them (the same place, or made again)
    floatx *dact, *dn2, *d_o, *dqkv, *dn1;   // gradients: [T, mlp], [T, C], [T, C], [T, 3C], [T, C]
    floatx *dproj, *dfc2;    // [T, C] gradients behind the dropout of the two residual branches
    Razor razor;             // q, k, v, probs as BackRazor keeps them with materialized attention
} Layer;

// What the lives of a layer's tensors depend on beside the method.
typedef struct {
    int layers, batch, tokens, width, heads, mlp, floatx_bytes;
    int deep;                // gradients flow below the head
    int post_norm;           // the residuals take the norms' outputs
    int drops_branches, drops_input;   // dropout at the end of the branches; behind the first layer's first norm
} LayerShape;

// Ticks: 0 the embedding, then the ops of each layer, then the head, then all of it backwards.
enum { OP_NORM1, OP_QKV, OP_ATTENTION, OP_PROJ, OP_NORM2, OP_FC1, OP_GELU, OP_FC2, OPS };

static int tick_head(int layers) { return 1 + layers * OPS; }
static int tick_end(int layers) { return 2 * tick_head(layers); }
static int forward_tick(int layer, int op) { return 1 + layer * OPS + op; }
static int backward_tick(int layers, int layer, int op) { return tick_end(layers) - forward_tick(layer, op); }

static void layer_plan(Plan* p, Layer* l, const MethodOptions* o, const LayerShape* s) {
    Acts *in = &l->in, *again = &l->again;
    int64_t B = s->batch, T = B * s->tokens, C = s->width, H = s->heads, t = s->tokens, M = s->mlp;
    int i = l->number, fx = s->floatx_bytes, deep = s->deep;
    int full = o->preset == METHOD_FULL, flash = o->attention == ATTENTION_FLASH, exact = o->gelu == GELU_EXACT;
    int razor = !flash && o->preset == METHOD_BACKRAZOR && o->recompute == RECOMPUTE_NONE;   // keeps q, k, v, probs pruned
    int whole = o->recompute != RECOMPUTE_BLOCK;   // the block is not run again
    int attn = o->recompute == RECOMPUTE_NONE;     // nor is its attention
    int F[OPS], K[OPS];                            // ticks of the ops, forward and backward
    for (int op = 0; op < OPS; op++) {
        F[op] = forward_tick(i, op);
        K[op] = deep ? backward_tick(s->layers, i, op) : -1;
    }
    int rerun = K[OP_FC2], remade = whole ? K[OP_PROJ] : rerun;   // from where on a block, or its attention, is there again
    int born = i ? forward_tick(i - 1, OP_FC2) : 0;
    int wholes = preset_learns(o->preset, PARAM_MATRIX) && o->preset != METHOD_PREBRPP;   // whether a linear layer asks for its whole input

    // What each linear layer can count on in backward (see 3).
    l->qkv->at_hand = l->fc1->at_hand = 1;
    l->proj->at_hand = flash || full || !attn;
    l->fc2->at_hand = exact || full || !whole;
    l->fc2->packed_by_gelu = 1;
    l->proj->kept_first = F[OP_ATTENTION];
    l->proj->kept_last = K[OP_PROJ];
    l->fc2->kept_first = F[OP_GELU];
    l->fc2->kept_last = K[OP_FC2];
    int n1_from = !attn ? remade : wholes || (s->drops_input && i == 0 && preset_learns(o->preset, PARAM_MATRIX)) ? K[OP_QKV] : -1;
    int n2_from = !whole ? rerun : wholes ? K[OP_FC1] : -1;
    int act_from = !whole ? rerun : wholes && l->fc2->at_hand ? K[OP_FC2] : -1;
    int o_again = attn ? -1 : remade;

    plan_activation(p, deep, i, "input", T, C, fx, born, F[s->post_norm ? OP_NORM1 : OP_PROJ], K[OP_NORM1], K[OP_NORM1], (void**)&in->x, (void**)&again->x);
    plan_activation(p, deep, i, "norm1 mean", T, 1, 4, F[OP_NORM1], F[OP_NORM1], -1, K[OP_NORM1], (void**)&in->mean1, (void**)&again->mean1);
    plan_activation(p, deep, i, "norm1 1/sigma", T, 1, 4, F[OP_NORM1], F[OP_NORM1], -1, K[OP_NORM1], (void**)&in->rstd1, (void**)&again->rstd1);
    plan_activation(p, 0, i, "norm1 output", T, C, fx, F[OP_NORM1], F[s->post_norm ? OP_PROJ : OP_QKV], n1_from, K[OP_QKV], (void**)&in->n1, (void**)&again->n1);
    plan_activation(p, deep && attn && !razor, i, "q, k, v", T, 3 * C, fx, F[OP_QKV], F[OP_ATTENTION], razor ? K[OP_ATTENTION] : remade, K[OP_ATTENTION],
                    (void**)&in->qkv, (void**)&again->qkv);
    plan_activation(p, deep && attn && (flash || full), i, "attention output", T, C, fx, F[OP_ATTENTION], F[OP_PROJ], o_again, K[OP_ATTENTION],
                    (void**)&in->o, (void**)&again->o);
    if (flash)
        plan_activation(p, deep && attn, i, "log-sum-exp", B * H, t, 4, F[OP_ATTENTION], F[OP_ATTENTION], o_again, K[OP_ATTENTION],
                        (void**)&in->lse, (void**)&again->lse);
    else
        plan_activation(p, deep && attn && !razor, i, "softmax weights", B * H * t, t, fx, F[OP_ATTENTION], F[OP_ATTENTION],
                        razor ? K[OP_ATTENTION] : o_again, K[OP_ATTENTION], (void**)&in->probs, (void**)&again->probs);
    if (razor) plan_activation(p, 0, i, "q, k or v", T, C, fx, F[OP_ATTENTION], F[OP_ATTENTION], K[OP_ATTENTION], K[OP_ATTENTION], (void**)&in->part, (void**)&again->part);
    if (razor && deep) razor_plan(p, &l->razor, i, o->prune, (int)B, (int)t, (int)H, (int)C, fx, F[OP_ATTENTION], K[OP_ATTENTION]);
    plan_activation(p, deep && whole, i, "middle", T, C, fx, F[OP_PROJ], F[s->post_norm ? OP_NORM2 : OP_FC2], rerun, K[OP_NORM2], (void**)&in->mid, (void**)&again->mid);
    plan_activation(p, deep, i, "norm2 mean", T, 1, 4, F[OP_NORM2], F[OP_NORM2], -1, K[OP_NORM2], (void**)&in->mean2, (void**)&again->mean2);
    plan_activation(p, deep, i, "norm2 1/sigma", T, 1, 4, F[OP_NORM2], F[OP_NORM2], -1, K[OP_NORM2], (void**)&in->rstd2, (void**)&again->rstd2);
    plan_activation(p, 0, i, "norm2 output", T, C, fx, F[OP_NORM2], F[s->post_norm ? OP_FC2 : OP_FC1], n2_from, K[OP_FC1], (void**)&in->n2, (void**)&again->n2);
    plan_activation(p, deep && whole && exact, i, "before GELU", T, M, fx, F[OP_FC1], F[OP_GELU], whole ? -1 : rerun, K[OP_GELU],
                    (void**)&in->hidden, (void**)&again->hidden);
    if (!exact)
        plan_activation(p, deep && whole, i, "GELU codes", T, (M + 3) / 4, 1, F[OP_GELU], F[OP_GELU], whole ? -1 : rerun, K[OP_GELU],
                        (void**)&in->codes, (void**)&again->codes);
    plan_activation(p, deep && whole && !exact && full, i, "GELU output", T, M, fx, F[OP_GELU], F[OP_FC2], act_from, K[OP_FC2],
                    (void**)&in->act, (void**)&again->act);

    if (!deep) return;
    if (s->drops_branches) {
        plan_add(p, REGION_SCRATCH, i, "MLP gradient", T, C, fx, K[OP_FC2], K[OP_FC2], (void**)&l->dfc2, NULL);
        plan_add(p, REGION_SCRATCH, i, "projection gradient", T, C, fx, K[OP_PROJ], K[OP_PROJ], (void**)&l->dproj, NULL);
    }
    plan_add(p, REGION_SCRATCH, i, "GELU gradient", T, M, fx, K[OP_FC2], K[OP_FC1], (void**)&l->dact, NULL);
    plan_add(p, REGION_SCRATCH, i, "norm2 gradient", T, C, fx, K[OP_FC1], K[OP_NORM2], (void**)&l->dn2, NULL);
    plan_add(p, REGION_SCRATCH, i, "attention gradient", T, C, fx, K[OP_PROJ], K[OP_ATTENTION], (void**)&l->d_o, NULL);
    plan_add(p, REGION_SCRATCH, i, "q, k, v gradient", T, 3 * C, fx, K[OP_ATTENTION], K[OP_QKV], (void**)&l->dqkv, NULL);
    plan_add(p, REGION_SCRATCH, i, "norm1 gradient", T, C, fx, K[OP_QKV], K[OP_NORM1], (void**)&l->dn1, NULL);
}

// The four linear layers of a layer, once it has its parameters: linear [4] are its own.
static void layer_linears(Layer* l, Linear* linear) {
    Param* matrix[4] = {l->qkv_w, l->proj_w, l->fc1_w, l->fc2_w};
    for (int k = 0; k < 4; k++) {
        matrix[k]->linear = &linear[k];
        linear[k].cin = matrix[k]->cols;
        linear[k].cout = matrix[k]->rows;
    }
    l->qkv = &linear[0];
    l->proj = &linear[1];
    l->fc1 = &linear[2];
    l->fc2 = &linear[3];
}

// Lets them know where their parameters lie, once these lie somewhere.
static void layer_connect(const Layer* l) {
    linear_connect(l->qkv_w, l->qkv_b);
    linear_connect(l->proj_w, l->proj_b);
    linear_connect(l->fc1_w, l->fc1_b);
    linear_connect(l->fc2_w, l->fc2_b);
}

static const Dropout no_dropout = {0, 0, 0, 0};

// a->o [b*tokens, width] from a->qkv. lengths [b]: tokens of each sample, NULL: all of them.
static void layer_attention(const Shear* s, Layer* l, Acts* a, const int* lengths, Dropout dropout, int b, int heads, int width) {
    timer_start(TIME_ATTENTION);
    if (s->o.attention == ATTENTION_FLASH) {
        attention_flash_forward(a->o, a->lse, a->qkv, lengths, dropout, b, s->tokens, heads, width / heads, s->work);
        return;
    }
    attention_materialized_forward(a->o, a->probs, a->qkv, lengths, dropout, b, s->tokens, heads, width / heads, s->work);
    if (s->storing && l->razor.values[0]) razor_keep(s, &l->razor, a->part, a->qkv, a->probs, b, heads, width);
}

// l->dqkv from l->d_o and what was kept.
static void layer_attention_backward(const Shear* s, Layer* l, const int* lengths, Dropout dropout, int b, int heads, int width) {
    const Acts* a = &l->again;
    timer_start(TIME_ATTENTION);
    if (s->o.attention == ATTENTION_FLASH) {
        attention_flash_backward(l->dqkv, l->d_o, a->o, a->lse, a->qkv, lengths, dropout, b, s->tokens, heads, width / heads, s->work);
        return;
    }
    if (l->razor.values[0]) razor_restore(s, &l->razor, a->part, a->qkv, a->probs, b, heads, width);
    timer_start(TIME_ATTENTION);
    attention_materialized_backward(l->dqkv, l->d_o, a->probs, a->qkv, lengths, dropout, b, s->tokens, heads, width / heads, s->work);
}

// What attention needs of the kernels' scratch.
static size_t attention_scratch(int attention, int batch, int tokens, int heads, int width) {
    return attention == ATTENTION_FLASH ? attention_flash_scratch(batch, tokens, heads, width / heads)
                                        : attention_materialized_scratch(batch, tokens, heads, width / heads);
}

static int activations_finite(const floatx* device, size_t n) {
    float* x = (float*)allocate(n, sizeof *x);
    size_t i = 0;
    device_download_floats(x, device, n);
    while (i < n && isfinite(x[i])) i++;
    free(x);
    return i == n;
}

// Right after a forward pass whose loss is not finite: which layer's output is the first that is not. n: elements of an output; last: that of
// the last layer. Where backward does not go deep the layers share their memory, so that only the last output is left to look at.
static void name_broken_layer(const Layer* layer, int layers, const floatx* last, int deep, size_t n, char* where, size_t size) {
    if (activations_finite(last, n)) snprintf(where, size, "in the classifier");
    else if (deep) snprintf(where, size, "in the output of layer %d", layers - 1);
    else snprintf(where, size, "below the classifier");
    for (int i = layers - 1; deep && i >= 0; i--) {
        if (activations_finite(layer[i].in.x, n)) continue;
        if (i) snprintf(where, size, "in the output of layer %d", i - 1);
        else snprintf(where, size, "in the embedding");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. State of a run: everything that the next step depends on, as one safetensors file

typedef struct { char name[96]; int dtype; int64_t n; void* device; } StateEntry;

// The entries of a state; a list of at most `most`. Returns their number.
static int state_entries(Method* m, Params* params, StateEntry* e, int most) {
    int n = 0;
    for (int i = 0; i < params->count; i++) {
        Param* p = &params->param[i];
        float* part[3] = {p->w, p->m, p->v};
        static const char* const part_name[3] = {"weight", "moment1", "moment2"};
        for (int k = 0; k < 3; k++) {
            if (!part[k]) continue;
            if (n == most) trouble("too many tensors in the state");
            e[n].dtype = DTYPE_F32;
            e[n].n = (int64_t)p->rows * p->cols;
            e[n].device = part[k];
            if (p->layer < 0) snprintf(e[n++].name, sizeof e->name, "%s/%s", part_name[k], p->name);
            else snprintf(e[n++].name, sizeof e->name, "%s/layer %d/%s", part_name[k], p->layer, p->name);
        }
    }
    for (int g = 0; g < m->groups; g++) {
        Group* group = &m->group[g];
        void* part[4] = {group->p, group->squares, group->sampled, group->updates};
        static const char* const part_name[4] = {"probabilities", "squares", "sampled", "updates"};
        for (int k = 0; group->arms && k < 4; k++) {
            if (n == most) trouble("too many tensors in the state");
            e[n].dtype = k < 2 ? DTYPE_F64 : DTYPE_I32;
            e[n].n = group->arms;
            e[n].device = part[k];
            snprintf(e[n++].name, sizeof e->name, "arms/group %d/%s", g, part_name[k]);
        }
    }
    return n;
}

static size_t dtype_bytes(int dtype) { return dtype == DTYPE_F64 || dtype == DTYPE_I64 ? 8 : 4; }

// step: number of steps done. best: best test accuracy so far (negative: none).
static void state_save(Method* m, Params* params, const char* path, int64_t step, double best) {
    int most = 3 * params->count + 16;
    StateEntry* e = (StateEntry*)allocate((size_t)most, sizeof *e);
    int count = state_entries(m, params, e, most);
    int64_t one = 1;
    SafetensorsWriter* w = safetensors_create(path);
    safetensors_declare(w, "step", DTYPE_I64, 1, &one);
    safetensors_declare(w, "best", DTYPE_F64, 1, &one);
    safetensors_declare(w, "data", DTYPE_I64, 1, &one);
    for (int i = 0; i < count; i++) safetensors_declare(w, e[i].name, e[i].dtype, 1, &e[i].n);
    safetensors_write(w, &step, sizeof step);
    safetensors_write(w, &best, sizeof best);
    safetensors_write(w, &m->data_hash, sizeof m->data_hash);
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)e[i].n * dtype_bytes(e[i].dtype), floats = bytes / sizeof(float);
        float* view = host_view_open((float*)e[i].device, floats);
        safetensors_write(w, view, bytes);
        host_view_close(view, (float*)e[i].device, floats, 0);
    }
    safetensors_finish(w);
    free(e);
}

static void state_load(Method* m, Params* params, const char* path, int64_t* step, double* best) {
    int most = 3 * params->count + 16;
    StateEntry* e = (StateEntry*)allocate((size_t)most, sizeof *e);
    int count = state_entries(m, params, e, most);
    Safetensors s = safetensors_open(path);
    safetensors_copy_raw(&s, "step", DTYPE_I64, 1, step);
    safetensors_copy_raw(&s, "best", DTYPE_F64, 1, best);
    int64_t data_hash;
    safetensors_copy_raw(&s, "data", DTYPE_I64, 1, &data_hash);
    if (data_hash != m->data_hash) trouble("%s: the run learned from other data than there is now under that name; bring it back, or start anew with --overwrite", path);
    for (int i = 0; i < count; i++) {
        size_t floats = (size_t)e[i].n * dtype_bytes(e[i].dtype) / sizeof(float);
        float* view = host_view_open((float*)e[i].device, floats);
        safetensors_copy_raw(&s, e[i].name, e[i].dtype, e[i].n, view);
        host_view_close(view, (float*)e[i].device, floats, 1);
    }
    safetensors_close(&s);
    params_round(params);
    for (int g = 0; g < m->groups; g++)
        if (m->group[g].arms) group_assign(m, g);
    free(e);
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. Around a run

enum { PRECISION_FP32, PRECISION_BF16 };
#define PRECISION_CHOICES "fp32|bf16"

// What this program was built for.
static int precision_built(void) { return sizeof(floatx) == sizeof(float) ? PRECISION_FP32 : PRECISION_BF16; }
static const char* precision_name(int precision) { return precision == PRECISION_BF16 ? "bf16" : "fp32"; }
static int precision_bytes(int precision) { return precision == PRECISION_BF16 ? 2 : 4; }

// Rows of an option table for what learns (m: MethodOptions*) and for the update (u: UpdateOptions*), with their defaults.
#define METHOD_OPTIONS(m)                                                                                                                                  \
    {OPTION_GROUP, "What learns, and what is kept for it", 0, NULL, NULL, NULL, 0, 0, 0, 0},                                                               \
    {OPTION_CHOICE, "method", 0, &(m)->preset, METHOD_CHOICES, "which weights learn in a step", 0, 0, 1, 0},                                               \
    {OPTION_CHOICE, "policy", 0, &(m)->policy, POLICY_CHOICES, "how arms are chosen (prebr, prebr++)", 0, 0, 1, 0},                                        \
    {OPTION_FLOAT, "keep", 0, &(m)->keep, "X", "share of arms that learn in a step (prebr, prebr++)", 1e-6, 1, 1, 0},                                      \
    {OPTION_FLOAT, "prune", 0, &(m)->prune, "X", "share of elements dropped from kept inputs (backrazor, prebr)", 0, 1, 1, 0},                             \
    {OPTION_INT, "column-block", 0, &(m)->column_block, "N", "columns of an arm (prebr++)", 1, 65536, 1, 0},                                               \
    {OPTION_INT, "resample", 0, &(m)->resample, "N", "steps between samplings", 1, 1e9, 1, 0},                                                             \
    {OPTION_FLOAT, "alpha", 0, &(m)->alpha, "X", "step size of the bandit", 0, 1e9, 1, 0},                                                                 \
    {OPTION_FLOAT, "p-min", 0, &(m)->p_min, "X", "least probability of an arm", 0, 1, 1, 0},                                                               \
    {OPTION_FLAG, "importance-weight", 0, &(m)->importance_weight, NULL, "divide a sampled gradient by its probability", 0, 0, 1, 0},                      \
    {OPTION_FLAG, "detach-frozen", 0, &(m)->detach_frozen, NULL, "no gradient through attention where q, k, v are all frozen", 0, 0, 1, 0},                \
    {OPTION_CHOICE, "gelu", 0, &(m)->gelu, GELU_CHOICES, "regelu2: 2-bit backward (LowMemoryBP); auto: the method's own", 0, 0, 1, 0},                     \
    {OPTION_CHOICE, "attention", 0, &(m)->attention, ATTENTION_CHOICES, "materialized keeps the softmax weights", 0, 0, 1, 0},                             \
    {OPTION_CHOICE, "recompute", 0, &(m)->recompute, RECOMPUTE_CHOICES, "make again in backward rather than keep", 0, 0, 1, 0}

#define UPDATE_OPTIONS(u)                                                                                                                                  \
    {OPTION_FLOAT, "lr", 0, &(u)->lr, "X", "peak learning rate (0: the method's own)", 0, 1e3, 1, 0},                                                      \
    {OPTION_FLOAT, "head-lr-scale", 0, &(u)->head_scale, "X", "multiplies it for the classifier (0: the method's own)", 0, 1e6, 1, 0},                     \
    {OPTION_FLOAT, "bias-lr-scale", 0, &(u)->bias_scale, "X", "multiplies it for biases and norms (0: the method's own)", 0, 1e6, 1, 0},                   \
    {OPTION_FLOAT, "column-lr-scale", 0, &(u)->column_scale, "X", "multiplies it for sampled matrices and columns (0: the method's own)", 0, 1e6, 1, 0},   \
    {OPTION_CHOICE, "schedule", 0, &(u)->schedule, SCHEDULE_CHOICES, "how the rate falls after warm-up", 0, 0, 1, 0},                                      \
    {OPTION_INT, "warmup", 0, &(u)->warmup, "N", "steps of linear warm-up", 0, 1e9, 1, 0},                                                                 \
    {OPTION_FLOAT, "weight-decay", 0, &(u)->weight_decay, "X", "of weight matrices", 0, 1e3, 1, 0},                                                        \
    {OPTION_FLOAT, "clip", 0, &(u)->clip, "X", "largest global gradient norm (0: no clipping)", 0, 1e9, 1, 0},                                             \
    {OPTION_CHOICE, "optimizer", 0, &(u)->optimizer, OPTIMIZER_CHOICES, "the rule of the update", 0, 0, 1, 0},                                             \
    {OPTION_FLOAT, "momentum", 0, &(u)->momentum, "X", "of sgd", 0, 1, 1, 0}

static MethodOptions method_defaults(void) {
    MethodOptions m;
    memset(&m, 0, sizeof m);
    m.keep = 0.5;
    m.prune = 0.8;
    m.alpha = 1e-3;
    m.p_min = 1e-3;
    m.column_block = 16;
    m.resample = 20;
    m.seed = 1;
    m.gelu = GELU_AUTO;
    return m;
}

static UpdateOptions update_defaults(void) {
    UpdateOptions u;
    memset(&u, 0, sizeof u);
    u.warmup = 20;
    u.weight_decay = 0.01;
    u.momentum = 0.9;
    u.clip = 1;
    return u;
}

static const char* preset_name(int preset) {
    static const char* const names[] = {"full", "head", "bitfit", "backrazor", "prebr", "prebr++"};
    return names[preset];
}

// The settings that a plan is printed beside.
static void method_make_full(MethodOptions* m) {
    m->preset = METHOD_FULL;
    m->gelu = GELU_EXACT;
    m->recompute = RECOMPUTE_NONE;
    m->attention = ATTENTION_FLASH;
}

// Usage errors that follow from the options and the widths of the model alone.
static void method_check(const MethodOptions* m, int width, int mlp, int precision, int plan) {
    if (m->preset == METHOD_PREBRPP && (width % m->column_block || mlp % m->column_block))
        usage_error("--column-block %d does not divide the widths %d and %d of the model", m->column_block, width, mlp);
    if (m->preset == METHOD_BACKRAZOR && m->attention == ATTENTION_MATERIALIZED && m->recompute != RECOMPUTE_NONE)
        usage_error("--method backrazor --attention materialized keeps its own pruned q, k, v and softmax weights: use --recompute none");
    if (precision != precision_built() && !plan)
        usage_error("--precision %s: this program computes in %s; with --plan it shows what %s would need (make BACKEND=cuda PRECISION=%s builds for it)",
                    precision_name(precision), precision_name(precision_built()), precision_name(precision), precision_name(precision));
}

// --eval and --predict: what is about training is refused rather than ignored. names: options separated by spaces.
static void refuse_given(Option* table, const char* with, const char* names) {
    char name[32];
    for (int used; sscanf(names, "%31s%n", name, &used) == 1; names += used)
        if (option_find(table, name)->given) usage_error("--%s has no meaning with --%s", name, with);
}

// "6G", "512M", "800000000": bytes, in powers of 1024.
static size_t parse_bytes(const char* text) {
    char* end;
    double x = strtod(text, &end);
    const char* units = "KMGT";
    const char* unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        x *= pow(1024, 1 + (int)(unit - units));
        end++;
    }
    int ends_well = !strcmp(end, "") || !strcmp(end, "B") || !strcmp(end, "iB");
    if (end == text || !ends_well || !(x > 0 && x < 1e18)) usage_error("--budget: \"%s\" is not a size such as 6G or 800M", text);
    return (size_t)x;
}

// Chooses --gelu and --recompute in *m, the quickest first, so that the arena fits the budget. plan_bytes(context): the arena under *m.
static void fit_budget(MethodOptions* m, const char* text, size_t (*plan_bytes)(const void*), const void* context) {
    static const char* const recompute_name[] = {"none", "attention", "block"};
    size_t budget = parse_bytes(text), least = SIZE_MAX;
    char a[32], b[32];
    int asked_gelu = m->gelu;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++) {
        for (int gelu = asked_gelu; gelu <= GELU_REGELU2; gelu++) {
            if (recompute != RECOMPUTE_NONE && m->preset == METHOD_BACKRAZOR && m->attention == ATTENTION_MATERIALIZED) continue;
            m->recompute = recompute;
            m->gelu = gelu;
            size_t bytes = plan_bytes(context);
            if (bytes < least) least = bytes;
            if (bytes > budget) continue;
            printf("budget %s: --gelu %s --recompute %s needs %s\n", human_bytes(budget, a), gelu == GELU_EXACT ? "exact" : "regelu2",
                   recompute_name[recompute], human_bytes(bytes, b));
            return;
        }
    }
    trouble("the smallest setting needs %s, %zu bytes more than --budget %s; try a smaller --batch with --accumulate", human_bytes(least, a),
            least - budget, text);
}

// A new parameter w [n] (host), number `parameter` of its model: normal with standard deviation 0.02, cut at two of them (Box-Muller over Philox, stream INIT,
// index of element j = parameter << 40 + j).
static void fill_normal(float* w, size_t n, uint64_t seed, int parameter) {
    #pragma omp parallel for
    for (size_t j = 0; j < n; j++) {
        Philox r = philox(seed, STREAM_INIT, 0, ((uint64_t)parameter << 40) + j);
        double normal = sqrt(-2 * log(1 - (double)philox_uniform(r.v[0]))) * cos(2 * M_PI * philox_uniform(r.v[1]));
        w[j] = (float)(0.02 * (normal > 2 ? 2 : normal < -2 ? -2 : normal));
    }
}

typedef struct {
    double loss, norm, rate;
    int unfinished;          // a signal came amid the step, and nothing was updated
    char broke[96];          // where a number that is not finite came up first, "" where all are; then nothing was updated
} StepResult;

static int device_finite(const float* device, size_t n) {
    float* x = host_view_open((float*)device, n);
    size_t i = 0;
    while (i < n && isfinite(x[i])) i++;
    host_view_close(x, (float*)device, n, 0);
    return i == n;
}

// NULL, or the name of a parameter that is not finite: such a model is never saved.
static const char* broken_parameter(const Params* params) {
    for (int i = 0; i < params->count; i++) {
        const Param* p = &params->param[i];
        if (!device_finite(p->w, (size_t)p->rows * (size_t)p->cols)) return p->name;
    }
    return NULL;
}

// After a backward pass: the first gradient, on the way back, that is not finite. Parameters are in the order of the forward pass.
static void name_broken_gradient(const Method* m, const Params* params, char* where, size_t size) {
    snprintf(where, size, "in the sum of the gradients");
    for (int i = params->count - 1; i >= 0; i--) {
        const Param* p = &params->param[i];
        size_t n;
        const float* g = param_gradient(m, p, &n);
        if (!g || device_finite(g, n)) continue;
        if (p->layer < 0) snprintf(where, size, "in the gradient of %s", p->name);
        else snprintf(where, size, "in the gradient of layer %d, %s", p->layer, p->name);
        return;
    }
}

// The end of a run in which a number is not finite any more. saved: the last step whose state is on disk, or -1.
NORETURN static void end_diverged(const char* out, int64_t step, const char* what, const char* where, int64_t saved) {
    char kept[96] = "nothing is saved, for lack of --out";
    if (out && saved >= 0) snprintf(kept, sizeof kept, "the last good state, after step %lld, is saved", (long long)saved);
    else if (out) snprintf(kept, sizeof kept, "there was no good state to save");
    trouble("step %lld: %s is not finite, first %s; %s; try a smaller --lr, more --warmup or --clip 1", (long long)step, what, where, kept);
}

// The end of a run that a signal stopped: its exit status.
static int say_stopped(Log* log, int64_t step, const char* out) {
    log_message(log, "signal %d: stopped after step %lld%s", signal_seen(), (long long)step, out ? "; go on with --resume" : "; nothing was saved, for lack of --out");
    return 128 + signal_seen();
}

static char* state_path(const char* run) { return format_string("%s/state/state.safetensors", run); }

// A run directory's own record of its options.
static void write_options(const char* out, const Option* table) {
    char* path = format_string("%s/options.txt", out);
    FILE* f = file_create(path);
    options_write(table, f);
    file_finish(f, path);
    free(path);
}

// The end of a run, for a person.
static void print_summary(const Plan* plan, const char* score_name, const char* samples_name, int64_t steps, double score, double best, double seconds,
                          double samples) {
    char a[32], b[32], c[32];
    double total = 0;
    for (int part = 0; part < TIME_PARTS; part++) total += timer_seconds(part);
    printf("\n  steps                %lld\n", (long long)steps);
    if (!isnan(score)) printf("  %-20s %.2f %% (best %.2f %%)\n", score_name, 100 * score, 100 * best);
    printf("  time                 %.1f s, %.1f %s/s in training\n", seconds, samples / total, samples_name);
    printf("  kept for backward    %s\n", human_bytes(plan_region_bytes(plan, REGION_KEPT), a));
    printf("  arena = planned peak %s; the process held %s\n", human_bytes(plan->bytes, b), human_bytes(process_peak_bytes(), c));
    printf("  time of steps       ");
    for (int part = 0; part < TIME_PARTS; part++) printf(" %s %.1f %%", timer_part_name(part), 100 * timer_seconds(part) / total);
    printf("\n");
}

#endif
