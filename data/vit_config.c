// A ViT's config: Hugging Face says everything in config.json; timm names an architecture, and the tensors' shapes say the rest.
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "hub.h"
#include "json.h"
#include "vit_names.h"

// Bounds on what a config may say, so that no product of two of them leaves 32 bits but by intent.
enum { MOST_LAYERS = 1000, MOST_WIDTH = 1 << 15, MOST_MLP = 1 << 20 };
enum { MOST_PATCH = 1024, MOST_IMAGE = 1 << 14, MOST_CLASSES = 1 << 24 };

// timm's plain ViTs: what a name stands for. The number of heads is nowhere else in its files; the rest is for want of tensors.
// The first pattern that fits counts. Names that fit none, or whose tensors have another width, need model_args.
static const struct { const char* pattern; int width, layers, heads, mlp; } known[] = {
    {"vit_base_patch16_gap_224", 768, 12, 16, 3072}, {"test_vit", 64, 6, 2, 192},
    {"*_tiny_*", 192, 12, 3, 768},      {"*_small_*", 384, 12, 6, 1536},    {"*_base_*", 768, 12, 12, 3072},
    {"*_large_*", 1024, 24, 16, 4096},  {"*_huge_*", 1280, 32, 16, 5120},   {"*_giant_*", 1408, 40, 16, 6144},
    {"*_gigantic_*", 1664, 48, 16, 8192}, {"*_so400m_*", 1152, 27, 16, 4304},
    {"flexivit_small", 384, 12, 6, 1536}, {"flexivit_base", 768, 12, 12, 3072}, {"flexivit_large", 1024, 24, 16, 4096},
};
enum { KNOWN = sizeof known / sizeof *known };

// Architectures of timm whose tensors look like a plain ViT's but are computed otherwise.
static const struct { const char *pattern, *meaning; } deceptive[] = {
    {"*_rpn_*", "norms after the residual branches"},
    {"*quickgelu*", "another GELU"},
    {"vit_base_patch32_siglip_*", "the tanh GELU"},
    {"vit_large_patch16_siglip_*512", "the tanh GELU"},
    {"vit_so400m_patch16_siglip_*", "the tanh GELU"},
    {"vit_giantopt_*", "the tanh GELU"},
    {"*_dinov3*", "rotary positions"},
};

static void set3(float out[3], float a, float b, float c) { out[0] = a; out[1] = b; out[2] = c; }

// A size given as one number or as [height, width]; both must be equal.
static int square_size(const char* path, const cJSON* object, const char* name, int fallback, int most) {
    const cJSON* item = json_member(object, name);
    if (!cJSON_IsArray(item)) return json_int(path, object, name, fallback, 1, most);
    int n = cJSON_GetArraySize(item);
    const cJSON *height = cJSON_GetArrayItem(item, n - 2), *width = cJSON_GetArrayItem(item, n - 1);   // NULL where there is none
    if (!cJSON_IsNumber(height) || !cJSON_IsNumber(width) || height->valuedouble != width->valuedouble ||
        width->valuedouble < 1 || width->valuedouble > most || width->valuedouble != floor(width->valuedouble))
        trouble("%s: %s is not one square size from 1 to %d; only square images and patches are computed here", path, name, most);
    return (int)width->valuedouble;
}

// ---- Hugging Face ----

static void hf_classes(VitConfig* c, const char* path, const cJSON* config, const Safetensors* s) {
    const cJSON *labels = json_member(config, "id2label"), *kinds = json_member(config, "architectures");
    const char* kind = cJSON_GetStringValue(cJSON_GetArrayItem(kinds, 0));
    if (labels && !cJSON_IsObject(labels)) trouble("%s: id2label is not an object; {\"0\": \"name\", ...} is expected", path);
    int named = cJSON_GetArraySize(labels);
    int said = named ? named : json_int(path, config, "num_labels", 0, 0, MOST_CLASSES);
    if (s) c->classes = hub_head_rows(s, "classifier.weight", MOST_CLASSES);
    else if (kind && strcmp(kind, "ViTForImageClassification")) c->classes = 0;
    else c->classes = said ? said : 2;   // 2 is what transformers takes where nothing is said
    if (c->classes && said) hub_must_equal(path, "the number of labels", said, "the classifier", c->classes);
    if (c->classes && named) c->class_name = hub_class_names(path, labels, c->classes);
}

