// IDX, the format of MNIST and its kin: 0, 0, type (8: bytes), number of dimensions; the dimensions, big-endian u32; the data.
// zlib's gzread reads plain files as they are, so .gz or not makes no difference.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE   // strcasestr
#endif
#include "images_formats.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

typedef struct {
    char* path;
    const uint8_t* data;      // behind the header
    uint32_t shape[3];        // count, rows, columns
} Idx;

// The whole file, unpacked.
static uint8_t* read_all(const char* path, size_t* bytes) {
    gzFile f = gzopen(path, "rb");
    if (!f) trouble("%s: %s", path, strerror(errno));
    gzbuffer(f, 1 << 17);
    uint8_t* data = NULL;
    size_t room = 0, n = 0;
    int got;
    do {
        if (n == room) {
            room = room ? 2 * room : 1 << 20;
            data = realloc(data, room);
            if (!data) trouble("%s: out of memory after %zu bytes", path, n);
        }
        size_t want = room - n < 1 << 30 ? room - n : 1 << 30;
        got = gzread(f, data + n, (unsigned)want);
        if (got > 0) n += (size_t)got;
    } while (got > 0);
    int error;
    const char* cause = gzerror(f, &error);
    if (got < 0 || error == Z_BUF_ERROR) trouble("%s: cannot unpack it after %zu bytes: %s; fetch it again", path, n, cause);
    gzclose(f);
    *bytes = n;
    return data;
}

static uint32_t big_endian(const uint8_t* p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

// NAME or NAME.gz with `dimensions` dimensions. path is NULL where there is none.
static Idx read_idx(Images* d, const char* name, int dimensions) {
    Idx x = {.shape = {0, 1, 1}};
    char* packed = format_string("%s.gz", name);
    x.path = images_file(d, name);
    if (!x.path) x.path = images_file(d, packed);
    free(packed);
    if (!x.path) return x;
    size_t bytes, header = 4 + 4 * (size_t)dimensions;
    uint8_t* file = read_all(x.path, &bytes);
    images_hold(d, file);
    if (bytes < header || file[0] || file[1] || file[2] != 8 || file[3] != dimensions)
        trouble("%s: does not begin as an IDX file of bytes with %d dimensions", x.path, dimensions);
    for (int i = 0; i < dimensions; i++) x.shape[i] = big_endian(file + 4 + 4 * i);
    if (x.shape[0] > INT_MAX || x.shape[1] - 1 > 65534 || x.shape[2] - 1 > 65534)
        trouble("%s: its header says %u x %u x %u", x.path, x.shape[0], x.shape[1], x.shape[2]);
    uint64_t expected = (uint64_t)x.shape[0] * x.shape[1] * x.shape[2];
    if (bytes - header != expected)
        trouble("%s: its header says %llu bytes of data, there are %zu; fetch it again", x.path, (unsigned long long)expected,
                bytes - header);
    x.data = file + header;
    return x;
}

static const char fashion_names[] =
    "T-shirt/top\nTrouser\nPullover\nDress\nCoat\nSandal\nShirt\nSneaker\nBag\nAnkle boot\n";

// Fashion-MNIST's files are named as MNIST's; its directory tells them apart.
static int is_fashion(const Images* d) {
    char* whole = realpath(d->path, NULL);
    int found = whole && strcasestr(whole, "fashion");
    free(whole);
    return found;
}

typedef struct { Idx images, labels; } Pair;

static Pair read_pair(Images* d, const char* images, const char* labels) {
    Pair p = {.images = read_idx(d, images, 3)};
    if (!p.images.path) return p;
    p.labels = read_idx(d, labels, 1);
    if (!p.labels.path) trouble("%s: %s[.gz], the labels of %s, is missing", d->path, labels, p.images.path);
    if (p.labels.shape[0] != p.images.shape[0])
        trouble("%s: %u labels for the %u images of %s", p.labels.path, p.labels.shape[0], p.images.shape[0], p.images.path);
    return p;
}

static int most_label(const Pair* p) {
    int most = 0;
    for (uint32_t i = 0; i < p->labels.shape[0]; i++)
        if (p->labels.data[i] > most) most = p->labels.data[i];
    return most;
}

static void add_pair(Images* d, Pair* p, Split* split) {
    size_t bytes = (size_t)d->height * (size_t)d->width;
    for (uint32_t i = 0; i < p->labels.shape[0]; i++)
        split_add(split, p->images.data + i * bytes, p->labels.data[i], d->classes, p->labels.path, i);
    free(p->images.path);
    free(p->labels.path);
}

void images_read_idx(Images* d) {
    Pair train = read_pair(d, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    Pair test = read_pair(d, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
    if (test.images.path && memcmp(train.images.shape + 1, test.images.shape + 1, 2 * sizeof(uint32_t)))
        trouble("%s: images of %u x %u, but those of %s are %u x %u", test.images.path, test.images.shape[1], test.images.shape[2],
                train.images.path, train.images.shape[1], train.images.shape[2]);
    d->kind = "IDX";
    d->channels = 1;
    d->height = (int)train.images.shape[1];
    d->width = (int)train.images.shape[2];
    if (is_fashion(d)) {
        d->classes = 10;
        images_name_classes(d, "Fashion-MNIST", fashion_names, sizeof fashion_names - 1);
    } else {
        int a = most_label(&train), b = test.labels.path ? most_label(&test) : 0;
        d->classes = (a > b ? a : b) + 1;
        images_name_classes(d, NULL, NULL, 0);
    }
    add_pair(d, &train, &d->train);
    if (test.labels.path) add_pair(d, &test, &d->test);
}
