// safetensors: what is written reads back bit for bit, every half-precision value converts exactly, every damaged file is refused
// with one line, and a write that fails leaves the old file alone.
#define _GNU_SOURCE
#include "test/test.h"
#include "data/safetensors.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char directory[] = "/tmp/prebr_safetensors_XXXXXX";
static char path[64];

static void round_trip(void) {
    enum { N = 1000003 };   // prime, and above the page step of safetensors_copy
    int64_t big[1] = {N}, small[3] = {2, 3, 5}, none[2] = {0, 7}, one[1] = {1};
    float* a = test_array(N);
    float* out = test_array(N);
    float b[30];
    int64_t c[1] = {-1234567890123456789};
    int32_t d[30];
    for (int i = 0; i < 30; i++) b[i] = (float)(i - 7), d[i] = i * 7777777 - 1;

    SafetensorsWriter* w = safetensors_create(path);
    safetensors_declare(w, "small \"quoted\"", DTYPE_F32, 3, small);
    safetensors_declare(w, "big", DTYPE_F32, 1, big);
    safetensors_declare(w, "empty", DTYPE_F32, 2, none);
    safetensors_declare(w, "scalar", DTYPE_I64, 0, NULL);
    safetensors_declare(w, "ints", DTYPE_I32, 3, small);
    safetensors_declare(w, "last", DTYPE_F32, 1, one);
    safetensors_write(w, b, sizeof b);
    safetensors_write(w, a, 1000 * sizeof *a);
    safetensors_write(w, a + 1000, (N - 1000) * sizeof *a);
    safetensors_write(w, c, sizeof c);
    safetensors_write(w, d, sizeof d);
    CHECK(access(path, F_OK), "the name must not exist before the file is complete");
    safetensors_write(w, b, sizeof *b);
    safetensors_finish(w);

    Safetensors s = safetensors_open(path);
    CHECK(s.count == 6 && !strcmp(s.tensors[0].name, "small \"quoted\"") && !strcmp(s.tensors[5].name, "last"), "%d tensors", s.count);
    Tensor* t = safetensors_find(&s, "small \"quoted\"");
    CHECK(t && t->ndim == 3 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[2] == 5 && t->elements == 30 && t->bytes == 120, "shape");
    CHECK((uintptr_t)t->data % 8 == 0, "data not aligned");
    t = safetensors_find(&s, "big");
    for (int pass = 0; pass < 2; pass++) {   // twice: pages given back must come again
        memset(out, 0, N * sizeof *out);
        safetensors_copy(&s, t, out, 0, N);
        CHECK(!memcmp(out, a, N * sizeof *a), "big differs");
    }
    safetensors_copy(&s, t, out, 4099, 5001);
    CHECK(!memcmp(out, a + 4099, 5001 * sizeof *a), "a part of big differs");
    safetensors_copy(&s, t, out, N, 0);
    CHECK(safetensors_find(&s, "empty")->elements == 0, "empty");
    int64_t c2;
    int32_t d2[30];
    safetensors_copy_raw(&s, "scalar", DTYPE_I64, 1, &c2);
    safetensors_copy_raw(&s, "ints", DTYPE_I32, 30, d2);
    CHECK(c2 == c[0] && !memcmp(d, d2, sizeof d), "raw copies differ");
    CHECK(safetensors_find(&s, "ints")->used && !safetensors_find(&s, "last")->used, "used");
    CHECK(!safetensors_find(&s, "absent"), "found what is not there");
    safetensors_close(&s);
    free(a);
    free(out);
}