// preprocessor_config.json, where there is one; the whole image is resized unless it says otherwise.
static void hf_preprocessing(VitConfig* c, const char* dir) {
    char* path = format_string("%s/preprocessor_config.json", dir);
    set3(c->mean, 0.5f, 0.5f, 0.5f);
    set3(c->std, 0.5f, 0.5f, 0.5f);
    c->crop_pct = 1;
    if (!access(path, F_OK)) {
        cJSON* p = json_read(path);
        json_floats(path, p, "image_mean", c->mean, 3);
        json_floats(path, p, "image_std", c->std, 3);
        if (!json_bool(path, p, "do_normalize", 1)) {
            set3(c->mean, 0, 0, 0);
            set3(c->std, 1, 1, 1);
        }
        if (!json_bool(path, p, "do_rescale", 1) || fabs(json_number(path, p, "rescale_factor", 1.0 / 255) * 255 - 1) > 1e-3)
            trouble("%s: pixels are not scaled by 1/255; set do_rescale and rescale_factor so, and mean and std for it", path);
        int resample = json_int(path, p, "resample", 2, 0, 5);   // PIL's numbers
        c->bicubic = resample == 3;
        if (resample != 2 && resample != 3)
            warn("%s: resample %d is neither bilinear (2) nor bicubic (3); bilinear is used", path, resample);
        c->crop_pct = (float)json_number(path, p, "crop_pct", 1);
        int crop = json_int(path, json_member(p, "crop_size"), "height", 0, 1, MOST_IMAGE);
        int edge = json_int(path, json_member(p, "size"), "shortest_edge", 0, 1, MOST_IMAGE);
        if (json_bool(path, p, "do_center_crop", 0) && crop && edge) c->crop_pct = (float)crop / (float)edge;
        cJSON_Delete(p);
    }
    free(path);
}

static void hf_config(VitConfig* c, const char* dir, const char* path, const cJSON* config, const Safetensors* s) {
    const char* type = json_text(path, config, "model_type", "vit");
    const char* act = json_text(path, config, "hidden_act", "gelu");
    if (strcmp(type, "vit")) trouble("%s: model_type is '%s'; a plain 'vit' is expected", path, type);
    if (strcmp(act, "gelu")) trouble("%s: hidden_act is '%s'; only 'gelu' is computed here", path, act);
    c->width = json_int(path, config, "hidden_size", 768, 1, MOST_WIDTH);
    c->layers = json_int(path, config, "num_hidden_layers", 12, 1, MOST_LAYERS);
    c->heads = json_int(path, config, "num_attention_heads", 12, 1, MOST_WIDTH);
    c->mlp = json_int(path, config, "intermediate_size", 3072, 1, MOST_MLP);
    c->channels = json_int(path, config, "num_channels", 3, 1, 1000);
    c->patch = square_size(path, config, "patch_size", 16, MOST_PATCH);
    c->image_size = square_size(path, config, "image_size", 224, MOST_IMAGE);
    c->qkv_bias = json_bool(path, config, "qkv_bias", 1);
    c->norm_eps = (float)json_number(path, config, "layer_norm_eps", 1e-12);
    c->class_token = c->norm_before_pool = 1;
    hf_classes(c, path, config, s);
    hf_preprocessing(c, dir);
}

// ---- timm ----

