// Readers of labelled images: what was written comes back byte for byte, damage is named, and the real files read as they are.
#include "data/images.h"
#include "data/run.h"
#include "test.h"

#include <sys/stat.h>
#include <zlib.h>

static char base[] = "/tmp/prebr_test_images_XXXXXX";

static char* at(const char* name) {
    static char paths[8][300];
    static int next;
    char* path = paths[next++ % 8];
    snprintf(path, 300, "%s/%s", base, name);
    return path;
}

static void put(const char* name, const void* data, size_t n) {
    FILE* f = file_create(at(name));
    fwrite(data, 1, n, f);
    file_finish(f, at(name));
}

static void put_gz(const char* name, const void* data, size_t n) {
    gzFile f = gzopen(at(name), "wb");
    gzwrite(f, data, (unsigned)n);
    gzclose(f);
}

// Random bytes; what stands at `label_at` of every record becomes a class.
static uint8_t* records(int count, size_t record, int label_at, int classes) {
    uint8_t* data = malloc((size_t)count * record);
    for (size_t i = 0; i < (size_t)count * record; i++) data[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < count; i++) data[(size_t)i * record + (size_t)label_at] = (uint8_t)test_int(0, classes - 1);
    return data;
}

static void open_and_close(const void* path) {
    Images d = images_open(path, NULL);
    images_close(&d);
}

// Image i of the split must be the bytes at data + i * stride, its label the byte before (at label_at).
static void check_split(const Split* s, int from, int count, const uint8_t* data, size_t stride, size_t labels, size_t bytes) {
    for (int i = 0; i < count; i++, data += stride) {
        CHECK(!memcmp(s->image[from + i], data + labels, bytes), "image %d", from + i);
        CHECK(s->label[from + i] == data[labels - 1], "label %d", from + i);
    }
}

static void test_cifar10(void) {
    directory_make(at("c10"));
    uint8_t *a = records(7, 3073, 0, 10), *b = records(5, 3073, 0, 10), *t = records(3, 3073, 0, 10);
    put("c10/data_batch_2.bin", a, 7 * 3073);
    put("c10/data_batch_5.bin", b, 5 * 3073);
    Images d = images_open(at("c10"), NULL);
    CHECK(!strcmp(d.kind, "CIFAR-10") && d.train.count == 12 && d.test.count == 0 && d.classes == 10, "%s %d", d.kind, d.train.count);
    CHECK(!strcmp(d.class_name[9], "9"), "%s", d.class_name[9]);
    images_close(&d);
    put("c10/test_batch.bin", t, 3 * 3073);
    const char names[] = "airplane\nautomobile\nbird\ncat\ndeer\r\ndog\nfrog\nhorse\nship\ntruck\n\n";
    put("c10/batches.meta.txt", names, sizeof names - 1);
    d = images_open(at("c10"), NULL);
    CHECK(d.channels == 3 && d.height == 32 && d.width == 32 && d.train.count == 12 && d.test.count == 3, "%d", d.test.count);
    CHECK(!strcmp(d.class_name[0], "airplane") && !strcmp(d.class_name[4], "deer") && !strcmp(d.class_name[9], "truck"), "names");
    check_split(&d.train, 0, 7, a, 3073, 1, 3072);
    check_split(&d.train, 7, 5, b, 3073, 1, 3072);
    check_split(&d.test, 0, 3, t, 3073, 1, 3072);
    images_close(&d);

    b[2 * 3073] = 10;
    put("c10/data_batch_5.bin", b, 5 * 3073);
    test_dies(open_and_close, at("c10"), "data_batch_5.bin: record 2 (from 0) has label 10, outside the 10 classes", 1);
    put("c10/data_batch_5.bin", a, 6 * 3073 + 100);
    test_dies(open_and_close, at("c10"), "data_batch_5.bin: 18538 bytes are not whole records of 3073; the last whole one is record 5", 1);
    put("c10/data_batch_5.bin", a, 100);
    test_dies(open_and_close, at("c10"), "less than one record", 1);
    put("c10/data_batch_5.bin", a, 0);
    test_dies(open_and_close, at("c10"), "data_batch_5.bin: is empty", 1);
    put("c10/data_batch_5.bin", a, 3073);
    put("c10/batches.meta.txt", names, 29);
    test_dies(open_and_close, at("c10"), "batches.meta.txt: 4 names for 10 classes", 1);
    free(a), free(b), free(t);
}

