"""Philox4x32-10 (Salmon et al., SC 2011) in NumPy, and the draws of a run that are made from it.

A draw is a function of (seed, stream, step, index) alone: key = the two halves of seed, counter = {index low, index high, step,
stream}. See kernels/philox.h, whose bits these are.
"""
import math

import numpy as np

SHUFFLE, AUGMENT, SAMPLE, INIT, DROPOUT = range(5)   # streams
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(seed, stream, step, index):
    """uint32 [n, 4] for an array (or one number) of 64-bit indices."""
    index = np.atleast_1d(np.asarray(index, dtype=np.uint64))
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)
    c0, c1 = index & LOW, index >> HALF
    c2, c3 = np.full_like(index, step), np.full_like(index, stream)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2   # 32 x 32 -> 64 bits, no overflow
        c0, c1, c2, c3 = (b >> HALF) ^ c1 ^ k0, b & LOW, (a >> HALF) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & LOW, (k1 + np.uint64(0xBB67AE85)) & LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def uniform(bits):
    """In [0, 1), 24 random bits."""
    return (np.asarray(bits, dtype=np.uint32) >> np.uint32(8)) / 16777216.0


def below(bits, n):
    """An integer in [0, n)."""
    return np.asarray(bits, dtype=np.uint64) * np.asarray(n, dtype=np.uint64) >> HALF


def permutation(bits, n):
    """Fisher-Yates from the end; bits [n] uint32, of which bits[i] serves place i."""
    order = list(range(n))
    other = below(bits, np.arange(1, n + 1)).tolist()
    for i in range(n - 1, 0, -1):
        j = other[i]
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def shuffle_order(n, seed, epoch):
    """The order of an epoch, as data/loader.h has it."""
    return permutation(philox(seed, SHUFFLE, epoch, np.arange(n))[:, 0], n)


def initial_values(seed, parameter, n):
    """float32 [n] of a new parameter with that number: normal, standard deviation 0.02, cut at two of them (Box-Muller)."""
    bits = philox(seed, INIT, 0, (parameter << 40) + np.arange(n))
    normal = np.sqrt(-2 * np.log(1 - uniform(bits[:, 0]))) * np.cos(2 * math.pi * uniform(bits[:, 1]))
    return np.float32(0.02 * np.clip(normal, -2, 2))


def dropout_factors(p, seed, step, index):
    """float32 [len(index), 4]: 0 or 1 / (1 - p) of the elements 4 i .. 4 i + 3 for draws i; index has the site in it."""
    p = np.float32(p)
    return np.where(uniform(philox(seed, DROPOUT, step, index)) < p, np.float32(0), np.float32(1) / (np.float32(1) - p))


def random_crops(index, height, width, scale, seed, epoch):
    """Boxes (x, y, width, height, flip) of training images with these record numbers: share of the area uniform in [scale, 1],
    log of the aspect ratio uniform in +-log(4/3), mirrored every other time."""
    boxes = []
    for i in index:
        r0, r1 = philox(seed, AUGMENT, epoch, [2 * int(i), 2 * int(i) + 1])
        area = height * width * (scale + (1 - scale) * float(uniform(r0[0])))
        low, high = math.log(3 / 4), math.log(4 / 3)
        aspect = math.exp(low + (high - low) * float(uniform(r0[1])))
        w = min(max(math.floor(math.sqrt(area * aspect) + 0.5), 1), width)
        h = min(max(math.floor(math.sqrt(area / aspect) + 0.5), 1), height)
        x, y = int(below(r0[2], width - w + 1)), int(below(r0[3], height - h + 1))
        boxes.append((x, y, w, h, int(r1[0] >> 31)))
    return boxes


def centre_crops(index, height, width, seed=None, epoch=0):
    """The centred square of every image; mirrored as in training where a seed is given."""
    side = min(height, width)
    flips = [0] * len(index) if seed is None else philox(seed, AUGMENT, epoch, 2 * np.asarray(index) + 1)[:, 0] >> 31
    return [((width - side) // 2, (height - side) // 2, side, side, int(flip)) for flip in flips]
