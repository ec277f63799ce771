"""Token files (data/tokens.h) as train_bert sees them: splits, the order of batches, and GLUE's metrics. NumPy only."""
import struct
from dataclasses import dataclass

import numpy as np

from philox import SHUFFLE, permutation, philox, shuffle_order

GROUP_BATCHES = 32


@dataclass
class Split:
    offsets: np.ndarray       # [n + 1] in ids and segments
    labels: np.ndarray        # [n] classes or scores; None without labels
    ids: np.ndarray
    segments: np.ndarray

    def __len__(self):
        return len(self.offsets) - 1

    def length(self, i):
        return int(self.offsets[i + 1] - self.offsets[i])


@dataclass
class Tokens:
    task: str
    metrics: list
    classes: list             # names; empty: regression
    vocabulary: int
    pad: int
    splits: dict

    def batch(self, split, index):
        """ids, segments [n, longest], lengths [n], labels [n] of these records."""
        lengths = np.array([split.length(i) for i in index])
        ids = np.full((len(index), lengths.max()), self.pad, dtype=np.int64)
        segments = np.zeros_like(ids)
        for row, i in enumerate(index):
            part = slice(split.offsets[i], split.offsets[i + 1])
            ids[row, :lengths[row]], segments[row, :lengths[row]] = split.ids[part], split.segments[part]
        return ids, segments, lengths, None if split.labels is None else split.labels[index]


def open_tokens(path):
    data = np.fromfile(path, dtype=np.uint8)
    magic, version, vocabulary, _, classes, text, *counts, labelled, tokens, pad, _ = struct.unpack("<8sIIQIIIIIIQII", data[:64].tobytes())
    if magic != b"prebrtok" or version != 1:
        raise SystemExit(f"{path}: is not a token file of version 1")
    n, at = sum(counts), 64

    def take(kind, count):
        nonlocal at
        part = data[at:at + count * np.dtype(kind).itemsize].view(kind)
        at += -(-len(part.view(np.uint8)) // 8) * 8
        return part

    task, metrics, *names = take(np.uint8, text).tobytes().rstrip(b"\0").decode().splitlines()
    offsets, labels = take(np.uint64, n + 1).astype(np.int64), take(np.int32 if classes else np.float32, n)
    ids, segments = take(np.uint32, tokens), take(np.uint8, tokens)
    splits, first = {}, 0
    for k, (name, count) in enumerate(zip(("train", "dev", "test"), counts)):
        splits[name] = Split(offsets[first:first + count + 1], labels[first:first + count] if labelled >> k & 1 else None, ids, segments)
        first += count
    return Tokens(task, metrics.split(), names, vocabulary, pad, splits)


def epoch_order(split, batch, grouped, seed, epoch):
    """The records of an epoch in the order in which batches are cut from them."""
    order = shuffle_order(len(split), seed, epoch)
    per_epoch = len(split) // batch
    for run, first in enumerate(range(0, per_epoch, GROUP_BATCHES) if grouped else ()):
        batches = min(GROUP_BATCHES, per_epoch - first)
        part = slice(first * batch, (first + batches) * batch)
        by_length = sorted(order[part], key=split.length)              # stable
        turn = permutation(philox(seed, SHUFFLE, epoch, (1 << 40) + (run << 20) + np.arange(batches))[:, 0], batches)
        order[part] = np.array(by_length).reshape(batches, batch)[turn].ravel()
    return order


def ranks(x):
    """1, 2, ... by value; equal values share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def metric(name, predicted, truth):
    """As data/metrics.h defines it."""
    predicted, truth = np.asarray(predicted, dtype=float), np.asarray(truth, dtype=float)
    if name == "accuracy":
        return float((predicted == truth).mean())
    if name == "f1":
        both = ((predicted == 1) & (truth == 1)).sum()
        return float(2 * both / max(1, (predicted == 1).sum() + (truth == 1).sum()))
    if name == "matthews":
        classes = np.arange(max(predicted.max(), truth.max()) + 1)
        x, y = (a[:, None] == classes for a in (predicted, truth))
        x, y = x - x.mean(0), y - y.mean(0)
        scale = np.sqrt((x * x).sum() * (y * y).sum())
        return float((x * y).sum() / scale) if scale > 0 else 0.0
    if name == "spearman":
        predicted, truth = ranks(predicted), ranks(truth)
    x, y = predicted - predicted.mean(), truth - truth.mean()
    scale = np.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / scale) if scale > 0 else 0.0
