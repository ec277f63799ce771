// One way to stop: a line on stderr that says what is wrong, where, and the way out.
#ifndef PREBR_TROUBLE_H
#define PREBR_TROUBLE_H

#include <stddef.h>

#ifdef __cplusplus
#define NORETURN [[noreturn]]
#ifndef C_BEGIN
#define C_BEGIN extern "C" {
#define C_END }
#endif
#else
#define NORETURN _Noreturn
#ifndef C_BEGIN
#define C_BEGIN
#define C_END
#endif
#endif

C_BEGIN

// Prints "train_vit: <message>" (the program's own name) and exits: 1 for trouble, 2 for wrong usage.
NORETURN void trouble(const char* format, ...) __attribute__((format(printf, 1, 2)));
NORETURN void usage_error(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The same line without stopping.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Memory or trouble. allocate() zeroes. All sizes are checked for overflow.
void* allocate(size_t count, size_t size);
char* format_string(const char* format, ...) __attribute__((format(printf, 1, 2)));   // a fresh string; free() it
char* full_path(const char* path);   // from the root on and without links, where it leads somewhere, else as it is; fresh

C_END

#endif