// model_args may hold anything the constructor takes. What only matters while timm trains, and what is read below, may pass; every
// other argument must have the value that leaves the arithmetic a plain ViT's.
static void check_model_args(const char* path, const cJSON* args) {
    static const char* const fine[] = {"patch_size",       "embed_dim",      "depth",          "num_heads",     "mlp_ratio",
                                       "img_size",         "class_token",    "global_pool",    "fc_norm",       "qkv_bias",
                                       "num_classes",      "in_chans",       "drop_rate",      "pos_drop_rate", "patch_drop_rate",
                                       "proj_drop_rate",   "attn_drop_rate", "drop_path_rate", "weight_init",   "fix_init",
                                       "dynamic_img_size", "strict_img_size"};
    static const struct { const char *name, *plain; } plain[] = {
        {"pos_embed", "learn"}, {"act_layer", "gelu"},  {"norm_layer", "layernorm"},
        {"mlp_layer", "mlp"},   {"attn_layer", "attn"}, {"block_fn", "block"}};
    const cJSON* arg;
    cJSON_ArrayForEach(arg, args) {
        const char* text = cJSON_GetStringValue(arg);
        int ok = cJSON_IsNull(arg) || cJSON_IsFalse(arg) || (cJSON_IsNumber(arg) && arg->valuedouble == 0) || (text && !*text);
        if (!strcmp(arg->string, "final_norm") || !strcmp(arg->string, "proj_bias")) ok = cJSON_IsTrue(arg);
        for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) ok |= !strcmp(arg->string, fine[i]);
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            ok |= text && !strcmp(arg->string, plain[i].name) && !strcmp(text, plain[i].plain);
        if (!ok) trouble("%s: model_args.%s is set; what it changes is not computed here: use a plain ViT", path, arg->string);
    }
}

static const Tensor* shaped(const Safetensors* s, const char* name, int ndim, int64_t most) {
    const Tensor* t = safetensors_find(s, name);
    if (!t) trouble("%s: tensor '%s' is missing; the file is not a whole ViT", s->path, name);
    if (t->ndim != ndim) trouble("%s: tensor '%s' has %d dimensions, %d are expected", s->path, name, t->ndim, ndim);
    for (int i = 0; i < ndim; i++)
        if (t->shape[i] < 1 || t->shape[i] > most)
            trouble("%s: tensor '%s': dimension %d is %lld", s->path, name, i, (long long)t->shape[i]);
    return t;
}

static void timm_sizes_of_tensors(VitConfig* c, const char* path, const Safetensors* s) {
    const Tensor* patch = shaped(s, "patch_embed.proj.weight", 4, MOST_WIDTH);
    c->width = (int)patch->shape[0];
    c->channels = (int)patch->shape[1];
    c->patch = (int)patch->shape[2];
    if (patch->shape[2] != patch->shape[3] || c->patch > MOST_PATCH)
        trouble("%s: the patches are not square; only square ones are computed here", s->path);

    char name[64];
    do snprintf(name, sizeof name, "blocks.%d.norm1.weight", c->layers);
    while (c->layers <= MOST_LAYERS && safetensors_find(s, name) && ++c->layers);
    if (c->layers > MOST_LAYERS) trouble("%s: more than %d layers", s->path, MOST_LAYERS);
    c->mlp = (int)shaped(s, "blocks.0.mlp.fc1.weight", 2, MOST_MLP)->shape[0];
    c->qkv_bias = safetensors_find(s, "blocks.0.attn.qkv.bias") != NULL;
    c->class_token = safetensors_find(s, "cls_token") != NULL;
    c->norm_before_pool = !safetensors_find(s, "fc_norm.weight");
    c->classes = hub_head_rows(s, "head.weight", MOST_CLASSES);

    int rows = (int)shaped(s, "pos_embed", 3, MOST_IMAGE * MOST_IMAGE / 4)->shape[1];
    int grid = (int)sqrt(rows - c->class_token), whole = (int)sqrt(rows);
    if (c->class_token && rows > 1 && whole * whole == rows)
        trouble("%s: pos_embed has no row for the class token (no_embed_class), which is not computed here; use a plain ViT",
                path);
    if (grid < 1 || grid * grid != rows - c->class_token)
        trouble("%s: pos_embed has %d rows, which is no square grid%s; only square images are computed here", s->path, rows,
                c->class_token ? " and a class token" : "");
    if (grid * c->patch > MOST_IMAGE)
        trouble("%s: pos_embed is for images of %d pixels, more than %d", s->path, grid * c->patch, MOST_IMAGE);
    c->image_size = grid * c->patch;
}

