// A ViT's tensors in and out of a model directory, and the resampling of its position embedding.
#define _GNU_SOURCE
#include "vit_files.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hub.h"
#include "json.h"
#include "vit_names.h"

// ---- position embedding of another resolution ----

// Keys' cubic convolution kernel with a = -1/2, the one of antialiased resampling (support 2).
static double cubic(double x) {
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// weight [to, from]: row i holds what each of `from` equidistant samples adds to sample i of `to`. When shrinking, the kernel is
// stretched by the ratio (antialiasing); at the borders it is cut off and its weights still sum to 1. Pixel centres, no aligned corners.
static double* resample_weights(int from, int to) {
    double *weight = allocate((size_t)to * from, sizeof *weight), scale = (double)from / to, stretch = scale > 1 ? scale : 1;
    for (int i = 0; i < to; i++) {
        double centre = scale * (i + 0.5), sum = 0, *row = weight + (size_t)i * from;
        int first = (int)fmax(floor(centre - 2 * stretch + 0.5), 0), end = (int)fmin(floor(centre + 2 * stretch + 0.5), from);
        for (int j = first; j < end; j++) sum += row[j] = cubic((j + 0.5 - centre) / stretch);
        for (int j = first; j < end; j++) row[j] /= sum;
    }
    return weight;
}

// grid in [from, from, C] -> out [to, to, C], first down the columns, then along the rows.
static void resample_grid(float* out, const float* in, int from, int to, int C) {
    double *weight = resample_weights(from, to), *half = allocate((size_t)to * from * C, sizeof *half);
    double* sum = allocate((size_t)C, sizeof *sum);
    for (int i = 0; i < to; i++)
        for (int j = 0; j < from; j++) {
            double w = weight[(size_t)i * from + j];
            if (w == 0) continue;
            for (size_t k = 0; k < (size_t)from * C; k++) half[(size_t)i * from * C + k] += w * in[(size_t)j * from * C + k];
        }
    for (int i = 0; i < to; i++)
        for (int x = 0; x < to; x++) {
            memset(sum, 0, (size_t)C * sizeof *sum);
            for (int j = 0; j < from; j++) {
                double w = weight[(size_t)x * from + j];
                if (w == 0) continue;
                for (int k = 0; k < C; k++) sum[k] += w * half[((size_t)i * from + j) * C + k];
            }
            for (int k = 0; k < C; k++) out[((size_t)i * to + x) * C + k] = (float)sum[k];
        }
    free(weight);
    free(half);
    free(sum);
}

// ---- reading ----

static void read_position(const Safetensors* s, const Tensor* x, float* out, int prefix, int from, int to, int C) {
    float* grid = allocate((size_t)from * from * C, sizeof *grid);
    safetensors_copy(s, x, out, 0, (int64_t)prefix * C);
    safetensors_copy(s, x, grid, (int64_t)prefix * C, (int64_t)from * from * C);
    resample_grid(out + (size_t)prefix * C, grid, from, to, C);
    free(grid);
}

// What no tensor may be part of without being used.
static const char* const inside[] = {"blocks.", "layer.", "layers.", "patch_embed"};

char* vit_tensors_read(const char* dir, const VitConfig* file, const VitConfig* model, VitTensors* t) {
    char *path = format_string("%s/model.safetensors", dir), *lines = format_string("%s", "");
    Safetensors s = safetensors_open(path);
    const char* prefix;
    int count, from = file->image_size / file->patch, to = model->image_size / model->patch;
    int heads_differ = !hub_same_classes(file->class_name, file->classes, model->class_name, model->classes);
    VitNaming naming = vit_naming(&s, &prefix);
    Slot* slots = vit_slots(file, t, naming, prefix, &count);

    if (model->image_size % model->patch || to < 1)
        trouble("%s: images of %d pixels do not divide into patches of %d; choose a multiple", dir, model->image_size,
                model->patch);
    for (int i = 0; i < count; i++) {
        Slot* slot = &slots[i];
        Tensor* x = slot_find(&s, slot, "ViT", file->layers);
        if (slot->data == t->position && from != to) read_position(&s, x, slot->data, file->class_token, from, to, file->width);
        else if (!(heads_differ && (slot->data == t->head_w || slot->data == t->head_b)))
            safetensors_copy(&s, x, slot->data, 0, x->elements);
    }
    if (from != to)
        lines_add(&lines, "%s: position embedding resampled from %d x %d to %d x %d patches", path, from, from, to, to);
    if (heads_differ && file->classes == model->classes)
        lines_add(&lines, "%s: its head is of %d other classes (the first is %s, here %s) and is left out, the model starts a new one", path, file->classes,
                  file->class_name[0], model->class_name[0]);
    else if (heads_differ && file->classes)
        lines_add(&lines, "%s: its head of %d classes is left out, the model has %d and starts a new one", path, file->classes,
                 model->classes);
    else if (heads_differ) lines_add(&lines, "%s: it has no head, the model starts one of %d classes", path, model->classes);
    hub_report_unused(&s, "ViT", inside, sizeof inside / sizeof *inside, &lines);
    free(slots);
    free(path);
    safetensors_close(&s);
    return lines;
}

// ---- writing ----

static void add_int_list(cJSON* object, const char* name, int n, ...) {
    va_list values;
    cJSON* list = cJSON_AddArrayToObject(object, name);
    va_start(values, n);
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(va_arg(values, int)));
    va_end(values);
}