// All 2 x 63,488 finite values of F16 and the 65,280 of BF16, against ldexp of their fields.
static void half_precision(void) {
    static uint16_t half[2][65536];
    static float out[65536];
    int count[2] = {0, 0};
    for (int v = 0; v < 65536; v++) {
        if ((v >> 10 & 31) != 31) half[0][count[0]++] = (uint16_t)v;
        if ((v >> 7 & 255) != 255) half[1][count[1]++] = (uint16_t)v;
    }
    SafetensorsWriter* w = safetensors_create(path);
    int64_t shape[2][1] = {{count[0]}, {count[1]}};
    safetensors_declare(w, "f16", DTYPE_F16, 1, shape[0]);
    safetensors_declare(w, "bf16", DTYPE_BF16, 1, shape[1]);
    for (int k = 0; k < 2; k++) safetensors_write(w, half[k], (size_t)count[k] * 2);
    safetensors_finish(w);
    Safetensors s = safetensors_open(path);
    for (int k = 0; k < 2; k++) {
        int mantissa_bits = k ? 7 : 10, bias = k ? 127 : 15, wrong = 0;
        safetensors_copy(&s, &s.tensors[k], out, 0, count[k]);
        for (int i = 0; i < count[k]; i++) {
            int v = half[k][i], exponent = v >> mantissa_bits & (k ? 255 : 31), mantissa = v & ((1 << mantissa_bits) - 1);
            double value = exponent ? ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                                    : ldexp(mantissa, 1 - bias - mantissa_bits);
            wrong += !(out[i] == (float)(v & 0x8000 ? -value : value) && !signbit(out[i]) == !(v & 0x8000));
        }
        CHECK(!wrong, "%d of %d values of %s differ", wrong, count[k], s.tensors[k].name);
    }
    safetensors_close(&s);
}

// ---- damaged files ----

// Writes length, header and `room` zero bytes, and expects the opening to end with `expected`.
static void write_file(uint64_t length, const char* header, size_t header_bytes, size_t room) {
    FILE* f = fopen(path, "wb");
    fwrite(&length, 1, 8, f);
    fwrite(header, 1, header_bytes, f);
    for (size_t i = 0; i < room; i++) fputc(0, f);
    fclose(f);
}

static void open_it(const void* file) {
    Safetensors s = safetensors_open(file);
    safetensors_close(&s);
}

static void refused(const char* header, size_t room, const char* expected) {
    write_file(strlen(header), header, strlen(header), room);
    test_dies(open_it, path, expected, 1);
    test_dies(open_it, path, path, 1);
}

static void copy_first(const void* n) {
    static float out[16];
    Safetensors s = safetensors_open(path);
    safetensors_copy(&s, &s.tensors[0], out, 0, *(const int*)n);
}

static void copy_raw_first(const void* name) {
    char out[64];
    Safetensors s = safetensors_open(path);
    safetensors_copy_raw(&s, name, DTYPE_F64, 3, out);
}

static void damaged_files(void) {
    test_dies(open_it, "/nowhere/x.safetensors", "/nowhere/x.safetensors: cannot be opened: No such file", 1);
    test_dies(open_it, directory, "is not a file", 1);
    fclose(fopen(path, "wb"));
    test_dies(open_it, path, "has 0 bytes", 1);
    write_file(UINT64_MAX, "{}", 2, 0);
    test_dies(open_it, path, "not a safetensors file", 1);
    write_file(1000, "{}", 2, 0);
    test_dies(open_it, path, "header should have 1000 bytes, but only 2 are there: the file is truncated", 1);
    write_file(0, "", 0, 20);
    test_dies(open_it, path, "does not begin with '{'", 1);

    refused("[]", 0, "does not begin with '{'");
    refused("{\"a\": }", 0, "not valid JSON at byte 6");
    refused("{} {}", 0, "something after the JSON, at byte 3");
    refused("{\"a\":3}", 0, "tensor 'a': dtype, shape or data_offsets is missing");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "is missing");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "malformed");
    refused("{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': unknown dtype 'F33'");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,-1],\"data_offsets\":[0,4]}}", 4, "dimension 1 is not a size");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "dimension 0 is not a size");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "more than 8 dimensions");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4, "64 bits");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,1073741824],\"data_offsets\":[0,4]}}", 4, "not a possible number of bytes");
    refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "not a possible number of bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "not a range");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e300]}}", 4, "not a range");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "only 7 bytes are there: the file is truncated");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "need 8 bytes, data_offsets give 4");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 bytes after the last tensor");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "4 bytes before tensor 'a' belong to no tensor");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
            12, "tensors 'a' and 'b' overlap");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8, "tensor 'a' is there twice");
    refused("{\"a\\nb\":{\"dtype\":\"F\\u001b2\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a?b': unknown dtype 'F?2'");

    char deep[5000];   // nesting that would overflow a stack
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[4999] = 0;
    refused(deep, 0, "not valid JSON");
}

