// A BERT's model directory: every form of it is read bit for bit, written and read again, and whatever is wrong is one line.
#define _GNU_SOURCE
#include "data/bert_files.h"

#include <sys/stat.h>

#include "data/safetensors.h"
#include "test.h"

static char root[] = "/tmp/prebr_bert_XXXXXX";
static char dir[64], config_path[96], weights_path[96], vocab_path[96];

static const BertConfig small = {.layers = 2, .width = 12, .heads = 3, .mlp = 29, .vocabulary = 17, .positions = 11, .segments = 2, .pad = 4, .outputs = 3,
                                 .pooler = 1, .norm_eps = 1e-12f, .dropout = 0.1f, .attention_dropout = 0.25f, .head_dropout = 0};

typedef struct { BertTensors t; float* all; size_t n; } Model;

static float* take(Model* m, float** at, size_t n) {
    float* p = *at;
    *at += n;
    m->n += n;
    return p;
}

static Model model_make(const BertConfig* c, int random) {
    Model m = {{0}, random ? test_array(20000) : calloc(20000, sizeof(float)), 0};
    size_t C = (size_t)c->width, M = (size_t)c->mlp;
    float* at = m.all;
    BertTensors* t = &m.t;
    t->word = take(&m, &at, (size_t)c->vocabulary * C);
    t->position = take(&m, &at, (size_t)c->positions * C);
    t->segment = take(&m, &at, (size_t)c->segments * C);
    t->norm_w = take(&m, &at, C);
    t->norm_b = take(&m, &at, C);
    t->layer = calloc((size_t)c->layers, sizeof *t->layer);
    for (int i = 0; i < c->layers; i++) {
        BertLayer* l = &t->layer[i];
        float** place[] = {&l->qkv_w, &l->qkv_b, &l->proj_w, &l->proj_b, &l->norm1_w, &l->norm1_b, &l->fc1_w, &l->fc1_b, &l->fc2_w, &l->fc2_b, &l->norm2_w, &l->norm2_b};
        size_t size[] = {3 * C * C, 3 * C, C * C, C, C, C, M * C, M, C * M, C, C, C};
        for (int k = 0; k < 12; k++) *place[k] = take(&m, &at, size[k]);
    }
    t->pooler_w = take(&m, &at, C * C);
    t->pooler_b = take(&m, &at, C);
    t->head_w = take(&m, &at, (size_t)c->outputs * C);
    t->head_b = take(&m, &at, (size_t)c->outputs);
    return m;
}

static void model_free(Model* m) {
    free(m->t.layer);
    free(m->all);
}