static cJSON* hf_config(const VitConfig* c) {
    cJSON* o = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "architectures"),
                         cJSON_CreateString(c->classes ? "ViTForImageClassification" : "ViTModel"));
    cJSON_AddStringToObject(o, "model_type", "vit");
    cJSON_AddNumberToObject(o, "hidden_size", c->width);
    cJSON_AddNumberToObject(o, "num_hidden_layers", c->layers);
    cJSON_AddNumberToObject(o, "num_attention_heads", c->heads);
    cJSON_AddNumberToObject(o, "intermediate_size", c->mlp);
    cJSON_AddNumberToObject(o, "patch_size", c->patch);
    cJSON_AddNumberToObject(o, "image_size", c->image_size);
    cJSON_AddNumberToObject(o, "num_channels", c->channels);
    cJSON_AddBoolToObject(o, "qkv_bias", c->qkv_bias);
    cJSON_AddStringToObject(o, "hidden_act", "gelu");
    cJSON_AddItemToObject(o, "layer_norm_eps", json_float(c->norm_eps));
    cJSON_AddNumberToObject(o, "hidden_dropout_prob", 0);
    cJSON_AddNumberToObject(o, "attention_probs_dropout_prob", 0);
    cJSON_AddStringToObject(o, "torch_dtype", "float32");
    if (c->classes) hub_add_class_names(o, c->class_name, c->classes);
    return o;
}

static cJSON* hf_preprocessor(const VitConfig* c) {
    cJSON *o = cJSON_CreateObject(), *size;
    cJSON_AddStringToObject(o, "image_processor_type", "ViTImageProcessor");
    cJSON_AddTrueToObject(o, "do_resize");
    size = cJSON_AddObjectToObject(o, "size");
    cJSON_AddNumberToObject(size, "height", c->image_size);
    cJSON_AddNumberToObject(size, "width", c->image_size);
    cJSON_AddNumberToObject(o, "resample", c->bicubic ? 3 : 2);
    cJSON_AddTrueToObject(o, "do_rescale");
    cJSON_AddNumberToObject(o, "rescale_factor", 1.0 / 255);
    cJSON_AddTrueToObject(o, "do_normalize");
    cJSON_AddItemToObject(o, "image_mean", json_float_list(c->mean, 3));
    cJSON_AddItemToObject(o, "image_std", json_float_list(c->std, 3));
    cJSON_AddItemToObject(o, "crop_pct", json_float(c->crop_pct));   // not transformers' own: it resizes the whole image
    return o;
}

// timm builds the named architecture with model_args over it: all of them are given, so the name only has to exist.
static cJSON* timm_config(const VitConfig* c) {
    cJSON *o = cJSON_CreateObject(), *args, *pretrained, *names;
    double ratio = (c->mlp + (c->mlp % c->width ? 0.5 : 0)) / c->width;   // timm truncates width * ratio: aim between two numbers
    cJSON_AddStringToObject(o, "architecture", "vit_base_patch16_224");
    cJSON_AddNumberToObject(o, "num_classes", c->classes);
    cJSON_AddNumberToObject(o, "num_features", c->width);
    cJSON_AddStringToObject(o, "global_pool", c->mean_pool ? "avg" : "token");

    args = cJSON_AddObjectToObject(o, "model_args");
    cJSON_AddNumberToObject(args, "patch_size", c->patch);
    add_int_list(args, "img_size", 2, c->image_size, c->image_size);
    cJSON_AddNumberToObject(args, "embed_dim", c->width);
    cJSON_AddNumberToObject(args, "depth", c->layers);
    cJSON_AddNumberToObject(args, "num_heads", c->heads);
    cJSON_AddNumberToObject(args, "mlp_ratio", ratio);
    cJSON_AddBoolToObject(args, "qkv_bias", c->qkv_bias);
    cJSON_AddBoolToObject(args, "class_token", c->class_token);
    cJSON_AddStringToObject(args, "global_pool", c->mean_pool ? "avg" : "token");
    cJSON_AddBoolToObject(args, "fc_norm", !c->norm_before_pool);

    pretrained = cJSON_AddObjectToObject(o, "pretrained_cfg");
    add_int_list(pretrained, "input_size", 3, c->channels, c->image_size, c->image_size);
    cJSON_AddTrueToObject(pretrained, "fixed_input_size");
    cJSON_AddStringToObject(pretrained, "interpolation", c->bicubic ? "bicubic" : "bilinear");
    cJSON_AddItemToObject(pretrained, "crop_pct", json_float(c->crop_pct));
    cJSON_AddItemToObject(pretrained, "mean", json_float_list(c->mean, 3));
    cJSON_AddItemToObject(pretrained, "std", json_float_list(c->std, 3));
    cJSON_AddNumberToObject(pretrained, "num_classes", c->classes);
    cJSON_AddStringToObject(pretrained, "first_conv", "patch_embed.proj");
    cJSON_AddStringToObject(pretrained, "classifier", "head");
    names = c->class_name ? cJSON_AddArrayToObject(o, "label_names") : NULL;
    for (int i = 0; names && i < c->classes; i++) cJSON_AddItemToArray(names, cJSON_CreateString(c->class_name[i]));
    return o;
}

void vit_write(const char* dir, const VitConfig* c, const VitTensors* t) {
    char *config = format_string("%s/config.json", dir), *preprocessor = format_string("%s/preprocessor_config.json", dir);
    char* weights = format_string("%s/model.safetensors", dir);
    int hf = c->class_token && !c->mean_pool, count;
    if (!hf && c->norm_eps != 1e-6f)
        trouble("%s: a pooled ViT is saved in timm's form, which knows no norm epsilon but 1e-06; this model's is %g", dir,
                c->norm_eps);
    json_write(config, hf ? hf_config(c) : timm_config(c));
    if (hf) json_write(preprocessor, hf_preprocessor(c));

    Slot* slots = vit_slots(c, t, hf ? VIT_HF : VIT_TIMM, hf && c->classes ? "vit." : "", &count);
    slots_write(weights, slots, count);
    free(slots);
    free(config);
    free(preprocessor);
    free(weights);
}
