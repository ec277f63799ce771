// A ViT's model directory: every form of it is read and written bit for bit, the position embedding is resampled as timm does, and
// whatever is wrong is one line. Models are made up here, small; a real one is read where $PREBR_TEST_DATA has it.
#define _GNU_SOURCE
#include "test/test.h"
#include "data/json.h"
#include "data/vit_files.h"
#include "data/vit_names.h"

static char root[] = "/tmp/prebr_vit_XXXXXX";
static char dir[64], config_path[96], weights_path[96], preprocessor_path[96];

// ---- small models ----

static VitConfig small_config(int timm) {
    VitConfig c = {.layers = 3, .width = 12, .heads = 3, .mlp = 29, .patch = 5, .image_size = 20, .channels = 3, .classes = 7,
                   .class_token = !timm, .mean_pool = timm, .norm_before_pool = !timm, .qkv_bias = 1,
                   .norm_eps = timm ? 1e-6f : 1e-12f, .mean = {0.485f, 0.456f, 0.1f}, .std = {0.229f, 0.224f, 1.f / 3},
                   .bicubic = timm, .crop_pct = 0.875f};
    return c;
}

// All arrays of a model in one, random or zero; *all and *count tell where they are.
static VitTensors make_tensors(const VitConfig* c, int random, float** all, size_t* count) {
    size_t C = c->width, M = c->mlp, grid = c->image_size / c->patch, P = c->class_token + grid * grid;
    size_t layer = 4 * C + 3 * C * C + 3 * C + C * C + C + M * C + M + C * M + C;
    *count = C * c->channels * c->patch * c->patch + C + C + P * C + c->layers * layer + 2 * C + c->classes * (C + 1);
    float* at = *all = random ? test_array(*count) : calloc(*count, sizeof **all);
    VitTensors t = {.layer = calloc(c->layers, sizeof *t.layer)};
#define TAKE(n) (at += (n), at - (n))
    t.patch_w = TAKE(C * c->channels * c->patch * c->patch); t.patch_b = TAKE(C);
    t.cls = TAKE(C); t.position = TAKE(P * C);
    if (!c->class_token) memset(t.cls, 0, C * sizeof(float)), t.cls = NULL;
    for (int i = 0; i < c->layers; i++) {
        struct VitLayer* l = &t.layer[i];
        l->norm1_w = TAKE(C); l->norm1_b = TAKE(C);
        l->qkv_w = TAKE(3 * C * C); l->qkv_b = TAKE(3 * C);
        if (!c->qkv_bias) memset(l->qkv_b, 0, 3 * C * sizeof(float)), l->qkv_b = NULL;
        l->proj_w = TAKE(C * C); l->proj_b = TAKE(C);
        l->norm2_w = TAKE(C); l->norm2_b = TAKE(C);
        l->fc1_w = TAKE(M * C); l->fc1_b = TAKE(M);
        l->fc2_w = TAKE(C * M); l->fc2_b = TAKE(C);
    }
    t.norm_w = TAKE(C); t.norm_b = TAKE(C);
    t.head_w = TAKE(c->classes * C); t.head_b = TAKE(c->classes);
#undef TAKE
    return t;
}

static int same_config(const VitConfig* a, const VitConfig* b) {
    int same = a->layers == b->layers && a->width == b->width && a->heads == b->heads && a->mlp == b->mlp &&
               a->patch == b->patch && a->image_size == b->image_size && a->channels == b->channels && a->classes == b->classes &&
               a->class_token == b->class_token && a->mean_pool == b->mean_pool && a->norm_before_pool == b->norm_before_pool &&
               a->qkv_bias == b->qkv_bias && a->norm_eps == b->norm_eps && !memcmp(a->mean, b->mean, sizeof a->mean) &&
               !memcmp(a->std, b->std, sizeof a->std) && a->bicubic == b->bicubic && a->crop_pct == b->crop_pct &&
               !a->class_name == !b->class_name;
    for (int i = 0; same && a->class_name && i < a->classes; i++) same = !strcmp(a->class_name[i], b->class_name[i]);
    return same;
}

