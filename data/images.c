// Finding out what a path is, and what all formats have in common: growing splits, names, choosing classes, closing.
#include "images_formats.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct Holding {
    void* bytes;
    size_t size;        // of a mapping; 0: memory
    struct Holding* next;
};

static void hold(Images* d, void* bytes, size_t size) {
    struct Holding* h = allocate(1, sizeof *h);
    *h = (struct Holding){bytes, size, d->holding};
    d->holding = h;
}

void images_hold(Images* d, void* memory) { hold(d, memory, 0); }

const uint8_t* images_map(Images* d, const char* path, size_t* bytes) {
    int file = open(path, O_RDONLY);
    struct stat s;
    if (file < 0 || fstat(file, &s)) trouble("%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode)) trouble("%s: is not a file", path);
    if (s.st_size == 0) trouble("%s: is empty; fetch or make it again", path);
    *bytes = (size_t)s.st_size;
    void* map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED) trouble("%s: cannot map it: %s", path, strerror(errno));
    close(file);
    hold(d, map, *bytes);
    return map;
}

char* images_file(const Images* d, const char* name) {
    char* path = format_string("%s/%s", d->path, name);
    if (access(path, F_OK) == 0) return path;
    free(path);
    return NULL;
}

static void* grown(void* array, size_t count, size_t size) {
    void* more = realloc(array, count * size);
    if (!more) trouble("out of memory for a list of %zu images", count);
    return more;
}

void split_add(Split* s, const uint8_t* image, int64_t label, int classes, const char* path, int64_t record) {
    if (label < 0 || label >= classes)
        trouble("%s: record %lld (from 0) has label %lld, outside the %d classes 0 .. %d", path, (long long)record, (long long)label,
                classes, classes - 1);
    if (s->count == INT_MAX) trouble("%s: more than %d images", path, INT_MAX);
    size_t n = (size_t)s->count;
    if ((n & (n - 1)) == 0) {   // full at every power of two
        s->image = grown((void*)s->image, n ? 2 * n : 1, sizeof *s->image);
        s->label = grown((void*)s->label, n ? 2 * n : 1, sizeof *s->label);
    }
    ((const uint8_t**)s->image)[n] = image;
    ((int32_t*)s->label)[n] = (int32_t)label;
    s->count++;
}

// ---- classes ----

void images_name_classes(Images* d, const char* path, const char* text, size_t bytes) {
    d->class_name = allocate((size_t)d->classes, sizeof *d->class_name);
    if (!text) {
        for (int i = 0; i < d->classes; i++) d->class_name[i] = format_string("%d", i);
        return;
    }
    if (memchr(text, 0, bytes)) trouble("%s: there is a zero byte among the names of the classes", path);
    while (bytes && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r')) bytes--;
    const char* end = text + bytes;
    int count = 0;
    for (const char* line = text; line < end; count++) {
        const char* next = memchr(line, '\n', (size_t)(end - line));
        const char* stop = next ? next : end;
        size_t length = (size_t)(stop - line);
        if (length && line[length - 1] == '\r') length--;
        if (count < d->classes) d->class_name[count] = format_string("%.*s", (int)length, line);
        line = next ? next + 1 : end;
    }
    if (count != d->classes) trouble("%s: %d names for %d classes", path, count, d->classes);
}

// Reads "0-4,7" into place[class] = its new number or -1. Returns how many there are.
static int parse_classes(const char* list, int classes, int32_t* place) {
    int count = 0;
    for (int i = 0; i < classes; i++) place[i] = -1;
    for (const char* p = list;; p++) {
        char* end;
        long from = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1, to = from;
        if (from >= 0 && *end == '-') {
            p = end + 1;
            to = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        }
        if (from < 0 || to < from || (*end && *end != ','))
            usage_error("class list '%s': expected numbers and ranges such as 0-4,7", list);
        if (to >= classes) usage_error("class list '%s': %ld is outside the %d classes 0 .. %d", list, to, classes, classes - 1);
        for (long i = from; i <= to; i++) {
            if (place[i] >= 0) usage_error("class list '%s': %ld is there twice", list, i);
            place[i] = count++;
        }
        p = end;
        if (*p == 0) return count;
    }
}

static void keep_in_split(Split* s, const int32_t* place) {
    const uint8_t** image = (const uint8_t**)s->image;
    int32_t* label = (int32_t*)s->label;
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        if (place[label[i]] < 0) continue;
        image[kept] = image[i];
        label[kept++] = place[label[i]];
    }
    s->count = kept;
}

