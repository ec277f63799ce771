// The CPU as a device: the system's pages, clock and threads.
#define _GNU_SOURCE
#include "device.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void device_prepare(char** argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "3000", 1);   // about 10 microseconds
    execv("/proc/self/exe", argv);         // where that fails, all goes on with the long wait
}

const char* device_name(void) {
    static char name[96];
    const dnnl_version_t* v = dnnl_version();
    snprintf(name, sizeof name, "cpu, %d threads, oneDNN %d.%d.%d", omp_get_max_threads(), v->major, v->minor, v->patch);
    return name;
}

int device_threads(int n) {
    int processors = omp_get_num_procs(), most = processors > 4 ? 4 * processors : 16;   // beyond that threads only wait for one another
    if (n >= 1) omp_set_num_threads(n < most ? n : most);
    return omp_get_max_threads();
}

// Anonymous pages: zero without being touched, so what is never used costs no memory. Large ones save TLB misses in the
// strided reads of GEMM; a system without them takes the advice for nothing.
void* device_alloc(size_t bytes) {
    void* p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void device_free(void* p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

// The number that follows `key` at the start of a line of a file ("" = the file's first word). 0 where there is none.
static size_t number_in(const char* path, const char* key) {
    FILE* f = fopen(path, "r");
    if (!f) return 0;
    char line[256];
    size_t value = 0;
    while (!value && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) sscanf(line + strlen(key), "%zu", &value);
    fclose(f);
    return value;
}

// What is left of one memory limit of the control group: its page cache counts as used but can be dropped.
static size_t left_of(size_t limit, size_t used, size_t cache) {
    used -= cache < used ? cache : used;
    return used < limit ? limit - used : 1;
}

// MemAvailable, or what the process's control group leaves where that is less. A container sees its own group as the root
// of the tree; elsewhere /proc/self/cgroup names the place, and each group above it limits too.
size_t device_memory_available(void) {
    size_t available = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    if (!available) return 0;

    char group[1024] = "", path[1200], line[1024];
    FILE* f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "0::/", 4)) strcpy(group, line + 3);
    }
    if (f) fclose(f);
    for (;;) {  // version 2, from the process's group up to the root; "max" reads as 0
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        size_t limit = number_in(path, "");
        if (limit) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
            size_t used = number_in(path, "");
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", group);
            size_t left = left_of(limit, used, number_in(path, "inactive_file "));
            if (left < available) available = left;
        }
        char* slash = strrchr(group, '/');
        if (!slash) break;
        *slash = 0;
    }
    size_t limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");  // version 1; "no limit" is a huge number
    if (limit) {
        size_t used = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", "");
        size_t left = left_of(limit, used, number_in("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "));
        if (left < available) available = left;
    }
    return available;
}

void device_upload(void* device, const void* host, size_t bytes) { device_copy(device, host, bytes); }
void device_download(void* host, const void* device, size_t bytes) { device_copy(host, device, bytes); }

// Copies and fills go by blocks of 1 MiB, large enough to stream and small enough to share out.
enum { BLOCK = 1 << 20 };

static size_t block_size(size_t bytes, size_t block) {
    size_t left = bytes - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

void device_copy(void* to, const void* from, size_t bytes) {
    size_t blocks = (bytes + BLOCK - 1) / BLOCK;
    #pragma omp parallel for if (blocks > 1)
    for (size_t i = 0; i < blocks; i++)
        memcpy((char*)to + i * BLOCK, (const char*)from + i * BLOCK, block_size(bytes, i));
}

void device_zero(void* p, size_t bytes) {
    size_t blocks = (bytes + BLOCK - 1) / BLOCK;
    #pragma omp parallel for if (blocks > 1)
    for (size_t i = 0; i < blocks; i++)
        memset((char*)p + i * BLOCK, 0, block_size(bytes, i));
}

int device_uploads_ahead(void) { return 0; }
void device_input_read(void) {}
void device_upload_ahead(void* device, const void* host, size_t bytes) {}
void device_upload_join(void) {}

void device_download_floats(float* host, const floatx* device, size_t n) { memcpy(host, device, n * sizeof *host); }
void device_round(floatx* copy, const float* w, size_t n) { memcpy(copy, w, n * sizeof *copy); }
float* host_view_open(float* p, size_t n) { return p; }
void host_view_close(float* view, float* p, size_t n, int write) {}

// An op has finished when its call returns.
void device_sync(void) {}

double device_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int timers_on, part_now = -1;
static double part_began, part_seconds[TIME_PARTS];

void timer_enable(int on) {
    timer_stop();
    timers_on = on;
}

void timer_stop(void) {
    if (part_now < 0) return;
    part_seconds[part_now] += device_seconds() - part_began;
    part_now = -1;
}

void timer_start(int part) {
    if (!timers_on) return;
    double now = device_seconds();
    if (part_now >= 0) part_seconds[part_now] += now - part_began;
    part_now = part;
    part_began = now;
}

double timer_seconds(int part) { return part_seconds[part]; }

const char* timer_part_name(int part) {
    static const char* names[TIME_PARTS] = {"gemm", "attention", "norm", "activation", "shear", "optimizer", "data", "other"};
    return names[part];
}

// A part that is running goes on from here.
void timer_reset(void) {
    memset(part_seconds, 0, sizeof part_seconds);
    part_began = device_seconds();
}
