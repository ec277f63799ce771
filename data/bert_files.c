// A BERT's model directory: one list of slots says what every tensor is called, for reading and for writing.
#include "bert_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub.h"
#include "json.h"
#include "run.h"

// Bounds on what a config may say, so that no product of two of them leaves 32 bits but by intent.
enum { MOST_LAYERS = 1000, MOST_WIDTH = 1 << 15, MOST_MLP = 1 << 20, MOST_VOCABULARY = 1 << 24, MOST_POSITIONS = 1 << 16, MOST_OUTPUTS = 1 << 16 };

// How a file names its tensors.
typedef struct {
    const char* prefix;      // "" or "bert."
    int old_norms;           // LayerNorm.gamma and .beta rather than .weight and .bias
} Naming;

static Naming naming_of(const Safetensors* s) {
    Naming n = {"", 0};
    static const char* const prefixes[] = {"", "bert."};
    for (int i = 0; i < 2; i++) {
        char *word = format_string("%sembeddings.word_embeddings.weight", prefixes[i]), *gamma = format_string("%sembeddings.LayerNorm.gamma", prefixes[i]);
        int found = safetensors_find(s, word) != NULL;
        if (found) n = (Naming){prefixes[i], safetensors_find(s, gamma) != NULL};
        free(word);
        free(gamma);
        if (found) return n;
    }
    trouble("%s: no word embeddings under any name known here: not a BERT of Hugging Face (BertModel, BertForSequenceClassification)", s->path);
}

static void add_norm(Slots* l, Naming n, const char* place, const char* name, float* w, float* b, int width) {
    slots_add(l, w, place, name, n.old_norms ? ".gamma" : ".weight", 1, width);
    slots_add(l, b, place, name, n.old_norms ? ".beta" : ".bias", 1, width);
}

static void add_layer(Slots* l, const BertConfig* c, const BertLayer* t, Naming n, const char* place) {
    int C = c->width;
    int64_t matrix = (int64_t)C * C;
    slots_add_linear(l, place, "attention.self.query", t->qkv_w, t->qkv_b, C, C);
    slots_add_linear(l, place, "attention.self.key", t->qkv_w + matrix, t->qkv_b + C, C, C);
    slots_add_linear(l, place, "attention.self.value", t->qkv_w + 2 * matrix, t->qkv_b + 2 * C, C, C);
    slots_add_linear(l, place, "attention.output.dense", t->proj_w, t->proj_b, C, C);
    add_norm(l, n, place, "attention.output.LayerNorm", t->norm1_w, t->norm1_b, C);
    slots_add_linear(l, place, "intermediate.dense", t->fc1_w, t->fc1_b, c->mlp, C);
    slots_add_linear(l, place, "output.dense", t->fc2_w, t->fc2_b, C, c->mlp);
    add_norm(l, n, place, "output.LayerNorm", t->norm2_w, t->norm2_b, C);
}

// Every tensor of the model; pooler and head only where the config has them.
static Slots bert_slots(const BertConfig* c, const BertTensors* t, Naming n) {
    char place[64];
    Slots l = {allocate(9 + 16 * (size_t)c->layers, sizeof(Slot)), 0};
    slots_add(&l, t->word, n.prefix, "embeddings.word_embeddings", ".weight", 2, c->vocabulary, c->width);
    slots_add(&l, t->position, n.prefix, "embeddings.position_embeddings", ".weight", 2, c->positions, c->width);
    slots_add(&l, t->segment, n.prefix, "embeddings.token_type_embeddings", ".weight", 2, c->segments, c->width);
    add_norm(&l, n, n.prefix, "embeddings.LayerNorm", t->norm_w, t->norm_b, c->width);
    for (int i = 0; i < c->layers; i++) {
        snprintf(place, sizeof place, "%sencoder.layer.%d.", n.prefix, i);
        add_layer(&l, c, &t->layer[i], n, place);
    }
    if (c->pooler) slots_add_linear(&l, n.prefix, "pooler.dense", t->pooler_w, t->pooler_b, c->width, c->width);
    if (c->outputs) slots_add_linear(&l, "", "classifier", t->head_w, t->head_b, c->outputs, c->width);
    return l;
}

// ---- reading ----

static float probability(const char* path, const cJSON* config, const char* name, double fallback) {
    double p = json_number(path, config, name, fallback);
    if (!(p >= 0 && p < 1)) trouble("%s: %s is %g; a probability below 1 is expected", path, name, p);
    return (float)p;
}