static void keep_only(Images* d, const char* list) {
    int32_t* place = allocate((size_t)d->classes, sizeof *place);
    int count = parse_classes(list, d->classes, place);
    char** names = allocate((size_t)count, sizeof *names);
    for (int i = 0; i < d->classes; i++) {
        if (place[i] >= 0) names[place[i]] = d->class_name[i];
        else free(d->class_name[i]);
    }
    free(d->class_name);
    d->class_name = names;
    d->classes = count;
    keep_in_split(&d->train, place);
    keep_in_split(&d->test, place);
    free(place);
    if (d->train.count == 0 && d->test.count == 0) trouble("%s: no image is of the classes %s", d->path, list);
}

// ---- opening and closing ----

static int has(const Images* d, const char* name) {
    char* path = images_file(d, name);
    free(path);
    return path != NULL;
}

static int has_cifar10(const Images* d) {
    char name[] = "data_batch_1.bin";
    for (char i = '1'; i <= '5'; i++) {
        name[11] = i;
        if (has(d, name)) return 1;
    }
    return 0;
}

static void read_directory(Images* d) {
    if (has_cifar10(d)) images_read_cifar(d, 10);
    else if (has(d, "train.bin")) images_read_cifar(d, 100);
    else if (has(d, "train-images-idx3-ubyte") || has(d, "train-images-idx3-ubyte.gz")) images_read_idx(d);
    else if (has(d, "data_batch_1") || (has(d, "train") && has(d, "meta")))
        trouble("%s: these are CIFAR's Python files; fetch the binary version", d->path);
    else
        trouble("%s: holds none of data_batch_1.bin (CIFAR-10), train.bin (CIFAR-100), train-images-idx3-ubyte[.gz] (MNIST); "
                "a directory of photos is made into an image pack by data/pack_images", d->path);
}

Images images_open(const char* path, const char* keep_classes) {
    Images d = {.path = format_string("%s", path)};
    struct stat s;
    if (stat(path, &s)) trouble("%s: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode)) read_directory(&d);
    else images_read_pack(&d);
    if (d.train.count == 0 && d.test.count == 0) trouble("%s: there is no image in it", path);
    if (keep_classes) keep_only(&d, keep_classes);
    return d;
}

static void split_free(Split* s) {
    free((void*)s->image);
    free((void*)s->label);
}

uint64_t images_hash(const Images* d) {
    const Split* split[2] = {&d->train, &d->test};
    int sizes[6] = {d->channels, d->height, d->width, d->classes, d->train.count, d->test.count};
    size_t bytes = (size_t)d->channels * (size_t)d->height * (size_t)d->width, some = bytes < 64 ? bytes : 64;
    uint64_t hash = hash_bytes(HASH_START, sizes, sizeof sizes);
    for (int k = 0; k < 2; k++) {
        hash = hash_bytes(hash, split[k]->label, (size_t)split[k]->count * sizeof *split[k]->label);
        for (int i = 0; i < split[k]->count; i++) hash = hash_bytes(hash, split[k]->image[i], some);
    }
    return hash;
}

void images_close(Images* d) {
    for (struct Holding *h = d->holding, *next; h; h = next) {
        next = h->next;
        if (h->size) munmap(h->bytes, h->size);
        else free(h->bytes);
        free(h);
    }
    for (int i = 0; i < d->classes; i++) free(d->class_name[i]);
    free(d->class_name);
    split_free(&d->train);
    split_free(&d->test);
    free(d->path);
    *d = (Images){0};
}
