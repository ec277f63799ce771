// What the tensors of a ViT are called on disk: one list of (name, shape, place in memory) per naming, used by reading and writing alike.
#ifndef PREBR_VIT_NAMES_H
#define PREBR_VIT_NAMES_H

#include "hub.h"
#include "vit_files.h"

C_BEGIN

typedef enum {
    VIT_TIMM,       // blocks.0.attn.qkv.weight
    VIT_HF,         // [vit.]encoder.layer.0.attention.attention.query.weight: what every transformers reads and saves
    VIT_HF_MODULE   // [vit.]layers.0.attention.q_proj.weight: transformers 5 saves its own modules' names when asked to
} VitNaming;

// Every tensor of the model in its order (head only where classes > 0); a fresh array of *count slots. prefix is "" or "vit.".
Slot* vit_slots(const VitConfig* c, const VitTensors* t, VitNaming naming, const char* prefix, int* count);

// Which naming and prefix a file has; trouble where it is none of them.
VitNaming vit_naming(const Safetensors* s, const char** prefix);
// Trouble where the file has a tensor that changes the arithmetic in a way that is not computed here (layer scale, register tokens, ...).
void vit_reject_unsupported(const Safetensors* s);

C_END

#endif
