// Runs the threads of a block as fibres, deterministically: a warp goes on until all its lanes wait at a barrier, then the next; in ascending order
// in one block and in descending order in the next, so that what would be a race on a GPU gives different results here. Blocks run one after
// the other, forwards in one launch and backwards in the next.
//
// Ends the program with a message where a kernel breaks a rule: threads at different barriers, a barrier that some thread never
// reaches, lanes of a warp at different shuffles, a mask that does not name the calling lane, a launch beyond a device's limits.
#include "cuda_runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <map>
#include <string>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_cpu {

enum { MOST_THREADS = 1024, STACK = 1 << 16, PAGE = 4096 };

typedef enum { READY, WAITS_BLOCK, WAITS_WARP, DONE } State;

struct Fibre {
    void* sp;        // where it was left; NULL: not begun
    char* stack;
    State state;
    uint3 index;
    Site at;
};

// Lanes of a warp that wait for each other, and then fetch what they came for. Parts of a warp that went their own ways each have one.
struct Meeting {
    uint64_t value[32];
    unsigned mask, arrived, unread, votes;
    Site at;
};

static Fibre fibre[MOST_THREADS];
static Meeting meeting[MOST_THREADS / 32][32];
static std::vector<char*> free_stacks;
static void* scheduler_sp;
static int now, threads, at_barrier, gone;
static Site barrier_at;
static const char* kernel_name;
static void (*kernel_body)(void*);
static void* kernel_closure;
static char* shared_memory;

[[noreturn]] static void broken(const char* format, ...) __attribute__((format(printf, 1, 2)));
static void broken(const char* format, ...) {
    fflush(stdout);
    fprintf(stderr, "cuda_on_cpu: %s, block (%u, %u, %u): ", kernel_name, blockIdx.x, blockIdx.y, blockIdx.z);
    va_list a;
    va_start(a, format);
    vfprintf(stderr, format, a);
    va_end(a);
    fprintf(stderr, "\n");
    _exit(1);
}

// void fibre_switch(void** save, void* load): leaves the registers that a call must preserve on this stack and goes on with another.
#if defined(__x86_64__)
extern "C" void fibre_switch(void** save, void* load);
asm(".text\n.globl fibre_switch\n.type fibre_switch,@function\nfibre_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size fibre_switch,.-fibre_switch\n");

static void fibre_main(void);

// A stack on which fibre_switch "returns" into fibre_main, aligned as at a function's entry.
static void* fresh_stack(char* stack, int number) {
    void** top = (void**)(stack + STACK - 64 - number % 48 * 64);   // staggered: equal offsets would share cache sets
    top -= 2;
    top[0] = (void*)fibre_main;
    top[1] = NULL;
    for (int i = 0; i < 6; i++) *--top = NULL;
    return top;
}
#else
#include <ucontext.h>
static void fibre_main(void);
static std::map<void*, ucontext_t*> contexts;
static void fibre_switch(void** save, void* load) {
    ucontext_t* here = new ucontext_t;
    ucontext_t* there = (ucontext_t*)load;
    *save = here;
    swapcontext(here, there);
    delete here;
}
static void* fresh_stack(char* stack, int number) {
    ucontext_t* c = new ucontext_t;
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = STACK;
    c->uc_link = NULL;
    makecontext(c, fibre_main, 0);
    return c;
}
#endif

static char* new_stack(void) {
    char* p = (char*)mmap(NULL, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    mprotect(p, PAGE, PROT_NONE);
    return p + PAGE;
}

static void leave(void) { fibre_switch(&fibre[now].sp, scheduler_sp); }

static void fibre_main(void) {
    kernel_body(kernel_closure);
    fibre[now].state = DONE;
    leave();
    abort();
}

static void resume(int i) {
    Fibre* f = &fibre[i];
    if (!f->sp) {
        if (free_stacks.empty()) free_stacks.push_back(new_stack());
        f->stack = free_stacks.back();
        free_stacks.pop_back();
        f->sp = fresh_stack(f->stack, i);
    }
    now = i;
    threadIdx = f->index;
    fibre_switch(&scheduler_sp, f->sp);
    if (f->state == DONE) {
        free_stacks.push_back(f->stack);
        gone++;
    }
}

static bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)) && (a.what == b.what || !strcmp(a.what, b.what)); }

void barrier(Site at) {
    if (at_barrier == 0) barrier_at = at;
    else if (!same(at, barrier_at))
        broken("thread %d is at %s:%d while others wait at the barrier %s:%d", now, at.file, at.line, barrier_at.file, barrier_at.line);
    if (++at_barrier == threads) {
        at_barrier = 0;
        for (int i = 0; i < threads; i++) fibre[i].state = READY;
        return;
    }
    fibre[now].state = WAITS_BLOCK;
    fibre[now].at = at;
    leave();
}

