// The run directory: the log on disk and on the console, and how files get their final names.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE   // nftw
#endif
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int exists(const char* path) {
    struct stat s;
    return lstat(path, &s) == 0;
}

// ---- files and directories ----

// Makes the renames within a file's directory last. path: the file.
static void sync_parent(const char* path) {
    const char* slash = strrchr(path, '/');
    char* parent = slash ? format_string("%.*s", (int)(slash == path ? 1 : slash - path), path) : format_string(".");
    int fd = open(parent, O_RDONLY | O_DIRECTORY);
    // EINVAL: a file system that has no such thing.
    if (fd < 0 || (fsync(fd) && errno != EINVAL)) trouble("%s: %s", parent, strerror(errno));
    close(fd);
    free(parent);
}

// A path without the slashes at its end, so that suffixes can be added. Fresh.
static char* trimmed(const char* path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return format_string("%.*s", (int)n, path);
}

// Where what is written for `path` goes, and which name it gets at last: that of the file behind a symbolic link. A terminal, a pipe, /dev/null is written to
// as it is, for there is nothing that a name could be given to afterwards.
typedef struct { int stream; char *target, *written; } Place;

static Place place_of(const char* path) {
    struct stat s;
    Place p = {stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode), full_path(path), NULL};
    p.written = format_string(p.stream ? "%s" : "%s.tmp", p.stream ? path : p.target);
    return p;
}

static void place_free(Place* p) {
    free(p->target);
    free(p->written);
}

FILE* file_create(const char* path) {
    Place p = place_of(path);
    FILE* f = fopen(p.written, p.stream ? "wb" : "w+b");
    if (!f) trouble("%s: %s", p.written, strerror(errno));
    place_free(&p);
    return f;
}

void file_finish(FILE* f, const char* path) {
    Place p = place_of(path);
    errno = 0;
    int failed = fflush(f) != 0 || ferror(f) || (!p.stream && fsync(fileno(f)) != 0);
    int cause = errno;
    failed |= fclose(f) != 0;
    if (failed) {
        if (!p.stream) unlink(p.written);
        trouble("%s: not written: %s", path, cause ? strerror(cause) : "an earlier write failed; is the disk full?");
    }
    if (!p.stream) {
        if (rename(p.written, p.target)) trouble("%s: %s", path, strerror(errno));
        sync_parent(p.target);
    }
    place_free(&p);
}

void file_abandon(FILE* f, const char* path) {
    Place p = place_of(path);
    fclose(f);
    if (!p.stream) unlink(p.written);
    place_free(&p);
}

void directory_make(const char* path) {
    char* part = trimmed(path);
    for (char* p = part + 1;; p++) {
        if (*p != '/' && *p != 0) continue;
        char end = *p;
        *p = 0;
        struct stat s;
        if (mkdir(part, 0777) && errno != EEXIST) trouble("%s: cannot make this directory: %s", part, strerror(errno));
        if (stat(part, &s)) trouble("%s: %s", part, strerror(errno));
        if (!S_ISDIR(s.st_mode)) trouble("%s: is a file, not a directory", part);
        *p = end;
        if (end == 0) break;
    }
    free(part);
}

static int remove_entry(const char* path, const struct stat* s, int type, struct FTW* where) { return remove(path) && errno != ENOENT; }

static void remove_tree(const char* path) {
    if (exists(path) && nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT) trouble("%s: cannot remove: %s", path, strerror(errno));
}

void directory_remove(const char* path) {
    char* name = trimmed(path);
    remove_tree(name);
    free(name);
}

void directory_fresh(const char* path) {
    directory_remove(path);
    directory_make(path);
}

// The states that a crash can leave where names cannot be exchanged, in order of time (to, to.old):  (old, -)  (-, old)  (new, old)  (new, -).
// The second goes back to the first, the third on to the fourth.
void directory_recover(const char* to) {
    char* name = trimmed(to);
    char* old = format_string("%s.old", name);
    if (exists(old)) {
        if (exists(name)) remove_tree(old);
        else if (rename(old, name)) trouble("%s: %s", old, strerror(errno));
        sync_parent(name);
    }
    free(old);
    free(name);
}

