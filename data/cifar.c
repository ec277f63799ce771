// CIFAR's binary version. A record is the label bytes (CIFAR-10: the class; CIFAR-100: coarse class, fine class), then 3 x 32 x 32
// bytes, planar, rows from the top; a file is records and nothing else.
#include "images_formats.h"

#include <stdlib.h>

enum { PIXELS = 3 * 32 * 32 };

static void read_file(Images* d, const char* path, Split* split) {
    size_t labels = d->classes == 100 ? 2 : 1, record = labels + PIXELS, bytes;
    const uint8_t* data = images_map(d, path, &bytes);
    size_t count = bytes / record;
    if (bytes % record && count)
        trouble("%s: %zu bytes are not whole records of %zu; the last whole one is record %zu (from 0): fetch the file again", path,
                bytes, record, count - 1);
    if (bytes % record) trouble("%s: %zu bytes are less than one record of %zu: fetch the file again", path, bytes, record);
    for (size_t i = 0; i < count; i++, data += record)
        split_add(split, data + labels, data[labels - 1], d->classes, path, (int64_t)i);
}

static void read_if_there(Images* d, const char* name, Split* split) {
    char* path = images_file(d, name);
    if (path) read_file(d, path, split);
    free(path);
}

void images_read_cifar(Images* d, int classes) {
    d->kind = classes == 10 ? "CIFAR-10" : "CIFAR-100";
    d->channels = 3;
    d->height = d->width = 32;
    d->classes = classes;
    if (classes == 10) {
        const char* batches[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
        for (int i = 0; i < 5; i++) read_if_there(d, batches[i], &d->train);
    } else {
        read_if_there(d, "train.bin", &d->train);
    }
    read_if_there(d, classes == 10 ? "test_batch.bin" : "test.bin", &d->test);
    char* names = images_file(d, classes == 10 ? "batches.meta.txt" : "fine_label_names.txt");
    size_t bytes = 0;
    const char* text = names ? (const char*)images_map(d, names, &bytes) : NULL;
    images_name_classes(d, names, text, bytes);
    free(names);
}