// For a plan without weights: what the name stands for.
static void timm_sizes_of_name(VitConfig* c, const char* path, const char* name, const cJSON* args, const cJSON* pretrained) {
    int k = 0;
    while (k < KNOWN && fnmatch(known[k].pattern, name, 0)) k++;
    const char* patch = strstr(name, "_patch");
    c->width = json_int(path, args, "embed_dim", k < KNOWN ? known[k].width : JSON_NEEDED, 1, MOST_WIDTH);
    c->layers = json_int(path, args, "depth", k < KNOWN ? known[k].layers : JSON_NEEDED, 1, MOST_LAYERS);
    int same_width = k < KNOWN && c->width == known[k].width;
    double mlp = c->width * json_number(path, args, "mlp_ratio", same_width ? known[k].mlp / (double)c->width : 4);
    if (!(mlp >= 1 && mlp <= MOST_MLP))
        trouble("%s: model_args.mlp_ratio gives an MLP of %g; 1 to %d is expected", path, mlp, MOST_MLP);
    c->mlp = (int)mlp;
    c->channels = json_int(path, args, "in_chans", 3, 1, 1000);
    c->patch = square_size(path, args, "patch_size", patch && atoi(patch + 6) > 0 ? atoi(patch + 6) : 16, MOST_PATCH);
    c->image_size = square_size(path, json_member(args, "img_size") ? args : pretrained,
                                json_member(args, "img_size") ? "img_size" : "input_size", 224, MOST_IMAGE);
    c->qkv_bias = json_bool(path, args, "qkv_bias", 1);
    c->class_token = json_bool(path, args, "class_token", !strstr(name, "_gap_"));
    c->norm_before_pool = !json_bool(path, args, "fc_norm", 0);
}

static int timm_heads(const char* path, const char* name, const cJSON* args, int width) {
    if (json_member(args, "num_heads")) return json_int(path, args, "num_heads", JSON_NEEDED, 1, MOST_WIDTH);
    for (int k = 0; k < KNOWN; k++)
        if (!fnmatch(known[k].pattern, name, 0) && known[k].width == width) return known[k].heads;
    trouble("%s: architecture '%s' with width %d has an unknown number of heads; add \"model_args\": {\"num_heads\": ...}", path,
            name, width);
}

static void timm_preprocessing(VitConfig* c, const char* path, const char* name, const cJSON* pretrained) {
    if (!strncmp(name, "deit", 4)) {   // the family's own; plain ViTs have 0.5
        set3(c->mean, 0.485f, 0.456f, 0.406f);
        set3(c->std, 0.229f, 0.224f, 0.225f);
    } else {
        set3(c->mean, 0.5f, 0.5f, 0.5f);
        set3(c->std, 0.5f, 0.5f, 0.5f);
    }
    json_floats(path, pretrained, "mean", c->mean, 3);
    json_floats(path, pretrained, "std", c->std, 3);
    c->crop_pct = (float)json_number(path, pretrained, "crop_pct", 0.9);
    const char* interpolation = json_text(path, pretrained, "interpolation", "bicubic");
    c->bicubic = strcmp(interpolation, "bilinear") != 0;
    if (c->bicubic && strcmp(interpolation, "bicubic"))
        warn("%s: interpolation '%s' is not known here; bicubic is used", path, interpolation);
}

// What the head reads: config, model_args or pretrained_cfg may say so; else what the tensors imply.
static void timm_pooling(VitConfig* c, const char* path, const cJSON* config, const cJSON* args, const cJSON* pretrained) {
    const char* pool = json_text(path, args, "global_pool",
                                 json_text(path, config, "global_pool", json_text(path, pretrained, "global_pool", NULL)));
    if (!pool) pool = c->class_token && c->norm_before_pool ? "token" : "avg";
    if (strcmp(pool, "token") && strcmp(pool, "avg"))
        trouble("%s: global_pool is '%s'; only 'token' and 'avg' are computed here", path, pool);
    c->mean_pool = !strcmp(pool, "avg");
    if (!c->mean_pool && !c->class_token)
        trouble("%s: global_pool is 'token', but there is no class token; 'avg' is expected", path);
}

static void timm_class_names(VitConfig* c, const cJSON* config, const cJSON* pretrained) {
    const cJSON *names = json_member(config, "label_names"), *item;
    if (!names) names = json_member(pretrained, "label_names");
    if (!c->classes || !cJSON_IsArray(names) || cJSON_GetArraySize(names) != c->classes) return;
    int i = 0;
    c->class_name = allocate((size_t)c->classes, sizeof *c->class_name);
    cJSON_ArrayForEach(item, names) c->class_name[i++] = format_string("%s", cJSON_IsString(item) ? item->valuestring : "");
}

