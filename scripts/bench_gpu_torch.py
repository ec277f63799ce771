#!/usr/bin/env python3
"""Full fine-tuning of ViT-B/16 or BERT-base in PyTorch on a GPU, as its users run it: SDPA, bf16 autocast, fused AdamW; eager or compiled.

    scripts/bench_gpu_torch.py train_vit|train_bert TOKENS BATCH eager|compile      prints samples/s and the peak bytes of device memory

The models are transformers' own with random weights, the data random; a batch lies on the card already.
"""
import statistics
import sys
import time

import torch
import transformers


def build(program, tokens, batch):
    if program == "train_vit":
        config = transformers.ViTConfig(num_labels=10, attn_implementation="sdpa")
        inputs = {"pixel_values": torch.randn(batch, 3, config.image_size, config.image_size)}
        model = transformers.ViTForImageClassification(config)
    else:
        config = transformers.BertConfig(num_labels=2, attn_implementation="sdpa")
        inputs = {"input_ids": torch.randint(1, config.vocab_size, (batch, tokens))}
        model = transformers.BertForSequenceClassification(config)
    return model.cuda().train(), {k: v.cuda() for k, v in inputs.items()}, torch.randint(0, config.num_labels, (batch,)).cuda()


def main():
    program, tokens, batch, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    model, inputs, labels = build(program, tokens, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if mode == "compile" else model
    times = []
    for _ in range(30):
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(forward(**inputs).logits.float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(f"{batch / statistics.median(times[10:]):.1f} {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