static void reject_unsupported(const char* path, const cJSON* config) {
    const char *type = json_text(path, config, "model_type", "bert"), *act = json_text(path, config, "hidden_act", "gelu");
    const char* positions = json_text(path, config, "position_embedding_type", "absolute");
    if (!json_member(config, "hidden_size")) trouble("%s: hidden_size is missing: not the config of a BERT", path);
    if (strcmp(type, "bert")) trouble("%s: model_type is '%s'; a plain 'bert' is expected", path, type);
    if (strcmp(act, "gelu")) trouble("%s: hidden_act is '%s'; only 'gelu' is computed here", path, act);
    if (strcmp(positions, "absolute")) trouble("%s: position_embedding_type is '%s'; only 'absolute' is computed here", path, positions);
    if (json_bool(path, config, "is_decoder", 0) || json_bool(path, config, "add_cross_attention", 0))
        trouble("%s: is a decoder, which is not computed here; use a plain BERT", path);
}

static void read_head(BertConfig* c, const char* path, const cJSON* config, const Safetensors* s) {
    const cJSON *labels = json_member(config, "id2label"), *kinds = json_member(config, "architectures");
    const char* kind = cJSON_GetStringValue(cJSON_GetArrayItem(kinds, 0));
    if (labels && !cJSON_IsObject(labels)) trouble("%s: id2label is not an object; {\"0\": \"name\", ...} is expected", path);
    int named = cJSON_GetArraySize(labels);
    int said = named ? named : json_int(path, config, "num_labels", 0, 0, MOST_OUTPUTS);
    if (s) c->outputs = hub_head_rows(s, "classifier.weight", MOST_OUTPUTS);
    else if (kind && !strcmp(kind, "BertForSequenceClassification")) c->outputs = said ? said : 2;   // what transformers takes for unsaid
    if (c->outputs && said) hub_must_equal(path, "the number of labels", said, "the classifier", c->outputs);
    if (c->outputs && named) c->class_name = hub_class_names(path, labels, c->outputs);
}

BertConfig bert_config_read(const char* dir, int need_weights) {
    BertConfig c = {0};
    Safetensors s = {0};
    char *path = format_string("%s/config.json", dir), *weights = format_string("%s/model.safetensors", dir);
    cJSON* config = json_read(path);
    int present = !access(weights, F_OK);
    reject_unsupported(path, config);
    c.width = json_int(path, config, "hidden_size", JSON_NEEDED, 1, MOST_WIDTH);
    c.layers = json_int(path, config, "num_hidden_layers", 12, 1, MOST_LAYERS);
    c.heads = json_int(path, config, "num_attention_heads", 12, 1, MOST_WIDTH);
    c.mlp = json_int(path, config, "intermediate_size", 3072, 1, MOST_MLP);
    c.vocabulary = json_int(path, config, "vocab_size", 30522, 1, MOST_VOCABULARY);
    c.positions = json_int(path, config, "max_position_embeddings", 512, 1, MOST_POSITIONS);
    c.segments = json_int(path, config, "type_vocab_size", 2, 1, 1000);
    c.pad = json_int(path, config, "pad_token_id", 0, 0, c.vocabulary - 1);
    c.norm_eps = (float)json_number(path, config, "layer_norm_eps", 1e-12);
    c.dropout = probability(path, config, "hidden_dropout_prob", 0.1);
    c.attention_dropout = probability(path, config, "attention_probs_dropout_prob", 0.1);
    c.head_dropout = probability(path, config, "classifier_dropout", c.dropout);
    if (c.width % c.heads) trouble("%s: %d heads do not divide the width %d", path, c.heads, c.width);
    if (!(c.norm_eps > 0 && c.norm_eps < 1)) trouble("%s: the norms' epsilon is %g; a small positive number is expected", path, c.norm_eps);
    if (present) {
        s = safetensors_open(weights);
        char* pooler = format_string("%spooler.dense.weight", naming_of(&s).prefix);
        c.pooler = safetensors_find(&s, pooler) != NULL;
        free(pooler);
    } else if (need_weights) {
        hub_no_weights(dir, weights);
    }
    read_head(&c, path, config, present ? &s : NULL);
    safetensors_close(&s);
    cJSON_Delete(config);
    free(path);
    free(weights);
    return c;
}