void directory_replace(const char* from, const char* to) {
    directory_recover(to);
    char *new = trimmed(from), *name = trimmed(to);
    char* old = format_string("%s.old", name);
    char* inside = format_string("%s/.", new);
    sync_parent(inside);   // the new directory's own entries
    if (renameat2(AT_FDCWD, new, AT_FDCWD, name, RENAME_EXCHANGE) == 0) {   // whoever reads meanwhile finds the one or the other
        sync_parent(name);
        remove_tree(new);
    } else {   // there is none yet, or the file system cannot
        if (exists(name) && rename(name, old)) trouble("%s: %s", name, strerror(errno));
        if (rename(new, name)) trouble("%s: cannot become %s: %s", new, name, strerror(errno));
        sync_parent(name);
        remove_tree(old);
    }
    free(inside);
    free(old);
    free(name);
    free(new);
}

void directory_lock(const char* path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) trouble("%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) trouble("%s: another process is training in it", path);
}

// ---- a run's own directory ----

static int same_place(const char* a, const char* b) {
    char *x = full_path(a), *y = full_path(b);
    int same = !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

static const char* const models[] = {"model", "model-best"};

void run_claim(const char* out, const char* model, int resume, int overwrite) {
    if (!*out) trouble("--out names no directory");
    if (!resume) directory_make(out);
    directory_lock(out);
    if (resume) return;
    char *log = format_string("%s/log.csv", out), *state = format_string("%s/state/state.safetensors", out);
    if (!overwrite && exists(log))
        trouble("%s: a run is already there; %sreplace it (--overwrite) or choose another directory", log, exists(state) ? "go on with it (--resume), " : "");
    for (int i = 0; i < 2; i++) {
        char* own = format_string("%s/%s", out, models[i]);
        if (same_place(own, model)) trouble("%s: the run starts from this model and would replace it; choose another --out", own);
        free(own);
    }
    free(log);
    free(state);
}

void run_clear(const char* out) {
    static const char* const ends[] = {"", ".tmp", ".old"};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++) {
            char* path = format_string("%s/%s%s", out, models[i], ends[k]);
            directory_remove(path);
            free(path);
        }
    char* state = format_string("%s/state", out);
    directory_fresh(state);
    free(state);
}

// ---- the log ----

struct Log {
    FILE* f;          // NULL: console only
    char* path;
    int terminal;     // stdout is one: the progress line redraws itself
    int drawn;        // a progress line stands unfinished on it
    int every;
    int64_t total, first;   // steps of the whole run; steps done before this process
    double start;           // seconds
    double accuracy;        // the last one measured, or NAN
};

static const char header[] = "step,epoch,loss,lr,grad_norm,accuracy,ms,samples_per_s,kept_bytes,peak_bytes\n";

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Rewrites log.csv without the lines after `step`: steps that were taken but not saved, and the half line of a crash.
static void log_truncate(const char* path, int64_t step) {
    FILE* old = fopen(path, "r");
    if (!old && errno != ENOENT) trouble("%s: %s", path, strerror(errno));
    FILE* new = file_create(path);
    fputs(header, new);
    char* line = NULL;
    size_t room = 0;
    ssize_t length;
    int64_t last = 0;
    if (old && getline(&line, &room, old) > 0 && strcmp(line, header)) trouble("%s: its first line is not that of a log", path);
    while (old && (length = getline(&line, &room, old)) > 0 && line[length - 1] == '\n') {
        char* end;
        int64_t number = strtoll(line, &end, 10);
        if (end == line || *end != ',') trouble("%s: this line does not begin with a step: %s", path, line);
        if (number > step) break;
        fputs(line, new);
        last = number;
    }
    free(line);
    if (old) fclose(old);
    file_finish(new, path);
    if (last != step) warn("%s: ends at step %lld, the run goes on after step %lld", path, (long long)last, (long long)step);
}

Log* log_open(const char* dir, int64_t step, int64_t total, int every, int overwrite) {
    Log* l = allocate(1, sizeof *l);
    l->terminal = isatty(STDOUT_FILENO);
    l->every = every > 0 ? every : 1;
    l->total = total;
    l->first = step;
    l->start = seconds();
    l->accuracy = NAN;
    if (!dir) return l;
    l->path = format_string("%s/log.csv", dir);
    if (step > 0) {
        log_truncate(l->path, step);
        l->f = fopen(l->path, "a");
    } else {
        if (!overwrite && exists(l->path))
            trouble("%s: a run is already there; resume it, overwrite it or choose another directory", l->path);
        l->f = fopen(l->path, "w");
        if (l->f) fputs(header, l->f);
    }
    if (!l->f || fflush(l->f)) trouble("%s: %s", l->path, strerror(errno));
    return l;
}

