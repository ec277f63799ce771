// A ViT on disk: config and tensor names of Hugging Face (ViTForImageClassification, ViTModel) and of timm (vit_*), both read as they come.
#ifndef PREBR_VIT_FILES_H
#define PREBR_VIT_FILES_H

#include <stdint.h>
#include "trouble.h"

C_BEGIN

typedef struct {
    int layers, width, heads, mlp;          // C, H, hidden width of the MLP
    int patch, image_size, channels;        // channels is 3
    int classes;
    int class_token;                        // 1: a class token stands first
    int mean_pool;                          // 1: the head reads the mean of the patch tokens (timm global_pool "avg"), 0: the class token
    int norm_before_pool;                   // 1: final norm on all tokens, then pooling (norm.*); 0: pooling, then norm (timm fc_norm.*)
    int qkv_bias;
    float norm_eps;
    float mean[3], std[3];
    int bicubic;                            // interpolation of the checkpoint's own preprocessing
    float crop_pct;                         // the share of the shorter side that its evaluation looks at
    char** class_name;                      // [classes] or NULL
} VitConfig;

// Every parameter in the order of the model, each as one float array in our layout:
typedef struct VitLayer {
    float *norm1_w, *norm1_b;               // [C]
    float *qkv_w, *qkv_b;                   // [3C, C] rows q, k, v; [3C] or NULL
    float *proj_w, *proj_b;                 // [C, C], [C]
    float *norm2_w, *norm2_b;
    float *fc1_w, *fc1_b;                   // [mlp, C], [mlp]
    float *fc2_w, *fc2_b;                   // [C, mlp], [C]
} VitLayer;

typedef struct {
    float *patch_w, *patch_b;               // [C, 3*patch*patch], [C]
    float *cls, *position;                  // [C] or NULL, [class_token + n, C]
    VitLayer* layer;                        // [layers]
    float *norm_w, *norm_b;                 // [C]
    float *head_w, *head_b;                 // [classes, C], [classes]
} VitTensors;

// Reads DIR/config.json (and preprocessor_config.json where it is). Sizes are taken from the config or, for timm, from the tensors'
// shapes; whatever contradicts itself is trouble. need_weights = 0 allows a directory with a config alone.
VitConfig vit_config_read(const char* dir, int need_weights);

// Fills t (host) from DIR/model.safetensors. `file` is the config as read, `model` the one t is laid out for: where image_size differs
// the position embedding is resampled (bicubic, antialiased, as timm's resample_abs_pos_embed); where classes differ the head is
// left as it is. The return value is a malloc'ed list of lines, one for each such event and for tensors that were not used (e.g. a
// pooler), to be shown and freed; "" when there is nothing to say. A missing tensor, a shape that does not fit or a NaN is trouble.
char* vit_tensors_read(const char* dir, const VitConfig* file, const VitConfig* model, VitTensors* t);

// Writes DIR (which must exist) as a Hugging Face ViTForImageClassification directory (config.json, preprocessor_config.json,
// model.safetensors). A model that Hugging Face's ViT cannot express (no class token, or norm after pooling) is written with timm's
// names and config instead.
void vit_write(const char* dir, const VitConfig* c, const VitTensors* t);

C_END

#endif