static void free_names(VitConfig* c) {
    for (int i = 0; c->class_name && i < c->classes; i++) free(c->class_name[i]);
    free(c->class_name);
}

static void clear_directory(void) {
    unlink(config_path);
    unlink(weights_path);
    unlink(preprocessor_path);
}

// Writes the tensors in any naming and any of the three dtypes (values rounded by cutting off), plus a tensor of the name `extra`.
static void write_weights(const VitConfig* c, const VitTensors* t, VitNaming naming, const char* prefix, int dtype,
                          const char* extra, const char* without) {
    int count;
    int64_t one[1] = {1};
    Slot* slots = vit_slots(c, t, naming, prefix, &count);
    SafetensorsWriter* w = safetensors_create(weights_path);
    for (int i = 0; i < count; i++)
        if (!without || strcmp(without, slots[i].name))
            safetensors_declare(w, slots[i].name, dtype, slots[i].ndim, slots[i].shape);
    if (extra) safetensors_declare(w, extra, DTYPE_F32, 1, one);
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < slots[i].elements && (!without || strcmp(without, slots[i].name)); k++) {
            uint32_t bits;
            memcpy(&bits, &slots[i].data[k], 4);
            uint16_t half = dtype == DTYPE_BF16 ? (uint16_t)(bits >> 16)
                                                : (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - 0x38000000) >> 13));
            safetensors_write(w, dtype == DTYPE_F32 ? (void*)&slots[i].data[k] : &half, dtype == DTYPE_F32 ? 4 : 2);
        }
    if (extra) safetensors_write(w, &(float){0}, 4);
    safetensors_finish(w);
    free(slots);
}

