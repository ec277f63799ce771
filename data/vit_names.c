#include "vit_names.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Modules by naming, in the order of VitNaming. timm has q, k and v in one tensor, whose rows are in that order.
static const char* const patch[] = {"patch_embed.proj", "embeddings.patch_embeddings.projection",
                                    "embeddings.patch_embeddings.projection"};
static const char* const cls[] = {"cls_token", "embeddings.cls_token", "embeddings.cls_token"};
static const char* const position[] = {"pos_embed", "embeddings.position_embeddings", "embeddings.position_embeddings"};
static const char* const layers[] = {"blocks", "encoder.layer", "layers"};
static const char* const norm1[] = {"norm1", "layernorm_before", "layernorm_before"};
static const char* const query[] = {"attn.qkv", "attention.attention.query", "attention.q_proj"};
static const char* const key[] = {NULL, "attention.attention.key", "attention.k_proj"};
static const char* const value[] = {NULL, "attention.attention.value", "attention.v_proj"};
static const char* const proj[] = {"attn.proj", "attention.output.dense", "attention.o_proj"};
static const char* const norm2[] = {"norm2", "layernorm_after", "layernorm_after"};
static const char* const fc1[] = {"mlp.fc1", "intermediate.dense", "mlp.fc1"};
static const char* const fc2[] = {"mlp.fc2", "output.dense", "mlp.fc2"};
static const char* const norm[] = {"norm", "layernorm", "layernorm"};
static const char* const head[] = {"head", "classifier", "classifier"};

static void add_layer(Slots* l, const VitConfig* c, const struct VitLayer* t, VitNaming n, const char* place) {
    int C = c->width;
    slots_add_norm(l, place, norm1[n], t->norm1_w, t->norm1_b, C);
    float* b = c->qkv_bias ? t->qkv_b : NULL;
    if (n == VIT_TIMM) {
        slots_add_linear(l, place, query[n], t->qkv_w, b, 3 * C, C);
    } else {
        int64_t matrix = (int64_t)C * C;
        slots_add_linear(l, place, query[n], t->qkv_w, b, C, C);
        slots_add_linear(l, place, key[n], t->qkv_w + matrix, b ? b + C : NULL, C, C);
        slots_add_linear(l, place, value[n], t->qkv_w + 2 * matrix, b ? b + 2 * C : NULL, C, C);
    }
    slots_add_linear(l, place, proj[n], t->proj_w, t->proj_b, C, C);
    slots_add_norm(l, place, norm2[n], t->norm2_w, t->norm2_b, C);
    slots_add_linear(l, place, fc1[n], t->fc1_w, t->fc1_b, c->mlp, C);
    slots_add_linear(l, place, fc2[n], t->fc2_w, t->fc2_b, C, c->mlp);
}

Slot* vit_slots(const VitConfig* c, const VitTensors* t, VitNaming n, const char* prefix, int* count) {
    int grid = c->image_size / c->patch;
    char place[64];
    Slots l = {allocate(8 + 16 * (size_t)c->layers, sizeof(Slot)), 0};   // at most 8 outside the layers and 16 in each

    slots_add(&l, t->patch_w, prefix, patch[n], ".weight", 4, c->width, c->channels, c->patch, c->patch);
    slots_add(&l, t->patch_b, prefix, patch[n], ".bias", 1, c->width);
    if (c->class_token) slots_add(&l, t->cls, prefix, cls[n], "", 3, 1, 1, c->width);
    slots_add(&l, t->position, prefix, position[n], "", 3, 1, c->class_token + grid * grid, c->width);
    for (int i = 0; i < c->layers; i++) {
        snprintf(place, sizeof place, "%s%s.%d.", prefix, layers[n], i);
        add_layer(&l, c, &t->layer[i], n, place);
    }
    slots_add_norm(&l, prefix, n == VIT_TIMM && !c->norm_before_pool ? "fc_norm" : norm[n], t->norm_w, t->norm_b, c->width);
    if (c->classes) slots_add_linear(&l, "", head[n], t->head_w, t->head_b, c->classes, c->width);
    *count = l.count;
    return l.slot;
}

VitNaming vit_naming(const Safetensors* s, const char** prefix) {
    *prefix = safetensors_find(s, "vit.embeddings.patch_embeddings.projection.weight") ? "vit." : "";
    if (safetensors_find(s, "patch_embed.proj.weight")) return VIT_TIMM;
    if (!**prefix && !safetensors_find(s, "embeddings.patch_embeddings.projection.weight"))
        trouble("%s: no patch embedding under any name known here: not a ViT of Hugging Face (ViTForImageClassification, "
                "ViTModel) or timm; scripts/convert_checkpoint.py reads some others", s->path);
    char* first = format_string("%s%s.0.%s.weight", *prefix, layers[VIT_HF_MODULE], norm1[VIT_HF_MODULE]);
    VitNaming naming = safetensors_find(s, first) ? VIT_HF_MODULE : VIT_HF;
    free(first);
    return naming;
}

void vit_reject_unsupported(const Safetensors* s) {
    static const struct { const char *part, *meaning; } unsupported[] = {
        {".ls1.", "layer scale"},
        {".ls2.", "layer scale"},
        {".gamma_1", "layer scale"},
        {".gamma_2", "layer scale"},
        {".lambda1", "layer scale"},
        {".lambda_1", "layer scale"},
        {"layer_scale", "layer scale"},
        {".q_norm.", "normalised queries and keys"},
        {".k_norm.", "normalised queries and keys"},
        {"reg_token", "register tokens"},
        {"register_tokens", "register tokens"},
        {"attn_pool.", "attention pooling"},
        {"norm_pre.", "a norm before the first block"},
        {"patch_embed.norm.", "a norm in the patch embedding"},
        {"dist_token", "a distillation token"},
        {"distillation_token", "a distillation token"},
        {"head_dist.", "a distillation head"},
        {"distillation_classifier", "a distillation head"},
        {"pre_logits.", "a layer before the head"},
        {"relative_position", "relative positions"},
        {"rel_pos", "relative positions"},
        {".w12.", "a gated MLP"},
    };
    for (int i = 0; i < s->count; i++)
        for (size_t k = 0; k < sizeof unsupported / sizeof *unsupported; k++)
            if (strstr(s->tensors[i].name, unsupported[k].part))
                trouble("%s: tensor '%s' means %s, which is not computed here; use a plain ViT", s->path, s->tensors[i].name,
                        unsupported[k].meaning);
}