static void timm_config(VitConfig* c, const char* path, const cJSON* config, const Safetensors* s) {
    const char* name = json_text(path, config, "architecture", NULL);
    const cJSON *args = json_member(config, "model_args"), *pretrained = json_member(config, "pretrained_cfg");
    if (!pretrained) pretrained = config;   // older files hold it flat
    for (size_t i = 0; i < sizeof deceptive / sizeof *deceptive; i++)
        if (!fnmatch(deceptive[i].pattern, name, 0))
            trouble("%s: architecture '%s' has %s, which is not computed here; use a plain ViT", path, name,
                    deceptive[i].meaning);
    check_model_args(path, args);

    int said = json_int(path, pretrained, "num_classes", -1, 0, MOST_CLASSES);
    said = json_int(path, config, "num_classes", said, 0, MOST_CLASSES);
    if (s) {
        timm_sizes_of_tensors(c, path, s);
        hub_must_equal(path, "model_args.depth", json_int(path, args, "depth", c->layers, 1, MOST_LAYERS), "the file of weights",
                   c->layers);
        hub_must_equal(path, "model_args.embed_dim", json_int(path, args, "embed_dim", c->width, 1, MOST_WIDTH),
                   "the file of weights", c->width);
        if (c->classes && said >= 0) hub_must_equal(path, "num_classes", said, "the head", c->classes);
    } else {
        timm_sizes_of_name(c, path, name, args, pretrained);
        c->classes = said < 0 ? 1000 : said;
    }
    c->heads = timm_heads(path, name, args, c->width);
    c->norm_eps = 1e-6f;
    timm_pooling(c, path, config, args, pretrained);
    timm_preprocessing(c, path, name, pretrained);
    timm_class_names(c, config, pretrained);
}

// ---- both ----

static void check_sizes(const VitConfig* c, const char* dir) {
    if (c->channels != 3) trouble("%s: the model takes images of %d channels; 3 are expected", dir, c->channels);
    if (c->width % c->heads) trouble("%s: %d heads do not divide the width %d", dir, c->heads, c->width);
    if (c->image_size < c->patch)
        trouble("%s: an image of %d pixels is smaller than a patch of %d", dir, c->image_size, c->patch);
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        trouble("%s: the norms' epsilon is %g; a small positive number is expected", dir, c->norm_eps);
    if (!(c->crop_pct > 0.1f && c->crop_pct <= 1))
        trouble("%s: crop_pct is %g; above 0.1 and at most 1 is expected", dir, c->crop_pct);
    for (int i = 0; i < 3; i++)
        if (!(c->std[i] > 0))
            trouble("%s: the standard deviation of channel %d is %g; a positive number is expected", dir, i, c->std[i]);
}

VitConfig vit_config_read(const char* dir, int need_weights) {
    VitConfig c = {0};
    Safetensors s = {0};
    char *path = format_string("%s/config.json", dir), *weights = format_string("%s/model.safetensors", dir);
    cJSON* config = json_read(path);
    int present = !access(weights, F_OK), timm = json_member(config, "architecture") != NULL;
    const char* prefix;

    if (!timm && !json_member(config, "hidden_size") && !json_member(config, "model_type"))
        trouble("%s: neither Hugging Face's config of a ViT (hidden_size) nor timm's (architecture)", path);
    if (present) {
        s = safetensors_open(weights);
        vit_reject_unsupported(&s);
        VitNaming naming = vit_naming(&s, &prefix);
        if (timm != (naming == VIT_TIMM))
            trouble("%s is %s, but the tensors of %s have the other's names; the two files do not belong together", path,
                    timm ? "timm's" : "Hugging Face's", weights);
    } else if (need_weights) {
        hub_no_weights(dir, weights);
    }
    if (timm) timm_config(&c, path, config, present ? &s : NULL);
    else hf_config(&c, dir, path, config, present ? &s : NULL);
    check_sizes(&c, dir);
    c.image_size -= c.image_size % c.patch;   // the patch embedding never sees the rest

    safetensors_close(&s);
    cJSON_Delete(config);
    free(path);
    free(weights);
    return c;
}