static void write_text(const char* path, const char* text) {
    FILE* f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

// ---- good directories ----

static void round_trips(void) {
    static char* names[] = {"cat", "dog \"x\"", "\303\244pfel", "d", "e", "f", "g"};
    for (int variant = 0; variant < 24; variant++) {
        VitConfig c = small_config(variant & 1);
        c.qkv_bias = !(variant & 2);
        c.class_name = variant & 4 ? names : NULL;
        if (variant >= 8 && variant < 16) c.classes = 0, c.class_name = NULL;
        if (variant >= 16 && (variant & 1)) c.class_token = 1, c.norm_before_pool = variant & 2 ? 1 : 0;
        float *a, *b;
        size_t n, m;
        VitTensors t = make_tensors(&c, 1, &a, &n), u = make_tensors(&c, 0, &b, &m);
        vit_write(dir, &c, &t);
        VitConfig d = vit_config_read(dir, 1);
        CHECK(same_config(&c, &d), "variant %d", variant);
        CHECK(!access(preprocessor_path, F_OK) == !c.mean_pool, "variant %d: preprocessor_config.json", variant);
        char* lines = vit_tensors_read(dir, &d, &d, &u);
        CHECK(!memcmp(a, b, n * sizeof *a), "variant %d: tensors differ", variant);
        CHECK(!*lines, "variant %d: \"%s\"", variant, lines);
        unlink(weights_path);
        VitConfig e = vit_config_read(dir, 0);
        CHECK(same_config(&c, &e), "variant %d, without weights", variant);
        clear_directory();
        free_names(&d);
        free_names(&e);
        free(lines);
        free(a), free(b), free(t.layer), free(u.layer);
    }
}

// The names that transformers 5 has inside, a bare ViTModel with its pooler, and half precision.
static void other_forms(void) {
    static const struct { VitNaming naming; const char* prefix; int classes, dtype; } forms[] = {
        {VIT_HF_MODULE, "vit.", 7, DTYPE_F32}, {VIT_HF_MODULE, "", 0, DTYPE_F32}, {VIT_HF, "", 0, DTYPE_F32},
        {VIT_HF, "vit.", 7, DTYPE_BF16}, {VIT_HF, "vit.", 7, DTYPE_F16}};
    for (int i = 0; i < 5; i++) {
        VitConfig c = small_config(0);
        c.classes = forms[i].classes;
        float *a, *b;
        size_t n, m;
        VitTensors t = make_tensors(&c, 1, &a, &n), u = make_tensors(&c, 0, &b, &m);
        for (size_t k = 0; k < n; k++) {   // values that both half precisions have: 8 bits of mantissa, not too small
            float cut = ldexpf(truncf(a[k] * 128), -7);
            a[k] = cut == 0 ? 1 : cut;
        }
        vit_write(dir, &c, &t);
        write_weights(&c, &t, forms[i].naming, forms[i].prefix, forms[i].dtype, c.classes ? NULL : "pooler.dense.bias", NULL);
        VitConfig d = vit_config_read(dir, 1);
        CHECK(same_config(&c, &d), "form %d", i);
        char* lines = vit_tensors_read(dir, &d, &d, &u);
        CHECK(!memcmp(a, b, n * sizeof *a), "form %d: tensors differ", i);
        CHECK(c.classes ? !*lines : strstr(lines, "not used: pooler.dense.bias\n") != NULL, "form %d: \"%s\"", i, lines);
        clear_directory();
        free(lines);
        free(a), free(b), free(t.layer), free(u.layer);
    }
}

// Another resolution and another number of classes than the file's. expected: timm's resample_abs_pos_embed of the numbers i * i * 7 % 11.
static void other_sizes(void) {
    static const struct { int from, to; float expected[25]; } golden[] = {
        {4, 2, {5.321579f, 6.617939f, 7.12996f, 4.504525f}},
        {4, 3, {2.129812f, 7.85907f, 6.715877f, 5.818418f, 8.738845f, 2.696237f, 7.037237f, 6.830056f, 3.024633f}},
        {3, 5, {-1.206123f, 2.270769f, 7.377358f, 6.644466f, 5.571378f, 2.525486f, 3.503174f, 5.246268f, 6.817945f,
                7.662067f,  8.452829f, 5.537313f, 2,         6.925375f, 10.60377f, 10.25148f, 6.574515f, 1.77612f,
                6.035866f,  9.416782f, 10.76611f, 7.030132f, 2,         5.432555f, 8.290494f}},
    };
    for (int g = 0; g < 3; g++) {
        VitConfig c = small_config(0), d;
        c.image_size = golden[g].from * c.patch;
        d = c;
        d.image_size = golden[g].to * c.patch;
        d.classes = 3;
        float *a, *b;
        size_t n, m;
        int C = c.width, from = golden[g].from * golden[g].from, to = golden[g].to * golden[g].to;
        VitTensors t = make_tensors(&c, 1, &a, &n), u = make_tensors(&d, 0, &b, &m);
        for (int i = 0; i < from; i++)
            for (int k = 0; k < C; k++) t.position[(i + 1) * C + k] = (float)(i * i * 7 % 11 * (k + 1));
        vit_write(dir, &c, &t);
        VitConfig file = vit_config_read(dir, 1);
        u.head_w[0] = 42;
        char* lines = vit_tensors_read(dir, &file, &d, &u);
        CHECK(!memcmp(u.position, t.position, C * sizeof(float)), "the class token's row changed");
        for (int i = 0; i < to; i++)
            for (int k = 0; k < C; k++) {
                float got = u.position[(i + 1) * C + k], want = golden[g].expected[i] * (float)(k + 1);
                CHECK(fabsf(got - want) <= 1e-5f * (1 + fabsf(want)), "%d -> %d, row %d, channel %d: %g, not %g", golden[g].from,
                      golden[g].to, i, k, got, want);
            }
        CHECK(u.head_w[0] == 42 && u.head_w[1] == 0, "the head was touched");
        CHECK(!memcmp(u.layer[2].fc2_w, t.layer[2].fc2_w, (size_t)C * c.mlp * sizeof(float)), "other tensors");
        CHECK(strstr(lines, "position embedding resampled from") &&
                  strstr(lines, "its head of 7 classes is left out, the model has 3"),
              "%s", lines);
        clear_directory();
        free(lines);
        free(a), free(b), free(t.layer), free(u.layer);
    }
}

// What timm leaves to the name, and configs that need no weights.
static void timm_names(void) {
    static const struct {
        const char* config;
        int width, layers, heads, mlp, patch, image, classes, class_token, mean_pool;
    } cases[] = {{"{\"architecture\": \"vit_small_patch8_224\", \"num_classes\": 10}", 384, 12, 6, 1536, 8, 224, 10, 1, 0},
                 {"{\"architecture\": \"vit_huge_patch14_224\", \"pretrained_cfg\": {\"num_classes\": 0}}", 1280, 32, 16, 5120,
                  14, 224, 0, 1, 0},
                 {"{\"architecture\": \"vit_giant_patch14_224\", \"pretrained_cfg\": {\"input_size\": [3, 230, 230]}}", 1408, 40,
                  16, 6144, 14, 224, 1000, 1, 0},
                 {"{\"architecture\": \"vit_base_patch16_gap_224\"}", 768, 12, 16, 3072, 16, 224, 1000, 0, 1},
                 {"{\"architecture\": \"deit_tiny_patch16_224\", \"model_args\": {\"img_size\": 96, \"depth\": 5, "
                  "\"drop_path_rate\": 0.1}}",
                  192, 5, 3, 768, 16, 96, 1000, 1, 0},
                 {"{\"architecture\": \"test_vit\", \"model_args\": {\"num_heads\": 4, \"embed_dim\": 80, \"mlp_ratio\": 2.5, "
                  "\"init_values\": null}}",
                  80, 6, 4, 200, 16, 224, 1000, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(config_path, cases[i].config);
        VitConfig c = vit_config_read(dir, 0);
        CHECK(c.width == cases[i].width && c.layers == cases[i].layers && c.heads == cases[i].heads && c.mlp == cases[i].mlp &&
                  c.patch == cases[i].patch && c.image_size == cases[i].image && c.classes == cases[i].classes &&
                  c.class_token == cases[i].class_token && c.mean_pool == cases[i].mean_pool && c.norm_eps == 1e-6f,
              "%s", cases[i].config);
        CHECK(c.mean[0] == (i == 4 ? 0.485f : 0.5f), "mean of %s", cases[i].config);
    }
    clear_directory();
}

static void preprocessing(void) {
    static const struct { const char* text; float mean, std, crop; int bicubic; } cases[] = {
        {"{}", 0.5f, 0.5f, 1, 0},
        {"{\"resample\": 3, \"image_mean\": [0.1, 0.2, 0.3]}", 0.1f, 0.5f, 1, 1},
        {"{\"do_normalize\": false, \"image_mean\": [0.1, 0.2, 0.3]}", 0, 1, 1, 0},
        {"{\"size\": {\"shortest_edge\": 256}, \"do_center_crop\": true, \"crop_size\": {\"height\": 224, \"width\": 224}}", 0.5f,
         0.5f, 0.875f, 0},
        {"{\"size\": 224, \"image_std\": [0.25, 1, 1]}", 0.5f, 0.25f, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(config_path, "{\"model_type\": \"vit\"}");
        write_text(preprocessor_path, cases[i].text);
        VitConfig c = vit_config_read(dir, 0);
        CHECK(c.mean[0] == cases[i].mean && c.std[0] == cases[i].std && c.crop_pct == cases[i].crop &&
                  c.bicubic == cases[i].bicubic,
              "%s", cases[i].text);
        CHECK(c.width == 768 && c.heads == 12 && c.classes == 2 && c.norm_eps == 1e-12f, "defaults");
    }
    clear_directory();
}

// ---- bad directories ----

static void read_config(const void* need_weights) { vit_config_read(dir, *(const int*)need_weights); }

static void read_all(const void* model) {
    VitConfig c = vit_config_read(dir, 1);
    float* all;
    size_t n;
    VitTensors t = make_tensors(&c, 0, &all, &n);
    vit_tensors_read(dir, &c, model ? model : &c, &t);
}

static const int yes = 1, no = 0;

static void bad_configs(void) {
    static const struct { const char *config, *expected; } cases[] = {
        {"", "config.json: line 1: not valid JSON"},
        {"{\n\"a\": 1,\n\"b\" 2}", "config.json: line 3: not valid JSON"},
        {"[1]", "not a JSON object"},
        {"{\"a\": 1}", "neither Hugging Face's config of a ViT (hidden_size) nor timm's"},
        {"{\"model_type\": \"deit\"}", "config.json: model_type is 'deit'"},
        {"{\"model_type\": 3}", "model_type is 3; a text is expected"},
        {"{\"hidden_size\": 12.5}", "hidden_size is 12.5; a whole number from 1 to"},
        {"{\"hidden_size\": -3}", "hidden_size is -3"},
        {"{\"hidden_size\": 1e99}", "hidden_size is 1e+99"},
        {"{\"hidden_size\": \"x\"}", "hidden_size is \"x\""},
        {"{\"hidden_size\": 10, \"num_attention_heads\": 3}", "3 heads do not divide the width 10"},
        {"{\"hidden_size\": 12, \"image_size\": [32, 16]}", "image_size is not one square size"},
        {"{\"hidden_size\": 12, \"patch_size\": []}", "patch_size is not one square size"},
        {"{\"hidden_size\": 12, \"patch_size\": 32, \"image_size\": 16}", "an image of 16 pixels is smaller than a patch of 32"},
        {"{\"hidden_size\": 12, \"num_channels\": 1}", "images of 1 channels; 3 are expected"},
        {"{\"hidden_size\": 12, \"hidden_act\": \"quick_gelu\"}", "hidden_act is 'quick_gelu'; only 'gelu'"},
        {"{\"hidden_size\": 12, \"qkv_bias\": 1}", "qkv_bias is 1; true or false is expected"},
        {"{\"hidden_size\": 12, \"layer_norm_eps\": -1}", "epsilon is -1"},
        {"{\"hidden_size\": 12, \"id2label\": [\"a\"]}", "id2label is not an object"},
        {"{\"hidden_size\": 12, \"id2label\": {\"0\": \"a\", \"2\": \"b\"}}", "id2label: \"2\" is not a class from 0 to 1"},
        {"{\"hidden_size\": 12, \"id2label\": {\"0\": \"a\", \"00\": \"b\"}}", "id2label: \"00\" is not a class"},
        {"{\"architecture\": 5}", "architecture is 5; a text"},
        {"{\"architecture\": \"convnext_large\"}", "embed_dim is missing"},
        {"{\"architecture\": \"vit_odd\", \"model_args\": {\"embed_dim\": 64, \"depth\": 2}}",
         "'vit_odd' with width 64 has an unknown number of heads"},
        {"{\"architecture\": \"vit_base_patch16_rpn_224\"}", "has norms after the residual branches"},
        {"{\"architecture\": \"vit_base_patch32_clip_quickgelu_224\"}", "has another GELU"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"model_args\": {\"qk_norm\": true}}", "model_args.qk_norm is set"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"model_args\": {\"act_layer\": \"relu\"}}",
         "model_args.act_layer is set"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"model_args\": {\"final_norm\": false}}", "model_args.final_norm is set"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"global_pool\": \"map\"}", "global_pool is 'map'"},
        {"{\"architecture\": \"vit_base_patch16_gap_224\", \"global_pool\": \"token\"}", "there is no class token"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"model_args\": {\"mlp_ratio\": 1e300}}", "mlp_ratio gives an MLP of"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"pretrained_cfg\": {\"mean\": [0.5]}}",
         "mean is [0.5]; a list of 3 numbers"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"pretrained_cfg\": {\"std\": [1, 0, 1]}}", "deviation of channel 1 is 0"},
        {"{\"architecture\": \"vit_tiny_patch16_224\", \"pretrained_cfg\": {\"crop_pct\": 40}}", "crop_pct is 40"}};
    test_dies(read_config, &no, "config.json: cannot be opened: No such file", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(config_path, cases[i].config);
        test_dies(read_config, &no, cases[i].expected, 1);
    }
    write_text(config_path, "{\"model_type\": \"vit\"}");
    write_text(preprocessor_path, "{\"rescale_factor\": 1}");
    test_dies(read_config, &no, "preprocessor_config.json: pixels are not scaled by 1/255", 1);
    write_text(preprocessor_path, "{\"resample\": \"best\"}");
    test_dies(read_config, &no, "preprocessor_config.json: resample is \"best\"", 1);
    unlink(preprocessor_path);
    test_dies(read_config, &yes, "model.safetensors is missing; a model directory holds", 1);
    char* other = format_string("%s/pytorch_model.bin", dir);
    write_text(other, "");
    test_dies(read_config, &yes, "pytorch_model.bin; scripts/convert_checkpoint.py makes the one of the other", 1);
    unlink(other);
    free(other);
    clear_directory();
}

static void bad_weights(void) {
    static const struct { int timm; const char *extra, *without, *expected; } cases[] = {
        {0, NULL, "vit.encoder.layer.1.output.dense.bias", "tensor 'vit.encoder.layer.1.output.dense.bias' is missing"},
        {0, NULL, "vit.embeddings.patch_embeddings.projection.weight", "not a ViT of Hugging Face"},
        {0, "vit.encoder.layer.3.output.dense.bias", NULL, "'vit.encoder.layer.3.output.dense.bias' has no place in the model"},
        {0, "vit.embeddings.distillation_token", NULL, "a distillation token, which is not computed"},
        {0, NULL, "classifier.bias", "tensor 'classifier.bias' is missing"},
        {1, "blocks.0.ls1.gamma", NULL, "'blocks.0.ls1.gamma' means layer scale, which is not computed here"},
        {1, "blocks.0.attn.q_norm.weight", NULL, "normalised queries and keys"},
        {1, "reg_token", NULL, "register tokens"},
        {1, "attn_pool.latent", NULL, "attention pooling"},
        {1, "norm_pre.weight", NULL, "a norm before the first block"},
        {1, "dist_token", NULL, "a distillation token"},
        {1, "cls_token", NULL, "pos_embed has no row for the class token"},
        {1, "blocks.0.attn.new", NULL, "'blocks.0.attn.new' has no place in the model"},
        {1, NULL, "pos_embed", "'pos_embed' is missing"},
        {1, NULL, "blocks.1.norm1.weight", "model_args.depth is 3, but the file of weights has 1"},
        {1, NULL, "fc_norm.bias", "tensor 'fc_norm.bias' is missing"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        VitConfig c = small_config(cases[i].timm);
        float* a;
        size_t n;
        VitTensors t = make_tensors(&c, 1, &a, &n);
        vit_write(dir, &c, &t);
        write_weights(&c, &t, cases[i].timm ? VIT_TIMM : VIT_HF, cases[i].timm ? "" : "vit.", DTYPE_F32, cases[i].extra,
                      cases[i].without);
        test_dies(read_all, NULL, cases[i].expected, 1);
        clear_directory();
        free(a), free(t.layer);
    }
}

// Config and weights of different models, a NaN, an image size that does not divide, and a form that cannot be written.
static void write_odd_epsilon(const void* config) {
    VitTensors none = {0};
    vit_write(dir, config, &none);
}

static void contradictions(void) {
    VitConfig c = small_config(0), other = c;
    float* a;
    size_t n;
    VitTensors t = make_tensors(&c, 1, &a, &n);
    vit_write(dir, &c, &t);
    other.image_size = 23;
    test_dies(read_all, &other, "images of 23 pixels do not divide into patches of 5", 1);

    char* plain = NULL;
    FILE* f = fopen(config_path, "rb");
    size_t room = 0;
    CHECK(getdelim(&plain, &room, 0, f) > 0, "config.json");
    fclose(f);
    static const struct { const char *from, *to, *expected; } edits[] = {
        {"\"intermediate_size\":\t29", "\"intermediate_size\":\t28",
         "'vit.encoder.layer.0.intermediate.dense.weight' has shape [29, 12], config.json makes it [28, 12]"},
        {"\"num_hidden_layers\":\t3", "\"num_hidden_layers\":\t2", "'vit.encoder.layer.2.layernorm_before.weight' has no place"},
        {"\"image_size\":\t20", "\"image_size\":\t25",
         "'vit.embeddings.position_embeddings' has shape [1, 17, 12], config.json makes it [1, 26, 12]"},
        {"\"qkv_bias\":\ttrue", "\"qkv_bias\":\tfalse", "query.bias' has no place"},
        {"\"6\":\t\"LABEL_6\"", "\"6\":\t\"x\", \"7\": \"y\"", "the number of labels is 8, but the classifier has 7"},
        {"\"model_type\"", "\"architecture\"", "is timm's, but the tensors of"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char* place = strstr(plain, edits[i].from);
        CHECK(place, "%s is not in %s", edits[i].from, plain);
        if (!place) continue;
        char* edited = format_string("%.*s%s%s", (int)(place - plain), plain, edits[i].to, place + strlen(edits[i].from));
        write_text(config_path, edited);
        test_dies(read_all, NULL, edits[i].expected, 1);
        free(edited);
    }
    write_text(config_path, plain);
    free(plain);
    t.layer[1].qkv_w[12 * 12 + 5] = NAN;   // element 5 of the second layer's key matrix
    write_weights(&c, &t, VIT_HF, "vit.", DTYPE_F32, NULL, NULL);
    test_dies(read_all, NULL, "'vit.encoder.layer.1.attention.attention.key.weight' has NaN at element 5", 1);
    truncate(weights_path, 5000);
    test_dies(read_all, NULL, "model.safetensors: ", 1);
    clear_directory();
    other = small_config(1);
    other.norm_eps = 1e-5f;
    test_dies(write_odd_epsilon, &other, "knows no norm epsilon but 1e-06; this model's is 1e-05", 1);
    free(a), free(t.layer);
}

static void real_checkpoint(void) {
    const char* data = getenv("PREBR_TEST_DATA");
    char* path = format_string("%s/vit_tiny_patch16_224", data ? data : "/nowhere");
    if (!access(path, R_OK)) {
        VitConfig c = vit_config_read(path, 1);
        CHECK(c.width == 192 && c.layers == 12 && c.heads == 3 && c.mlp == 768 && c.patch == 16 && c.image_size == 224 &&
                  c.classes == 1000 && c.class_token && !c.mean_pool && c.norm_before_pool && c.qkv_bias && c.norm_eps == 1e-6f &&
                  c.mean[1] == 0.5f && c.bicubic && c.crop_pct == 0.9f,
              "config");
        float *a, *b;
        size_t n, m;
        VitTensors t = make_tensors(&c, 0, &a, &n), u = make_tensors(&c, 0, &b, &m);
        char *lines = vit_tensors_read(path, &c, &c, &t), *again;
        CHECK(!*lines, "%s", lines);
        vit_write(dir, &c, &t);
        VitConfig d = vit_config_read(dir, 1);
        CHECK(same_config(&c, &d), "config after writing");
        again = vit_tensors_read(dir, &d, &d, &u);
        CHECK(!*again && !memcmp(a, b, n * sizeof *a), "tensors after writing");
        clear_directory();
        free(lines), free(again);
        free(a), free(b), free(t.layer), free(u.layer);
    } else {
        printf("no real checkpoint: %s\n", path);
    }
    free(path);
}

int main(void) {
    if (!mkdtemp(root)) { perror(root); return 1; }
    snprintf(dir, sizeof dir, "%s", root);
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", dir);
    snprintf(preprocessor_path, sizeof preprocessor_path, "%s/preprocessor_config.json", dir);
    round_trips();
    other_forms();
    other_sizes();
    timm_names();
    preprocessing();
    bad_configs();
    bad_weights();
    contradictions();
    real_checkpoint();
    clear_directory();
    rmdir(dir);
    TEST_END();
}