static void write_line(Log* l, const LogLine* s) {
    char accuracy[32] = "";
    if (!isnan(s->accuracy)) snprintf(accuracy, sizeof accuracy, "%.9g", s->accuracy);
    fprintf(l->f, "%lld,%.9g,%.9g,%.9g,%.9g,%s,%.9g,%.9g,%zu,%zu\n", (long long)s->step, s->epoch, s->loss, s->lr, s->grad_norm,
            accuracy, s->ms, s->samples_per_s, s->kept_bytes, s->peak_bytes);
    if (fflush(l->f) || ferror(l->f)) trouble("%s: %s", l->path, strerror(errno));
}

// "3:05" or "2:10:00".
static void duration(char* text, size_t size, double s) {
    long long t = (long long)(s + 0.5);
    if (t >= 3600) snprintf(text, size, "%lld:%02lld:%02lld", t / 3600, t / 60 % 60, t % 60);
    else snprintf(text, size, "%lld:%02lld", t / 60, t % 60);
}

// Of the terminal; 80 where it does not say.
static int columns(void) {
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col : 80;
}

static void erase(Log* l) {
    if (l->drawn) printf("\r\033[K");
    l->drawn = 0;
}

void log_step(Log* l, const LogLine* s) {
    if (l->f) write_line(l, s);
    int evaluated = !isnan(s->accuracy);
    if (evaluated) l->accuracy = s->accuracy;
    if (!l->terminal && !evaluated && s->step % l->every && s->step != l->total) return;
    char memory[32];
    erase(l);
    char text[256], accuracy[32] = "", eta[32] = "";
    double per_step = (seconds() - l->start) / (double)(s->step > l->first ? s->step - l->first : 1);
    if (!isnan(l->accuracy)) snprintf(accuracy, sizeof accuracy, "  accuracy %.2f%%", 100 * l->accuracy);
    if (s->step < l->total) duration(eta, sizeof eta, per_step * (double)(l->total - s->step));
    snprintf(text, sizeof text, "step %lld/%lld  epoch %.2f  loss %.4f%s  %.4g/s  %s%s%s", (long long)s->step, (long long)l->total, s->epoch, s->loss, accuracy,
             s->samples_per_s, human_bytes(s->peak_bytes, memory), *eta ? "  ETA " : "", eta);
    printf("%.*s", l->terminal && !evaluated ? columns() - 1 : (int)sizeof text, text);   // what wraps cannot be erased
    // An evaluation's line stays on the terminal, the others make way for the next.
    l->drawn = l->terminal && !evaluated;
    if (!l->drawn) printf("\n");
    fflush(stdout);
}

void log_message(Log* l, const char* format, ...) {
    erase(l);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

void log_close(Log* l) {
    if (!l) return;
    if (l->drawn) printf("\n");
    fflush(stdout);
    if (l->f && (fsync(fileno(l->f)) | fclose(l->f))) trouble("%s: %s", l->path, strerror(errno));
    free(l->path);
    free(l);
}

// ---- signals and memory ----

static _Atomic int seen;

// Signals wait for this thread: no handler ever runs on a thread that computes. oneDNN's generated code keeps data in the stack pointer, and a
// handler's frame, which the kernel lays where that points, would land in somebody's memory.
static void* await_signals(void* set) {
    for (;;) {
        int number;
        if (sigwait(set, &number)) continue;
        if (seen) _exit(128 + number);
        seen = number;
        static const char said[] = "\nstopping as soon as what is done can be saved; once more to end at once\n";
        if (write(STDERR_FILENO, said, sizeof said - 1)) continue;
    }
    return NULL;
}

void signals_watch(void) {
    static sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, await_signals, &set);
    if (error) trouble("cannot start the thread that waits for signals: %s", strerror(error));
    pthread_detach(thread);
    signal(SIGXFSZ, SIG_IGN);   // a file that may not grow is then an error of the write, like a full disk
}

int signal_seen(void) { return seen; }

uint64_t hash_bytes(uint64_t hash, const void* bytes, size_t n) {
    const unsigned char* p = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

size_t process_peak_bytes(void) {
    FILE* f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

const char* human_bytes(size_t bytes, char buffer[32]) {
    static const char* unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int u = 0;
    for (; v >= 999.5 && u < 6; u++) v /= 1024;
    if (u == 0) snprintf(buffer, 32, "%zu B", bytes);
    else snprintf(buffer, 32, "%.*f %s", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, unit[u]);
    return buffer;
}