static void test_cifar100(void) {
    directory_make(at("c100"));
    uint8_t *a = records(9, 3074, 1, 100), *t = records(4, 3074, 1, 100);
    put("c100/train.bin", a, 9 * 3074);
    put("c100/test.bin", t, 4 * 3074);
    Images d = images_open(at("c100"), NULL);
    CHECK(!strcmp(d.kind, "CIFAR-100") && d.classes == 100 && d.train.count == 9 && d.test.count == 4, "%s", d.kind);
    check_split(&d.train, 0, 9, a, 3074, 2, 3072);
    check_split(&d.test, 0, 4, t, 3074, 2, 3072);
    images_close(&d);
    put("c100/test.bin", t, 3073 * 2);
    test_dies(open_and_close, at("c100"), "test.bin: 6146 bytes are not whole records of 3074; the last whole one is record 0", 1);
    free(a), free(t);
}

// An IDX file of n images (rows x columns) or labels (rows = 0); the data is random, labels below `classes`.
static size_t idx(uint8_t* out, int n, int rows, int columns, int classes) {
    uint8_t head[16] = {0, 0, 8, rows ? 3 : 1, 0, 0, 0, (uint8_t)n, 0, 0, 0, (uint8_t)rows, 0, 0, 0, (uint8_t)columns};
    size_t header = rows ? 16 : 8, bytes = (size_t)n * (size_t)(rows ? rows * columns : 1);
    memcpy(out, head, header);
    for (size_t i = 0; i < bytes; i++) out[header + i] = (uint8_t)test_int(0, rows ? 255 : classes - 1);
    return header + bytes;
}

static void test_idx(void) {
    static uint8_t images[4096], labels[64], more[4096], more_labels[64];
    directory_make(at("idx"));
    size_t n = idx(images, 11, 5, 7, 0), nl = idx(labels, 11, 0, 0, 3), m = idx(more, 2, 5, 7, 0), ml = idx(more_labels, 2, 0, 0, 3);
    labels[8 + 4] = 3;   // the most
    put_gz("idx/train-images-idx3-ubyte.gz", images, n);
    put("idx/train-labels-idx1-ubyte", labels, nl);
    Images d = images_open(at("idx"), NULL);
    CHECK(!strcmp(d.kind, "IDX") && d.channels == 1 && d.height == 5 && d.width == 7 && d.classes == 4, "%s", d.kind);
    CHECK(d.train.count == 11 && d.test.count == 0 && !strcmp(d.class_name[3], "3"), "%d", d.train.count);
    images_close(&d);
    put("idx/t10k-images-idx3-ubyte", more, m);
    put_gz("idx/t10k-labels-idx1-ubyte.gz", more_labels, ml);
    d = images_open(at("idx"), NULL);
    CHECK(d.test.count == 2, "%d", d.test.count);
    for (int i = 0; i < 11; i++)
        CHECK(!memcmp(d.train.image[i], images + 16 + 35 * i, 35) && d.train.label[i] == labels[8 + i], "train %d", i);
    for (int i = 0; i < 2; i++) CHECK(!memcmp(d.test.image[i], more + 16 + 35 * i, 35) && d.test.label[i] == more_labels[8 + i], "%d", i);
    images_close(&d);

    directory_make(at("Fashion"));
    put("Fashion/train-images-idx3-ubyte", images, n);
    put("Fashion/train-labels-idx1-ubyte", labels, nl);
    d = images_open(at("Fashion"), NULL);
    CHECK(d.classes == 10 && !strcmp(d.class_name[0], "T-shirt/top") && !strcmp(d.class_name[9], "Ankle boot"), "%d", d.classes);
    images_close(&d);
    labels[8 + 4] = 10;
    put("Fashion/train-labels-idx1-ubyte", labels, nl);
    test_dies(open_and_close, at("Fashion"), "record 4 (from 0) has label 10", 1);

    put("idx/t10k-images-idx3-ubyte", more, m - 1);
    test_dies(open_and_close, at("idx"), "its header says 70 bytes of data, there are 69", 1);
    idx(more, 2, 7, 5, 0);
    put("idx/t10k-images-idx3-ubyte", more, m);
    test_dies(open_and_close, at("idx"), "images of 7 x 5, but those of", 1);
    put("idx/t10k-images-idx3-ubyte", images, n);
    test_dies(open_and_close, at("idx"), "2 labels for the 11 images", 1);
    put("idx/t10k-images-idx3-ubyte", more_labels, ml);
    test_dies(open_and_close, at("idx"), "does not begin as an IDX file", 1);
    unlink(at("idx/t10k-labels-idx1-ubyte.gz"));
    put("idx/t10k-images-idx3-ubyte", more, m);
    test_dies(open_and_close, at("idx"), "t10k-labels-idx1-ubyte[.gz], the labels of", 1);
    unlink(at("idx/t10k-images-idx3-ubyte"));
    struct stat s;
    stat(at("idx/train-images-idx3-ubyte.gz"), &s);
    if (truncate(at("idx/train-images-idx3-ubyte.gz"), s.st_size - 20)) exit(1);
    test_dies(open_and_close, at("idx"), "train-images-idx3-ubyte.gz: cannot unpack it", 1);
}

