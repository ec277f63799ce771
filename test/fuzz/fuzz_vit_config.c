// Arbitrary bytes as a ViT directory: config.json, a zero byte, model.safetensors. Refused with trouble, or a config within its bounds.
// trouble() jumps back instead of ending the program, and leaves what it held (and mapped) behind: no leak detection, limited runs.
//
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. test/fuzz/fuzz_vit_config.c data/vit_config.c data/vit_names.c data/hub.c data/json.c \
//         data/safetensors.c -lcjson -lm
//   ./a.out -rss_limit_mb=0 -max_len=4096 -runs=50000
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "data/vit_files.h"

static jmp_buf back;

const char* __asan_default_options(void) { return "detect_leaks=0"; }

void trouble(const char* format, ...) {
    static char line[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);   // formatted all the same: its arguments must be readable
    va_end(arguments);
    longjmp(back, 1);
}

void warn(const char* format, ...) { (void)format; }

void* allocate(size_t count, size_t size) {
    void* memory = calloc(count ? count : 1, size);
    return memory ? memory : (trouble("out of memory"), NULL);
}

char* format_string(const char* format, ...) {
    char* text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) abort();
    va_end(arguments);
    return text;
}

static void write_file(const char* dir, const char* name, const uint8_t* bytes, size_t n) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE* f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) < n || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
    static char dir[] = "/dev/shm/prebr_fuzz_XXXXXX";
    if (dir[sizeof dir - 2] == 'X' && !mkdtemp(dir)) abort();
    const uint8_t* end = n ? memchr(bytes, 0, n) : NULL;
    size_t config = end ? (size_t)(end - bytes) : n;
    write_file(dir, "config.json", bytes, config);
    write_file(dir, "model.safetensors", end ? end + 1 : bytes, end ? n - config - 1 : 0);
    if (setjmp(back)) return 0;
    VitConfig c = vit_config_read(dir, 1);
    if (c.width < 1 || c.heads < 1 || c.width % c.heads || c.layers < 1 || c.mlp < 1 || c.patch < 1 || c.image_size < c.patch ||
        c.image_size % c.patch || c.channels != 3 || c.classes < 0 || !(c.norm_eps > 0)) abort();
    for (int i = 0; c.class_name && i < c.classes; i++) free(c.class_name[i]);
    free(c.class_name);
    return 0;
}