// The meeting of these lanes that has begun, or a free one.
static Meeting* meeting_of(unsigned mask) {
    Meeting *all = meeting[now / 32], *free_one = NULL;
    for (int i = 0; i < 32; i++) {
        if (all[i].arrived && all[i].mask == mask) return &all[i];
        if (!all[i].arrived && !all[i].unread && !free_one) free_one = &all[i];
    }
    return free_one;
}

Met collective(unsigned mask, uint64_t value, int from, Site at) {
    int lane = now % 32, first = now / 32 * 32;
    int lanes = threads - first < 32 ? threads - first : 32;
    unsigned present = lanes < 32 ? (1u << lanes) - 1 : ~0u;
    if (!(mask >> lane & 1)) broken("%s:%d: lane %d is not in its own mask %08x", at.file, at.line, lane, mask);
    if (mask & ~present && mask != ~0u) broken("%s:%d: mask %08x names lanes that do not exist", at.file, at.line, mask);
    mask &= present;
    Meeting* m = meeting_of(mask);
    if (m->arrived == 0) {
        m->mask = mask;
        m->at = at;
        m->votes = 0;
    } else if (!same(m->at, at)) {
        broken("lanes of one warp meet at %s %s:%d and %s %s:%d (mask %08x)", at.what, at.file, at.line, m->at.what, m->at.file, m->at.line, mask);
    }
    m->value[lane] = value;
    m->votes |= (unsigned)(value != 0) << lane;
    m->arrived |= 1u << lane;
    if (m->arrived == mask) {
        m->arrived = 0;
        m->unread = mask;
        for (int i = 0; i < lanes; i++)
            if (mask >> i & 1) fibre[first + i].state = READY;
    } else {
        fibre[now].state = WAITS_WARP;
        fibre[now].at = at;
        leave();
    }
    m->unread &= ~(1u << lane);
    return {m->value[from & 31], m->votes};
}

void* dynamic_shared(void) { return shared_memory; }

unsigned long blocks_begun;

void refuse(const char* what) { broken("%s", what); }

[[noreturn]] static void stuck(void) {
    for (int i = 0; i < threads; i++)
        if (fibre[i].state == WAITS_BLOCK || fibre[i].state == WAITS_WARP)
            broken("thread %d waits for ever at %s %s:%d (%d of %d threads are at a barrier, %d have left the kernel)", i, fibre[i].at.what, fibre[i].at.file,
                   fibre[i].at.line, at_barrier, threads, gone);
    abort();
}

static void run_block(bool forwards) {
    blocks_begun++;
    for (int i = 0; i < threads; i++) {
        fibre[i].sp = NULL;
        fibre[i].state = READY;
    }
    at_barrier = gone = 0;
    int warps = (threads + 31) / 32;
    while (gone < threads) {
        bool moved = false;
        for (int k = 0; k < warps; k++) {
            int first = (forwards ? k : warps - 1 - k) * 32, lanes = threads - first < 32 ? threads - first : 32;
            for (bool again = true; again;) {
                again = false;
                for (int j = 0; j < lanes; j++) {
                    int i = first + (forwards ? j : lanes - 1 - j);
                    if (fibre[i].state != READY) continue;
                    again = moved = true;
                    resume(i);
                }
            }
        }
        if (!moved) stuck();
    }
}

// Which kernels ran, and how often; written to the file $CUDA_ON_CPU_COVERAGE when the program ends.
struct Coverage {
    std::map<std::string, long> launches;
    ~Coverage() {
        const char* path = getenv("CUDA_ON_CPU_COVERAGE");
        FILE* f = path ? fopen(path, "w") : NULL;
        if (!f) return;
        for (auto& l : launches) fprintf(f, "%ld %s\n", l.second, l.first.c_str());
        fclose(f);
    }
};
static Coverage coverage;

void launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared, void (*body)(void*), void* closure) {
    static unsigned launches;
    kernel_name = name;
    blockIdx = {0, 0, 0};
    size_t all = (size_t)block.x * block.y * block.z;
    if (all < 1 || all > MOST_THREADS || block.z > 64) broken("a block of %u x %u x %u threads", block.x, block.y, block.z);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) broken("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    if (shared > dynamic_shared_limit(kernel)) broken("%zu bytes of dynamic shared memory", shared);
    coverage.launches[name]++;
    threads = (int)all;
    blockDim = block;
    gridDim = grid;
    kernel_body = body;
    kernel_closure = closure;
    if (shared % 16) shared += 16 - shared % 16;
    shared_memory = (char*)aligned_alloc(16, shared ? shared : 16);
    memory_show();
    for (int i = 0; i < threads; i++) fibre[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    size_t blocks = (size_t)grid.x * grid.y * grid.z;
    bool up = launches++ % 2 == 0;
    for (size_t k = 0; k < blocks; k++) {
        size_t b = up ? k : blocks - 1 - k;
        blockIdx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / ((size_t)grid.x * grid.y))};
        memset(shared_memory, 0xff, shared);   // NaN: a new block finds nothing
        run_block(k % 2 == 0);
    }
    memory_hide();
    free(shared_memory);
}

}