// A pack in memory; returns its size.
static size_t pack(uint8_t* out, int channels, int height, int width, int train, int test, const char* names, int classes) {
    uint32_t head[8] = {1, (uint32_t)channels, (uint32_t)height, (uint32_t)width, (uint32_t)classes, (uint32_t)train, (uint32_t)test,
                        (uint32_t)strlen(names)};
    memcpy(out, "prebrimg", 8);
    memcpy(out + 8, head, 32);
    memcpy(out + 40, names, strlen(names));
    uint8_t* p = out + 40 + strlen(names);
    for (int i = 0; i < train + test; i++, p += 4) memcpy(p, &(int32_t){test_int(0, classes - 1)}, 4);
    for (int i = 0; i < (train + test) * channels * height * width; i++) *p++ = (uint8_t)test_int(0, 255);
    return (size_t)(p - out);
}

static void set_field(uint8_t* file, int field, uint32_t value) { memcpy(file + 8 + 4 * field, &value, 4); }

static void open_pack_file(const void* unused) { open_and_close(at("p.pack")); }

static void test_pack(void) {
    static uint8_t file[8192], bad[8192];
    const char* names = "ant\nA bee\nünï\n";
    size_t n = pack(file, 3, 4, 5, 13, 6, names, 3);
    put("p.pack", file, n);
    Images d = images_open(at("p.pack"), NULL);
    CHECK(!strcmp(d.kind, "image pack") && d.channels == 3 && d.height == 4 && d.width == 5 && d.classes == 3, "%s", d.kind);
    CHECK(d.train.count == 13 && d.test.count == 6 && !strcmp(d.class_name[1], "A bee") && !strcmp(d.class_name[2], "ünï"), "names");
    const uint8_t *labels = file + 40 + strlen(names), *pixels = labels + 4 * 19;
    for (int i = 0; i < 19; i++) {
        const Split* s = i < 13 ? &d.train : &d.test;
        int at = i < 13 ? i : i - 13;
        CHECK(!memcmp(s->image[at], pixels + 60 * i, 60) && s->label[at] == labels[4 * i], "image %d", i);
    }
    images_close(&d);

    struct { int field; uint32_t value; const char* expected; } cases[] = {
        {0, 2, "is of version 2"}, {1, 2, "2 channels"}, {1, 1, "its header says 512 bytes"}, {2, 0, "3 channels of 0 x 5"},
        {3, 1u << 30, "of 4 x 1073741824"}, {4, 0, "0 classes"}, {4, 2, "3 names for 2 classes"}, {5, 1u << 31, "2147483648 + 6 images"},
        {5, 14, "there are"}, {6, 0x7fffffff, "there are"}, {7, 0, "there are"}, {7, ~0u, "there are"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bad, file, n);
        set_field(bad, cases[i].field, cases[i].value);
        put("p.pack", bad, n);
        test_dies(open_pack_file, NULL, cases[i].expected, 1);
    }
    memcpy(bad, file, n);
    bad[40 + strlen(names) + 4 * 15] = 3;
    put("p.pack", bad, n);
    test_dies(open_pack_file, NULL, "record 15 (from 0) has label 3, outside the 3 classes 0 .. 2", 1);
    for (size_t cut = 1; cut < n; cut += cut < 60 ? 7 : 97) {
        put("p.pack", file, cut);
        test_dies(open_pack_file, NULL, "make", 1);
    }
    // Any other damage ends in an error line or in images within the file (the sanitizers look on).
    for (int round = 0; round < 100; round++) {
        memcpy(bad, file, n);
        for (int i = 0; i < 3; i++) bad[test_int(8, 140)] = (uint8_t)test_int(0, 3);
        put("p.pack", bad, n);
        int status;
        pid_t child = fork();
        if (child == 0) {
            if (!freopen("/dev/null", "w", stderr)) _exit(9);
            Images some = images_open(at("p.pack"), NULL);
            uint32_t sum = 0;
            for (int i = 0; i < some.train.count; i++)
                for (int k = 0; k < some.channels * some.height * some.width; k++) sum += some.train.image[i][k];
            images_close(&some);
            _exit(sum == 12345678);
        }
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) < 2, "round %d: status %x", round, status);
    }
}

