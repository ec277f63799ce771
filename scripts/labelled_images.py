"""Labelled images on disk (CIFAR-10/100 binaries, IDX files, image packs; see data/images.h) and their way to the network's input."""
import gzip
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

from vit_checkpoint import trouble


class Images:
    """train and test: (uint8 [n, channels, height, width], int64 [n])."""

    def __init__(self, path, names, train, test):
        self.names, self.classes, self.train, self.test = names, len(names), train, test
        for split, (_, label) in (("train", train), ("test", test)):
            wrong = np.flatnonzero((label < 0) | (label >= self.classes))
            if len(wrong):
                trouble(f"{path}: {split} record {wrong[0]} has label {label[wrong[0]]}, but there are {self.classes} classes")

    def keep_classes(self, text):
        """A list such as "0-4,7": only these classes stay, renumbered in that order."""
        kept = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or (last and not last.isdigit()) or int(last or first) >= self.classes:
                trouble(f"--classes {text}: {part} is not a class or a range of classes below {self.classes}")
            kept += range(int(first), int(last or first) + 1)
        number = np.full(self.classes, -1)
        number[kept] = range(len(kept))
        self.names, self.classes = [self.names[k] for k in kept], len(kept)
        narrowed = lambda image, label: (image[number[label] >= 0], number[label][number[label] >= 0])
        self.train, self.test = narrowed(*self.train), narrowed(*self.test)


def read_bytes(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            return f.read()
    except (OSError, EOFError) as error:
        trouble(f"{path}: {error}")


def cifar_split(paths, label_bytes):
    """Records of label_bytes labels (the last one counts) and 3 x 32 x 32 bytes."""
    record, images, labels = label_bytes + 3072, [np.zeros((0, 3, 32, 32), np.uint8)], [np.zeros(0, np.int64)]
    for path in filter(os.path.exists, paths):
        data = np.frombuffer(read_bytes(path), np.uint8)
        if len(data) % record:
            trouble(f"{path}: {len(data)} bytes are not a number of {record}-byte records")
        data = data.reshape(-1, record)
        images.append(data[:, label_bytes:].reshape(-1, 3, 32, 32))
        labels.append(data[:, label_bytes - 1].astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def text_lines(path, count):
    lines = open(path).read().split("\n") if os.path.exists(path) else []
    lines = [line.strip() for line in lines if line.strip()]
    return lines if len(lines) == count else [str(i) for i in range(count)]


def open_cifar(directory, classes, train, test, names, label_bytes):
    at = lambda name: os.path.join(directory, name)
    split = lambda files: cifar_split(map(at, files), label_bytes)
    return Images(directory, text_lines(at(names), classes), split(train), split(test))


def idx_array(path):
    data = read_bytes(path if os.path.exists(path) else path + ".gz")
    dims = data[3]
    shape = struct.unpack(f">{dims}I", data[4:4 + 4 * dims])
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * dims + np.prod(shape):
        trouble(f"{path}: not an IDX file of bytes, or not all of it")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def open_idx(directory):
    split = lambda name: (idx_array(f"{directory}/{name}-images-idx3-ubyte")[:, None],
                          idx_array(f"{directory}/{name}-labels-idx1-ubyte").astype(np.int64))
    return Images(directory, [str(i) for i in range(10)], split("train"), split("t10k"))


def open_pack(path):
    data = read_bytes(path)
    if data[:8] != b"prebrimg" or len(data) < 40:
        trouble(f"{path}: neither an image pack nor a directory of CIFAR or IDX files")
    version, channels, height, width, classes, train, test, name_bytes = struct.unpack("<8I", data[8:40])
    n, labels_at = train + test, 40 + name_bytes
    images_at = labels_at + 4 * n
    if version != 1 or len(data) != images_at + n * channels * height * width:
        trouble(f"{path}: version {version} or {len(data)} bytes are not what the header says")
    names = data[40:labels_at].decode().split("\n")[:-1]
    labels = np.frombuffer(data, "<i4", n, labels_at).astype(np.int64)
    images = np.frombuffer(data, np.uint8, offset=images_at).reshape(n, channels, height, width)
    return Images(path, names, (images[:train], labels[:train]), (images[train:], labels[train:]))


def open_images(path):
    if os.path.isfile(path):
        return open_pack(path)
    has = lambda *names: any(os.path.exists(os.path.join(path, name)) for name in names)
    if has("data_batch_1.bin"):
        return open_cifar(path, 10, [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], "batches.meta.txt", 1)
    if has("train.bin"):
        return open_cifar(path, 100, ["train.bin"], ["test.bin"], "fine_label_names.txt", 2)
    if has("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
        return open_idx(path)
    trouble(f"{path}: neither an image pack nor a directory of CIFAR or IDX files")


def prepare(raw, boxes, config, dtype):
    """[b, 3, size, size] from raw uint8 [b, channels, height, width] and boxes (x, y, width, height, flip)."""
    size = config.image_size
    images = torch.empty((len(raw), raw.shape[1], size, size), dtype=dtype)
    resize = lambda crop: F.interpolate(crop, size=(size, size), mode=config.interpolation, antialias=True)
    raw = torch.from_numpy(raw).to(dtype)
    for i, (x, y, w, h, flip) in enumerate(boxes):
        resized = resize(raw[i:i + 1, :, y:y + h, x:x + w])
        images[i] = resized.flip(3)[0] if flip else resized[0]
    images.clamp_(0, 255)
    mean, std = (torch.tensor(v, dtype=dtype).view(3, 1, 1) for v in (config.mean, config.std))
    return images.expand(-1, 3, -1, -1).div(255).sub_(mean).div_(std)
