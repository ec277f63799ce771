// What every C test uses: checks that name the place, random data, comparison of arrays, skipping, and functions that must end the
// program with a certain line.
#ifndef PREBR_TEST_H
#define PREBR_TEST_H

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int test_failures = 0;

#define CHECK(condition, ...) do { \
        if (!(condition)) { \
            printf("%s:%d: failed: %s: ", __FILE__, __LINE__, #condition); \
            printf(__VA_ARGS__); \
            printf("\n"); \
            if (++test_failures > 20) { printf("too many failures\n"); exit(1); } \
        } \
    } while (0)

// The exit status of a test's main: 0 passed, 1 failed. 77 means skipped (ctest knows).
#define TEST_END() do { printf(test_failures ? "FAILED (%d)\n" : "ok\n", test_failures); return test_failures != 0; } while (0)
#define TEST_SKIP(...) do { printf("skipped: "); printf(__VA_ARGS__); printf("\n"); exit(77); } while (0)

// Uniform in [-1, 1), a small generator of the tests' own (xorshift64*).
static uint64_t test_state = 88172645463325252ull;
static inline double test_random(void) {
    test_state ^= test_state >> 12;
    test_state ^= test_state << 25;
    test_state ^= test_state >> 27;
    return (double)((test_state * 2685821657736338717ull) >> 11) * (2.0 / 9007199254740992.0) - 1.0;
}
static inline int test_int(int least, int most) { return least + (int)((test_random() * 0.5 + 0.5) * (most - least + 1)); }

static inline float* test_array(size_t n) {
    float* a = (float*)malloc((n ? n : 1) * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = (float)test_random();
    return a;
}

// Largest |a - b| / (1 + |b|) over n elements; NaN in a counts as infinite.
static inline double test_difference(const float* a, const double* b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]) / (1 + fabs(b[i]));
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

#ifdef __cplusplus
extern "C"
#endif
void __lsan_disable(void) __attribute__((weak));   // there under the address sanitizer only

// Calls function(argument) in a child process, which must end with that exit code after exactly one line on stderr that contains
// `expected`. The child has one thread (libgomp's team does not survive a fork), 20 seconds, and does not look for leaks.
static inline void test_dies(void (*function)(const void*), const void* argument, const char* expected, int code) {
    int ends[2], status = 0;
    char line[4096];
    size_t length = 0;
    ssize_t got;
    fflush(NULL);
    if (pipe(ends)) { perror("pipe"); exit(1); }
    pid_t child = fork();
    if (child == 0) {
        if (__lsan_disable) __lsan_disable();
        alarm(20);
        omp_set_num_threads(1);
        dup2(ends[1], 2);
        function(argument);
        _exit(0);
    }
    close(ends[1]);
    while (length < sizeof line - 1 && (got = read(ends[0], line + length, sizeof line - 1 - length)) > 0) length += (size_t)got;
    line[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code, "expected exit code %d and \"%s\", got status 0x%x and \"%s\"",
          code, expected, status, line);
    CHECK(strstr(line, expected), "\"%s\" is not in \"%s\"", expected, line);
    CHECK(length && strchr(line, '\n') == line + length - 1, "not exactly one line: \"%s\"", line);
}

#endif