static void open_with_classes(const void* list) {
    Images d = images_open(at("c100"), list);
    images_close(&d);
}

static void test_classes(void) {
    uint8_t* a = records(200, 3074, 1, 100);
    for (int i = 0; i < 100; i++) a[3074 * i + 1] = (uint8_t)i;
    put("c100/train.bin", a, 200 * 3074);
    put("c100/test.bin", a, 100 * 3074);
    Images d = images_open(at("c100"), "90-92,7,0-1");
    const int kept[] = {90, 91, 92, 7, 0, 1};
    CHECK(d.classes == 6 && d.test.count == 6 && !strcmp(d.class_name[0], "90") && !strcmp(d.class_name[3], "7"), "%d", d.test.count);
    int place = 0;
    for (int i = 0; i < 200; i++) {
        int number = -1;
        for (int c = 0; c < 6; c++)
            if (kept[c] == a[3074 * i + 1]) number = c;
        if (number < 0) continue;
        CHECK(place < d.train.count && d.train.label[place] == number && !memcmp(d.train.image[place], a + 3074 * i + 2, 3072), "%d", i);
        place++;
    }
    CHECK(place == d.train.count, "%d of %d", d.train.count, place);
    images_close(&d);
    const char* cases[][2] = {{"", "expected numbers"}, {"1,", "expected numbers"}, {"a", "expected numbers"}, {"3-1", "expected numbers"},
                              {"1--3", "expected numbers"}, {"-1", "expected numbers"}, {"1 ,2", "expected numbers"},
                              {"99-100", "100 is outside the 100 classes"}, {"1-3,2", "2 is there twice"},
                              {"99999999999999999999", "outside"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_dies(open_with_classes, cases[i][0], cases[i][1], 2);
    put("c100/train.bin", a, 10 * 3074);
    put("c100/test.bin", a, 10 * 3074);
    test_dies(open_with_classes, "50", "no image is of the classes 50", 1);
    free(a);
}

static void test_kinds(void) {
    test_dies(open_and_close, at("nothing"), "nothing: No such file", 1);
    directory_make(at("empty"));
    test_dies(open_and_close, at("empty"), "holds none of data_batch_1.bin", 1);
    put("empty/data_batch_1", "x", 1);
    test_dies(open_and_close, at("empty"), "Python files; fetch the binary version", 1);
    put("a.txt", "hello", 5);
    test_dies(open_and_close, at("a.txt"), "is not an image pack", 1);
}

// Real files, where they are.
static void test_real(void) {
    const char* data = getenv("PREBR_TEST_DATA");
    if (access("/usr/share/datasets/fashion-mnist", R_OK) == 0) {
        Images d = images_open("/usr/share/datasets/fashion-mnist", NULL);
        CHECK(d.train.count == 60000 && d.test.count == 10000 && d.height == 28 && d.width == 28 && d.classes == 10, "Fashion-MNIST");
        int of_class[10] = {0};
        for (int i = 0; i < d.train.count; i++) of_class[d.train.label[i]]++;
        for (int c = 0; c < 10; c++) CHECK(of_class[c] == 6000, "class %d: %d", c, of_class[c]);
        CHECK(d.train.label[0] == 9 && d.test.label[0] == 9 && d.test.label[1] == 2, "first labels");
        images_close(&d);
    }
    char path[400];
    snprintf(path, sizeof path, "%s/cifar-10-batches-bin", data ? data : "");
    if (!data || access(path, R_OK)) return;
    Images d = images_open(path, "3,5");
    CHECK(d.classes == 2 && !strcmp(d.class_name[0], "cat") && !strcmp(d.class_name[1], "dog") && d.train.count > 1000, "CIFAR-10");
    images_close(&d);
}

int main(void) {
    if (!mkdtemp(base)) exit(1);
    test_cifar10();
    test_cifar100();
    test_idx();
    test_pack();
    test_classes();
    test_kinds();
    test_real();
    directory_fresh(base);
    rmdir(base);
    TEST_END();
}
