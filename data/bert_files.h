// A BERT on disk: Hugging Face's BertForSequenceClassification, BertModel and the pretraining models around it, read as they come from the hub
// (with or without the prefix "bert.", with or without pooler and head, old files' gamma and beta).
#ifndef PREBR_BERT_FILES_H
#define PREBR_BERT_FILES_H

#include <stdint.h>
#include "trouble.h"

C_BEGIN

typedef struct {
    int layers, width, heads, mlp;
    int vocabulary, positions, segments;    // rows of the three embeddings
    int pad;                                // number of the padding token
    int outputs;                            // rows of the head; 0: the directory has none; 1: regression
    int pooler;                             // 1: the directory has one
    float norm_eps;
    float dropout, attention_dropout, head_dropout;   // probabilities in training
    char** class_name;                      // [outputs] or NULL
} BertConfig;

// Every parameter, each as one float array in our layout:
typedef struct BertLayer {
    float *qkv_w, *qkv_b;                   // [3C, C] rows q, k, v; [3C]
    float *proj_w, *proj_b;                 // [C, C], [C]
    float *norm1_w, *norm1_b;               // [C] after attention
    float *fc1_w, *fc1_b;                   // [mlp, C], [mlp]
    float *fc2_w, *fc2_b;                   // [C, mlp], [C]
    float *norm2_w, *norm2_b;               // [C] after the MLP
} BertLayer;

typedef struct {
    float *word, *position, *segment;       // [vocabulary, C], [positions, C], [segments, C]
    float *norm_w, *norm_b;                 // [C] of the embeddings
    BertLayer* layer;                       // [layers]
    float *pooler_w, *pooler_b;             // [C, C], [C]
    float *head_w, *head_b;                 // [outputs, C], [outputs]
} BertTensors;

// Reads DIR/config.json and looks at DIR/model.safetensors. What is not computed here (another activation, relative positions, a decoder)
// and what contradicts itself is trouble. need_weights = 0 allows a directory with a config alone.
BertConfig bert_config_read(const char* dir, int need_weights);

// Fills t (host) from DIR/model.safetensors. `file` is the config as read; `model` differs from it in outputs at most, and then the head
// is left as it is; so is the pooler where the file has none. Returns malloc'ed lines about this and about tensors that were not used.
// A missing tensor, a shape that does not fit or a NaN is trouble.
char* bert_tensors_read(const char* dir, const BertConfig* file, const BertConfig* model, BertTensors* t);

// Writes DIR (which must exist) as a BertForSequenceClassification directory, and copies the tokenizer's files of the directory `origin`
// (vocab.txt, tokenizer.json, ...) that are there.
void bert_write(const char* dir, const BertConfig* c, const BertTensors* t, const char* origin);

C_END

#endif