char* bert_tensors_read(const char* dir, const BertConfig* file, const BertConfig* model, BertTensors* t) {
    static const char* const inside[] = {"encoder.", "embeddings."};
    char *path = format_string("%s/model.safetensors", dir), *lines = format_string("%s", "");
    Safetensors s = safetensors_open(path);
    Naming naming = naming_of(&s);
    Slots l = bert_slots(file, t, naming);
    int heads_differ = !hub_same_classes(file->class_name, file->outputs, model->class_name, model->outputs);
    for (int i = 0; i < l.count; i++) {
        Slot* slot = &l.slot[i];
        Tensor* x = slot_find(&s, slot, "BERT", file->layers);
        if (!(heads_differ && (slot->data == t->head_w || slot->data == t->head_b))) safetensors_copy(&s, x, slot->data, 0, x->elements);
    }
    char* numbers = format_string("%sembeddings.position_ids", naming.prefix);   // 0, 1, 2, ... that old files carry along
    Tensor* position_ids = safetensors_find(&s, numbers);
    if (position_ids) position_ids->used = 1;
    if (!file->pooler) lines_add(&lines, "%s: it has no pooler, the model starts one", path);
    if (heads_differ && file->outputs == model->outputs)
        lines_add(&lines, "%s: its head is of %d other classes (the first is %s, here %s) and is left out, the model starts a new one", path, file->outputs,
                  file->class_name[0], model->class_name[0]);
    else if (heads_differ && file->outputs)
        lines_add(&lines, "%s: its head of %d outputs is left out, the model has %d and starts a new one", path, file->outputs, model->outputs);
    else if (heads_differ) lines_add(&lines, "%s: it has no head, the model starts one of %d outputs", path, model->outputs);
    hub_report_unused(&s, "BERT", inside, sizeof inside / sizeof *inside, &lines);
    free(l.slot);
    free(numbers);
    free(path);
    safetensors_close(&s);
    return lines;
}

// ---- writing ----

static cJSON* config_of(const BertConfig* c) {
    cJSON* o = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "architectures"), cJSON_CreateString("BertForSequenceClassification"));
    cJSON_AddStringToObject(o, "model_type", "bert");
    cJSON_AddNumberToObject(o, "hidden_size", c->width);
    cJSON_AddNumberToObject(o, "num_hidden_layers", c->layers);
    cJSON_AddNumberToObject(o, "num_attention_heads", c->heads);
    cJSON_AddNumberToObject(o, "intermediate_size", c->mlp);
    cJSON_AddNumberToObject(o, "vocab_size", c->vocabulary);
    cJSON_AddNumberToObject(o, "max_position_embeddings", c->positions);
    cJSON_AddNumberToObject(o, "type_vocab_size", c->segments);
    cJSON_AddNumberToObject(o, "pad_token_id", c->pad);
    cJSON_AddStringToObject(o, "hidden_act", "gelu");
    cJSON_AddStringToObject(o, "position_embedding_type", "absolute");
    cJSON_AddItemToObject(o, "layer_norm_eps", json_float(c->norm_eps));
    cJSON_AddItemToObject(o, "hidden_dropout_prob", json_float(c->dropout));
    cJSON_AddItemToObject(o, "attention_probs_dropout_prob", json_float(c->attention_dropout));
    cJSON_AddItemToObject(o, "classifier_dropout", json_float(c->head_dropout));
    cJSON_AddStringToObject(o, "problem_type", c->outputs == 1 ? "regression" : "single_label_classification");
    cJSON_AddStringToObject(o, "torch_dtype", "float32");
    hub_add_class_names(o, c->class_name, c->outputs);
    return o;
}

// The file of that name from one directory to another, if it is there.
static void copy_file(const char* from_dir, const char* to_dir, const char* name) {
    char *from = format_string("%s/%s", from_dir, name), *to = format_string("%s/%s", to_dir, name), buffer[1 << 16];
    FILE* in = fopen(from, "rbe");
    if (in) {
        FILE* out = file_create(to);
        for (size_t n; (n = fread(buffer, 1, sizeof buffer, in));)
            if (fwrite(buffer, 1, n, out) != n) trouble("%s: cannot be written: the disk is full", to);
        fclose(in);
        file_finish(out, to);
    }
    free(from);
    free(to);
}

void bert_write(const char* dir, const BertConfig* c, const BertTensors* t, const char* origin) {
    static const char* const tokenizer[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    char *config = format_string("%s/config.json", dir), *weights = format_string("%s/model.safetensors", dir);
    BertConfig whole = *c;
    whole.pooler = 1;
    json_write(config, config_of(c));
    Slots l = bert_slots(&whole, t, (Naming){"bert.", 0});
    slots_write(weights, l.slot, l.count);
    for (size_t i = 0; origin && i < sizeof tokenizer / sizeof *tokenizer; i++) copy_file(origin, dir, tokenizer[i]);
    free(l.slot);
    free(config);
    free(weights);
}
