// How the program stops, and the two allocations everybody needs.
#define _GNU_SOURCE
#include "trouble.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// A message may quote names out of a damaged file: whatever would break the line or move the cursor becomes '?'.
static void say(const char* format, va_list arguments) {
    char* line;
    if (vasprintf(&line, format, arguments) < 0) line = NULL;
    for (char* c = line; c && *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, line ? line : "out of memory");
    free(line);
}

void trouble(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    exit(1);
}

void usage_error(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    exit(2);
}

void warn(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void* allocate(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX)
        trouble("%zu items of %zu bytes are more than a program can address; something asks for far too much", count, size);
    void* memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        trouble("out of memory: %.1f MiB more were needed; close other programs or use a smaller batch or model",
                bytes / 1048576.0);
    return memory;
}

char* format_string(const char* format, ...) {
    char* text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) trouble("out of memory for a line of text; close other programs");
    return text;
}

char* full_path(const char* path) {
    char* full = realpath(path, NULL);
    return full ? full : format_string("%s", path);
}
