// What the model directories of the hub have in common, whatever the model: a list of tensors by name (slots), used by reading and writing
// alike; class names in config.json; complaints.
#ifndef PREBR_HUB_H
#define PREBR_HUB_H

#include <cjson/cJSON.h>
#include "safetensors.h"

C_BEGIN

// A tensor of the model: its name and shape on disk, and its place in memory.
typedef struct {
    char name[96];
    float* data;
    int ndim;
    int64_t shape[4], elements;
} Slot;

typedef struct {
    Slot* slot;
    int count;
} Slots;

// Append to a list that has room. A name is place + name + suffix; the sizes are ints. linear: .weight [rows, columns] and, unless b is
// NULL, .bias [rows]. norm: weight and bias [width].
void slots_add(Slots* l, float* data, const char* place, const char* name, const char* suffix, int ndim, ...);
void slots_add_linear(Slots* l, const char* place, const char* name, float* w, float* b, int rows, int columns);
void slots_add_norm(Slots* l, const char* place, const char* name, float* w, float* b, int width);

// The slot's tensor in the file, with its shape checked and marked as used. model: "ViT", for the message when it is missing.
Tensor* slot_find(const Safetensors* s, const Slot* slot, const char* model, int layers);
// All slots as F32 into the file `path`.
void slots_write(const char* path, const Slot* slot, int count);

// Tensors that nobody used are named in `lines`; one whose name contains a part of `inside` would be part of the arithmetic and is trouble.
void hub_report_unused(const Safetensors* s, const char* model, const char* const* inside, int n, char** lines);
// Appends a line to a growing string of them.
void lines_add(char** lines, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Rows of the matrix that tensor `name` is; 0 where there is none.
int hub_head_rows(const Safetensors* s, const char* name, int most);
// Trouble where a number of config.json is not what the weights have.
void hub_must_equal(const char* path, const char* name, int said, const char* weights, int64_t found);
// Trouble that says what is there instead of model.safetensors.
NORETURN void hub_no_weights(const char* dir, const char* weights);

// id2label: {"0": "cat", "1": "dog"}, in any order, as malloc'ed strings. NULL where the names are the LABEL_0, LABEL_1 that stand for no
// names. And written, with label2id; names NULL: LABEL_0, ...
char** hub_class_names(const char* path, const cJSON* labels, int classes);
void hub_add_class_names(cJSON* config, char* const* names, int classes);
// Whether these can be the same classes: as many, and where both have names the same in the same order. a [n] and b [m] may be NULL.
int hub_same_classes(char* const* a, int n, char* const* b, int m);

C_END

#endif