static void write_text(const char* path, const char* text) {
    FILE* f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

static int same_config(const BertConfig* a, const BertConfig* b) {
    return a->layers == b->layers && a->width == b->width && a->heads == b->heads && a->mlp == b->mlp && a->vocabulary == b->vocabulary &&
           a->positions == b->positions && a->segments == b->segments && a->pad == b->pad && a->outputs == b->outputs && a->pooler == b->pooler &&
           a->norm_eps == b->norm_eps && a->dropout == b->dropout && a->attention_dropout == b->attention_dropout && a->head_dropout == b->head_dropout;
}

// The saved file again under other names: every "from" in a name becomes "to"; tensors whose names contain `without` are left out, and a
// tensor `extra` is added.
static void rename_tensors(const char* from, const char* to, const char* without, const char* extra) {
    char copy[128], name[200];
    int64_t one = 1;
    snprintf(copy, sizeof copy, "%s.old", weights_path);
    rename(weights_path, copy);
    Safetensors s = safetensors_open(copy);
    for (int pass = 0; pass < 2; pass++) {
        static SafetensorsWriter* w;
        if (!pass) w = safetensors_create(weights_path);
        for (int i = 0; i < s.count; i++) {
            Tensor* t = &s.tensors[i];
            const char* found = strstr(t->name, from);
            if (without && strstr(t->name, without)) continue;
            if (found) snprintf(name, sizeof name, "%.*s%s%s", (int)(found - t->name), t->name, to, found + strlen(from));
            else snprintf(name, sizeof name, "%s", t->name);
            if (!pass) safetensors_declare(w, name, t->dtype, t->ndim, t->shape);
            else safetensors_write(w, t->data, t->bytes);
        }
        if (extra && !pass) safetensors_declare(w, extra, DTYPE_F32, 1, &one);
        if (extra && pass) safetensors_write(w, &(float){1}, 4);
        if (pass) safetensors_finish(w);
    }
    safetensors_close(&s);
    unlink(copy);
}

static void test_forms(void) {
    static char* names[] = {"yes", "no \"x\"", "\303\244"};
    for (int form = 0; form < 6; form++) {
        BertConfig c = small;
        c.class_name = form == 1 ? names : NULL;
        if (form == 5) c.outputs = 1;
        Model m = model_make(&c, 1), got = model_make(&c, 0);
        bert_write(dir, &c, &m.t, NULL);
        const char* expected = "";
        if (form == 2) rename_tensors("bert.", "", "classifier", "embeddings.position_ids"), c.outputs = 0;
        if (form == 3) {
            rename_tensors("LayerNorm.weight", "LayerNorm.gamma", NULL, NULL);
            rename_tensors("LayerNorm.bias", "LayerNorm.beta", NULL, "cls.predictions.bias");
            expected = "not used: cls.predictions.bias";
        }
        if (form == 4) rename_tensors("x", "x", "pooler", NULL), c.pooler = 0, expected = "it has no pooler";
        BertConfig file = bert_config_read(dir, 1);
        CHECK(same_config(&file, &c), "form %d: the config changed", form);
        CHECK(!file.class_name == !c.class_name && (form != 1 || !strcmp(file.class_name[2], names[2])), "form %d: class names", form);
        BertConfig model = file;
        model.outputs = small.outputs;
        char* lines = bert_tensors_read(dir, &file, form == 5 ? &file : &model, &got.t);
        size_t compared = form == 2 ? m.n - 3 * 12 - 3 : m.n;
        if (form == 4) {
            for (int i = 0; i < 12 * 13; i++) CHECK(got.t.pooler_w[i] == 0, "the pooler was touched");
            memcpy(got.t.pooler_w, m.t.pooler_w, 12 * 13 * sizeof(float));
        }
        CHECK(!memcmp(m.all, got.all, compared * sizeof(float)), "form %d: tensors differ", form);
        CHECK(strstr(lines, form == 2 ? "it has no head, the model starts one of 3" : expected) && (*expected || form == 2 || !*lines), "form %d: \"%s\"", form, lines);
        unlink(weights_path);
        if (form < 2) {
            BertConfig bare = bert_config_read(dir, 0);
            bare.pooler = 1;
            CHECK(same_config(&bare, &c), "form %d: config alone", form);
            for (int i = 0; bare.class_name && i < bare.outputs; i++) free(bare.class_name[i]);
            free(bare.class_name);
        }
        for (int i = 0; file.class_name && i < file.outputs; i++) free(file.class_name[i]);
        free(file.class_name);
        free(lines);
        model_free(&m), model_free(&got);
    }
}

static void test_tokenizer_files(void) {
    char origin[96], from[160];
    snprintf(origin, sizeof origin, "%s/origin", root);
    mkdir(origin, 0777);
    snprintf(from, sizeof from, "%s/vocab.txt", origin);
    write_text(from, "[PAD]\na\n");
    Model m = model_make(&small, 1);
    bert_write(dir, &small, &m.t, origin);
    char text[32] = "";
    FILE* f = fopen(vocab_path, "rb");
    CHECK(f && fread(text, 1, sizeof text - 1, f) == 8 && !strcmp(text, "[PAD]\na\n"), "vocab.txt was not copied");
    if (f) fclose(f);
    unlink(from), unlink(vocab_path), rmdir(origin);
    model_free(&m);
}

static void read_config(const void* unused) { bert_config_read(dir, 1); }

static void read_all(const void* unused) {
    BertConfig c = bert_config_read(dir, 1);
    Model m = model_make(&small, 0);
    bert_tensors_read(dir, &c, &c, &m.t);
}

static void refuses_config(const char* text, const char* expected) {
    write_text(config_path, text);
    test_dies(read_config, NULL, expected, 1);
}

static void test_trouble(void) {
    Model m = model_make(&small, 1);
    bert_write(dir, &small, &m.t, NULL);
    rename_tensors("x", "x", "layer.1.output.dense.bias", NULL);
    test_dies(read_all, NULL, "tensor 'bert.encoder.layer.1.output.dense.bias' is missing", 1);
    bert_write(dir, &small, &m.t, NULL);
    rename_tensors("x", "x", NULL, "bert.encoder.layer.2.output.dense.bias");
    test_dies(read_all, NULL, "has no place in the model", 1);
    bert_write(dir, &small, &m.t, NULL);
    rename_tensors("word_embeddings", "letter_embeddings", NULL, NULL);
    test_dies(read_all, NULL, "not a BERT", 1);
    m.t.layer[1].fc1_w[7] = NAN;
    bert_write(dir, &small, &m.t, NULL);
    test_dies(read_all, NULL, "intermediate.dense.weight", 1);
    m.t.layer[1].fc1_w[7] = 0;
    bert_write(dir, &small, &m.t, NULL);
    refuses_config("{\"hidden_size\": 12, \"num_attention_heads\": 5}", "5 heads do not divide the width 12");
    refuses_config("{\"hidden_size\": 12, \"model_type\": \"roberta\"}", "model_type is 'roberta'");
    refuses_config("{\"hidden_size\": 12, \"hidden_act\": \"relu\"}", "hidden_act is 'relu'");
    refuses_config("{\"hidden_size\": 12, \"position_embedding_type\": \"relative_key\"}", "relative_key");
    refuses_config("{\"hidden_size\": 12, \"is_decoder\": true}", "is a decoder");
    refuses_config("{\"hidden_size\": 12, \"hidden_dropout_prob\": 1}", "hidden_dropout_prob is 1");
    refuses_config("{\"model_type\": \"bert\"}", "hidden_size is missing");
    refuses_config("{\"hidden_size\": 12, \"num_labels\": 5}", "the number of labels is 5, but the classifier has 3");
    refuses_config("{\"hidden_size\": 12, \"vocab_size\": 0}", "vocab_size is 0");
    write_text(config_path, "{\"hidden_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"intermediate_size\": 29, \"vocab_size\": 18, "
                            "\"max_position_embeddings\": 11}");
    test_dies(read_all, NULL, "has shape [17, 12], config.json makes it [18, 12]", 1);
    unlink(weights_path);
    test_dies(read_config, NULL, "model.safetensors is missing", 1);
    model_free(&m);
}

int main(void) {
    if (!mkdtemp(root)) return perror(root), 1;
    snprintf(dir, sizeof dir, "%s/model", root);
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", dir);
    snprintf(vocab_path, sizeof vocab_path, "%s/vocab.txt", dir);
    mkdir(dir, 0777);
    test_forms();
    test_tokenizer_files();
    test_trouble();
    unlink(config_path), unlink(weights_path), rmdir(dir), rmdir(root);
    TEST_END();
}