static void unusable_tensors(void) {
    float values[5] = {1, 2, 3, NAN, 5};
    int64_t shape[1] = {5};
    int five = 5, six = 6;
    for (int pass = 0; pass < 2; pass++) {
        SafetensorsWriter* w = safetensors_create(path);
        safetensors_declare(w, "w", DTYPE_F32, 1, shape);
        safetensors_write(w, values, sizeof values);
        safetensors_finish(w);
        test_dies(copy_first, &five, pass ? "tensor 'w' has infinity at element 4" : "tensor 'w' has NaN at element 3", 1);
        values[3] = 4;
        values[4] = -INFINITY;
    }
    test_dies(copy_first, &six, "has 5 elements, too few", 1);
    test_dies(copy_raw_first, "v", "there is no tensor 'v'", 1);
    test_dies(copy_raw_first, "w", "is F32 with 5 elements where this run has F64 with 3", 1);
    uint16_t halves[5] = {0x3c00, 0x7c00, 0, 0, 0};
    SafetensorsWriter* w = safetensors_create(path);
    safetensors_declare(w, "h", DTYPE_F16, 1, shape);
    safetensors_write(w, halves, sizeof halves);
    safetensors_finish(w);
    test_dies(copy_first, &five, "tensor 'h' has infinity at element 1", 1);
    refused("{\"a\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,3]}}", 3, "need 2 bytes");
    const char* header = "{\"a\":{\"dtype\":\"I16\",\"shape\":[5],\"data_offsets\":[0,10]}}";
    write_file(strlen(header), header, strlen(header), 10);
    test_dies(copy_first, &five, "only F32, F16 and BF16", 1);
}

// ---- failing writes ----

static void write_too_much(const void* name) {
    static float values[1 << 18];
    int64_t shape[1] = {1 << 18};
    struct rlimit limit = {100000, 100000};   // stands for a full disk
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    SafetensorsWriter* w = safetensors_create(name);
    safetensors_declare(w, "w", DTYPE_F32, 1, shape);
    safetensors_write(w, values, sizeof values);
    safetensors_finish(w);
}

static void write_too_little(const void* name) {
    int64_t shape[1] = {3};
    SafetensorsWriter* w = safetensors_create(name);
    safetensors_declare(w, "w", DTYPE_F32, 1, shape);
    safetensors_write(w, "abcd", 4);
    safetensors_finish(w);
}

static void failing_writes(void) {
    const char* header = "{\"old\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    char* temporary = format_string("%s.tmp", path);
    write_file(strlen(header), header, strlen(header), 4);
    test_dies(write_too_much, path, "cannot be written: File too large", 1);
    CHECK(access(temporary, F_OK), "the temporary file is still there");
    test_dies(write_too_little, path, "12 bytes were declared but 4 written", 1);
    CHECK(access(temporary, F_OK), "the temporary file is still there");
    Safetensors s = safetensors_open(path);
    CHECK(s.count == 1 && safetensors_find(&s, "old"), "the old file is gone");
    safetensors_close(&s);
    test_dies(write_too_much, "/nowhere/at/all", "/nowhere/at/all: cannot be written: No such file or directory", 1);
    free(temporary);
}

// Any byte of a good file changed: either refused or read, never a crash (the sanitizers watch the bounds).
static void single_byte_changes(void) {
    const char* header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[8,10]}}";
    size_t n = strlen(header) + 18;
    int accepted = 0, refused_count = 0;
    for (size_t at = 0; at < n; at++)
        for (int value = 0; value < 256; value++) {
            uint8_t* bytes = calloc(n, 1);   // exactly as long as the file, so that one byte too far is seen
            bytes[0] = (uint8_t)strlen(header);
            memcpy(bytes + 8, header, strlen(header));
            bytes[at] = (uint8_t)value;
            Safetensors s;
            char* wrong = safetensors_parse(&s, bytes, n);
            *(wrong ? &refused_count : &accepted) += 1;
            safetensors_close(&s);
            free(wrong);
            free(bytes);
        }
    CHECK(accepted > 1000 && refused_count > 1000, "%d accepted, %d refused", accepted, refused_count);
}

int main(void) {
    if (!mkdtemp(directory)) { perror(directory); return 1; }
    snprintf(path, sizeof path, "%s/x.safetensors", directory);
    round_trip();
    half_precision();
    damaged_files();
    unusable_tensors();
    failing_writes();
    single_byte_changes();
    unlink(path);
    rmdir(directory);
    TEST_END();
}
