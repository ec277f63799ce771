#define _GNU_SOURCE
#include "hub.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void slots_add(Slots* l, float* data, const char* place, const char* name, const char* suffix, int ndim, ...) {
    Slot* s = &l->slot[l->count++];
    va_list sizes;
    snprintf(s->name, sizeof s->name, "%s%s%s", place, name, suffix);
    s->data = data;
    s->ndim = ndim;
    s->elements = 1;
    va_start(sizes, ndim);
    for (int i = 0; i < ndim; i++) s->elements *= s->shape[i] = va_arg(sizes, int);
    va_end(sizes);
}

void slots_add_linear(Slots* l, const char* place, const char* name, float* w, float* b, int rows, int columns) {
    slots_add(l, w, place, name, ".weight", 2, rows, columns);
    if (b) slots_add(l, b, place, name, ".bias", 1, rows);
}

void slots_add_norm(Slots* l, const char* place, const char* name, float* w, float* b, int width) {
    slots_add(l, w, place, name, ".weight", 1, width);
    slots_add(l, b, place, name, ".bias", 1, width);
}

void lines_add(char** lines, const char* format, ...) {
    char* line;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&line, format, arguments) < 0) trouble("out of memory for a line of text; close other programs");
    va_end(arguments);
    char* longer = format_string("%s%s\n", *lines, line);
    free(line);
    free(*lines);
    *lines = longer;
}

static void check_shape(const Safetensors* s, const Tensor* x, const Slot* slot) {
    char found[200] = "", expected[200] = "";
    if (x->ndim == slot->ndim && !memcmp(x->shape, slot->shape, (size_t)x->ndim * sizeof *x->shape)) return;
    for (int i = 0, n = 0; i < x->ndim; i++)
        n += snprintf(found + n, sizeof found - n, "%s%lld", i ? ", " : "", (long long)x->shape[i]);
    for (int i = 0, n = 0; i < slot->ndim; i++)
        n += snprintf(expected + n, sizeof expected - n, "%s%lld", i ? ", " : "", (long long)slot->shape[i]);
    trouble("%s: tensor '%s' has shape [%s], config.json makes it [%s]; the two files do not belong together", s->path, x->name,
            found, expected);
}

Tensor* slot_find(const Safetensors* s, const Slot* slot, const char* model, int layers) {
    Tensor* x = safetensors_find(s, slot->name);
    if (!x) trouble("%s: tensor '%s' is missing; the file is not a whole %s of %d layers", s->path, slot->name, model, layers);
    check_shape(s, x, slot);
    x->used = 1;
    return x;
}

void slots_write(const char* path, const Slot* slot, int count) {
    SafetensorsWriter* w = safetensors_create(path);
    for (int i = 0; i < count; i++) safetensors_declare(w, slot[i].name, DTYPE_F32, slot[i].ndim, slot[i].shape);
    for (int i = 0; i < count; i++) safetensors_write(w, slot[i].data, (size_t)slot[i].elements * sizeof(float));
    safetensors_finish(w);
}

void hub_report_unused(const Safetensors* s, const char* model, const char* const* inside, int n, char** lines) {
    char* list = format_string("%s", "");
    int count = 0;
    for (int i = 0; i < s->count; i++) {
        const char* name = s->tensors[i].name;
        if (s->tensors[i].used) continue;
        for (int k = 0; k < n; k++)
            if (strstr(name, inside[k]))
                trouble("%s: tensor '%s' has no place in the model of config.json; use a plain %s and its own config", s->path, name, model);
        if (count++ >= 4) continue;
        char* longer = format_string("%s%s%s", list, count > 1 ? ", " : "", name);
        free(list);
        list = longer;
    }
    if (count > 4) lines_add(lines, "%s: not used: %s and %d more", s->path, list, count - 4);
    else if (count) lines_add(lines, "%s: not used: %s", s->path, list);
    free(list);
}

int hub_head_rows(const Safetensors* s, const char* name, int most) {
    const Tensor* t = safetensors_find(s, name);
    if (!t) return 0;
    if (t->ndim != 2 || t->shape[0] < 1 || t->shape[0] > most) trouble("%s: tensor '%s' is not a classifier's matrix", s->path, name);
    return (int)t->shape[0];
}

void hub_must_equal(const char* path, const char* name, int said, const char* weights, int64_t found) {
    if (said != found)
        trouble("%s: %s is %d, but %s has %lld; the two files do not belong together", path, name, said, weights, (long long)found);
}

void hub_no_weights(const char* dir, const char* weights) {
    static const char* const others[] = {"model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "tf_model.h5", "flax_model.msgpack"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char* other = format_string("%s/%s", dir, others[i]);
        if (!access(other, F_OK))
            trouble("%s is missing, but there is %s; scripts/convert_checkpoint.py makes the one of the other", weights,
                    others[i]);
        free(other);
    }
    trouble("%s is missing; a model directory holds config.json and model.safetensors", weights);
}

char** hub_class_names(const char* path, const cJSON* labels, int classes) {
    char** name = allocate((size_t)classes, sizeof *name);
    int nameless = 0;
    const cJSON* item;
    cJSON_ArrayForEach(item, labels) {
        char *end, standard[24];
        long id = strtol(item->string, &end, 10);
        if (end == item->string || *end || id < 0 || id >= classes || name[id] || !cJSON_IsString(item))
            trouble("%s: id2label: \"%s\" is not a class from 0 to %d with one name", path, item->string, classes - 1);
        name[id] = format_string("%s", item->valuestring);
        snprintf(standard, sizeof standard, "LABEL_%ld", id);
        nameless += !strcmp(standard, name[id]);
    }
    if (nameless < classes) return name;
    for (int i = 0; i < classes; i++) free(name[i]);
    free(name);
    return NULL;
}

void hub_add_class_names(cJSON* config, char* const* names, int classes) {
    cJSON *labels = cJSON_AddObjectToObject(config, "id2label"), *ids = cJSON_AddObjectToObject(config, "label2id");
    for (int i = 0; i < classes; i++) {
        char id[16], standard[24];
        snprintf(id, sizeof id, "%d", i);
        snprintf(standard, sizeof standard, "LABEL_%d", i);
        const char* name = names ? names[i] : standard;
        cJSON_AddStringToObject(labels, id, name);
        cJSON_AddNumberToObject(ids, name, i);
    }
}

int hub_same_classes(char* const* a, int n, char* const* b, int m) {
    int same = n == m;
    for (int i = 0; same && a && b && i < n; i++) same = !a[i] || !b[i] || !strcmp(a[i], b[i]);
    return same;
}
