// Image packs (images.h has the format). Every number of the header is checked against the file's size before it is used.
#include "images_formats.h"

#include <limits.h>
#include <string.h>

enum { HEADER_BYTES = 40, MOST_SIDE = 16384, MOST_CLASSES = 1 << 20 };

void images_read_pack(Images* d) {
    size_t bytes;
    const uint8_t* file = images_map(d, d->path, &bytes);
    if (bytes < HEADER_BYTES || memcmp(file, "prebrimg", 8))
        trouble("%s: is not an image pack; data/pack_images makes one from a directory of photos", d->path);
    uint32_t version, channels, height, width, classes, train, test, names;
    uint32_t* fields[] = {&version, &channels, &height, &width, &classes, &train, &test, &names};
    for (int i = 0; i < 8; i++) memcpy(fields[i], file + 8 + 4 * i, 4);
    if (version != 1) trouble("%s: is of version %u, this program reads version 1: make it again", d->path, version);
    if ((channels != 1 && channels != 3) || height - 1 >= MOST_SIDE || width - 1 >= MOST_SIDE)
        trouble("%s: its header says %u channels of %u x %u", d->path, channels, height, width);
    if (classes - 1 >= MOST_CLASSES || train > INT_MAX || test > INT_MAX)
        trouble("%s: its header says %u classes, %u + %u images", d->path, classes, train, test);
    uint64_t count = (uint64_t)train + test, image = (uint64_t)channels * height * width;
    uint64_t expected = HEADER_BYTES + (uint64_t)names + count * (4 + image);   // < 2^32 images of < 2^30 bytes
    if (bytes != expected)
        trouble("%s: its header says %llu bytes, there are %zu: it is cut off or damaged, make it again", d->path,
                (unsigned long long)expected, bytes);
    d->kind = "image pack";
    d->channels = (int)channels;
    d->height = (int)height;
    d->width = (int)width;
    d->classes = (int)classes;
    images_name_classes(d, d->path, (const char*)file + HEADER_BYTES, names);
    const uint8_t* labels = file + HEADER_BYTES + names;   // not aligned
    const uint8_t* pixels = labels + 4 * count;
    for (uint64_t i = 0; i < count; i++) {
        int32_t label;
        memcpy(&label, labels + 4 * i, 4);
        split_add(i < train ? &d->train : &d->test, pixels + i * image, label, d->classes, d->path, (int64_t)i);
    }
}
