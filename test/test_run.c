// The run directory: log lines to the byte, resuming, files and directories over crashes, signals, sizes.
#include "data/run.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char base[] = "/tmp/prebr_test_run_XXXXXX";

static const char* at(const char* name) {
    static char paths[8][256];
    static int next;
    char* path = paths[next++ % 8];
    snprintf(path, 256, "%s/%s", base, name);
    return path;
}

static const char* contents(const char* path) {
    static char texts[4][4096];
    static int next;
    char* text = texts[next++ % 4];
    FILE* f = fopen(path, "r");
    if (!f) return "(absent)";
    text[fread(text, 1, 4095, f)] = 0;
    fclose(f);
    return text;
}

static void put(const char* path, const char* text) {
    FILE* f = file_create(path);
    fputs(text, f);
    file_finish(f, path);
}

static int is_there(const char* path) { return access(path, F_OK) == 0; }

// ---- the log ----

static LogLine line_of(int64_t step) {
    LogLine s = {step, 0.25 * (double)step, 1.0 / (double)step, 3e-4, 0.1, step % 2 ? NAN : 0.5 + 0.01 * (double)step, 12.5, 640,
                 1000 + (size_t)step, 123456789};
    return s;
}

// Runs steps from .. to with the console going to a file, whose text it returns.
static const char* steps(const char* dir, int64_t from, int64_t to, int every, int overwrite) {
    fflush(stdout);
    int console = dup(1);
    if (!freopen(at("console"), "w", stdout)) exit(1);
    Log* l = log_open(dir, from - 1, 8, every, overwrite);
    for (int64_t i = from; i <= to; i++) {
        LogLine s = line_of(i);
        log_step(l, &s);
        if (i == 3) log_message(l, "at step %d", 3);
    }
    log_close(l);
    fflush(stdout);
    dup2(console, 1);
    close(console);
    return contents(at("console"));
}

static void again(const void* unused) { log_open(base, 0, 8, 1, 0); }
static void resume_log(const void* unused) { log_open(base, 2, 8, 1, 0); }

static void test_log(void) {
    const char* head = "step,epoch,loss,lr,grad_norm,accuracy,ms,samples_per_s,kept_bytes,peak_bytes\n";
    const char* lines[4] = {"1,0.25,1,0.0003,0.1,,12.5,640,1001,123456789\n", "2,0.5,0.5,0.0003,0.1,0.52,12.5,640,1002,123456789\n",
                            "3,0.75,0.333333333,0.0003,0.1,,12.5,640,1003,123456789\n",
                            "4,1,0.25,0.0003,0.1,0.54,12.5,640,1004,123456789\n"};
    char all[2048];
    snprintf(all, sizeof all, "%s%s%s%s%s", head, lines[0], lines[1], lines[2], lines[3]);
    const char* console = steps(base, 1, 4, 3, 0);
    CHECK(!strcmp(contents(at("log.csv")), all), "%s", contents(at("log.csv")));
    // In a pipe: evaluated steps and every third, no control characters.
    CHECK(!strstr(console, "step 1/8") && strstr(console, "step 2/8  epoch 0.50  loss 0.5000  accuracy 52.00%  640/s  118 MiB  ETA 0:00\n"),
          "%s", console);
    CHECK(strstr(console, "step 3/8  epoch 0.75  loss 0.3333  accuracy 52.00%") && strstr(console, "at step 3\n"), "%s", console);
    CHECK(!strpbrk(console, "\r\033"), "%s", console);
    test_dies(again, NULL, "a run is already there", 1);
    // Resumed after step 2, with half a line at the end: the same bytes as the run that never stopped.
    FILE* f = fopen(at("log.csv"), "a");
    fputs("5,1.2", f);
    fclose(f);
    steps(base, 3, 4, 1, 0);
    CHECK(!strcmp(contents(at("log.csv")), all), "%s", contents(at("log.csv")));
    steps(base, 5, 5, 1, 0);
    CHECK(!strncmp(contents(at("log.csv")), all, strlen(all)) && strlen(contents(at("log.csv"))) > strlen(all), "goes on");
    steps(base, 1, 1, 1, 1);
    snprintf(all, sizeof all, "%s%s", head, lines[0]);
    CHECK(!strcmp(contents(at("log.csv")), all), "overwritten: %s", contents(at("log.csv")));
    console = steps(NULL, 8, 8, 5, 0);
    CHECK(strstr(console, "step 8/8") && !strstr(console, "ETA"), "the last step is shown: %s", console);
    put(at("log.csv"), "epoch,loss\n1,2\n");
    test_dies(resume_log, NULL, "not that of a log", 1);
    snprintf(all, sizeof all, "%sabc\n", head);
    put(at("log.csv"), all);
    test_dies(resume_log, NULL, "does not begin with a step: abc", 1);
}

// ---- files and directories ----

static void full_disk(const void* unused) {
    struct rlimit limit = {1000, 1000};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    FILE* f = file_create(at("big"));
    for (int i = 0; i < 5000; i++) fputc('x', f);
    file_finish(f, at("big"));
}
static void no_directory(const void* unused) { file_create(at("missing/file")); }
static void file_as_directory(const void* unused) { directory_make(at("plain/inside")); }

static void test_files(void) {
    put(at("a"), "old");
    FILE* f = file_create(at("a"));
    fputs("new", f);
    CHECK(!strcmp(contents(at("a")), "old"), "replaced too early");
    file_finish(f, at("a"));
    CHECK(!strcmp(contents(at("a")), "new") && !is_there(at("a.tmp")), "%s", contents(at("a")));
    put(at("big"), "what was saved");
    test_dies(full_disk, NULL, "big: not written: File too large", 1);
    CHECK(!strcmp(contents(at("big")), "what was saved") && !is_there(at("big.tmp")), "a failed write took the old file");
    test_dies(no_directory, NULL, "missing/file.tmp: No such file", 1);
    put(at("plain"), "");
    test_dies(file_as_directory, NULL, "plain: is a file", 1);
    directory_make(at("x/y/z//"));
    directory_make(at("x/y"));
    CHECK(is_there(at("x/y/z")), "mkdir -p");
}

static void lock_again(const void* unused) { directory_lock(at("mine")); }
static void claim_again(const void* unused) { run_claim(at("mine"), at("elsewhere"), 0, 0); }
static void claim_own_model(const void* unused) { run_claim(at("other"), at("other/../other/model/"), 0, 1); }

// What a name stands for is kept: a link stays a link, a device a device. And what a run may do with its directory.
static void test_places(void) {
    put(at("real"), "old");
    if (symlink("real", at("link")) || symlink("/dev/null", at("device"))) exit(1);
    const char* names[] = {"link", "device"};
    for (int i = 0; i < 2; i++) {
        FILE* f = file_create(at(names[i]));
        fputs("new", f);
        file_finish(f, at(names[i]));
        f = file_create(at(names[i]));
        fputs("abandoned", f);
        file_abandon(f, at(names[i]));
    }
    struct stat s;
    CHECK(!strcmp(contents(at("real")), "new") && !is_there(at("real.tmp")), "behind a link: %s", contents(at("real")));
    CHECK(!lstat(at("link"), &s) && S_ISLNK(s.st_mode) && !lstat(at("device"), &s) && S_ISLNK(s.st_mode) && !is_there(at("device.tmp")), "a link was replaced");

    run_claim(at("mine"), at("elsewhere"), 0, 0);
    test_dies(lock_again, NULL, "mine: another process is training in it", 1);
    directory_make(at("other/model"));
    test_dies(claim_own_model, NULL, "other/model: the run starts from this model", 1);
    put(at("mine/log.csv"), "");
    test_dies(claim_again, NULL, "mine: another process", 1);
    directory_make(at("mine/model-best"));
    directory_make(at("mine/model.old/deep"));
    directory_make(at("mine/state"));
    put(at("mine/state/state.safetensors"), "x");
    put(at("mine/options.txt"), "x");
    run_clear(at("mine"));
    CHECK(!is_there(at("mine/model-best")) && !is_there(at("mine/model.old")) && !is_there(at("mine/state/state.safetensors")), "remains of an earlier run");
    CHECK(is_there(at("mine/state")) && is_there(at("mine/log.csv")) && is_there(at("mine/options.txt")), "too much was removed");
    directory_remove(at("mine/none"));
}

static void test_directories(void) {
    for (int crash = 0; crash <= 5; crash++) {   // 0: none; else the state the crash left
        directory_fresh(at("state.tmp/"));
        put(at("state.tmp/junk"), "from a run that was cut off");
        directory_fresh(at("state.tmp"));
        directory_make(at("state.tmp/deep/er"));
        put(at("state.tmp/step"), "2");
        put(at("state.tmp/deep/er/file"), "2");
        directory_fresh(at("state"));
        directory_make(at("state/only/old"));
        put(at("state/step"), "1");
        const char* expected = crash == 1 || crash == 2 ? "1" : "2";
        if (crash >= 2 && rename(at("state"), at("state.old"))) exit(1);
        if (crash >= 3 && rename(at("state.tmp"), at("state"))) exit(1);
        if (crash >= 4) unlink(at("state.old/step"));   // half removed
        if (crash == 0) directory_replace(at("state.tmp"), at("state/"));
        directory_recover(crash == 5 ? at("state//") : at("state"));
        CHECK(!strcmp(contents(at("state/step")), expected), "crash %d: state %s", crash, contents(at("state/step")));
        CHECK(is_there(at("state/only/old")) == (*expected == '1') && is_there(at("state/deep/er/file")) == (*expected == '2'),
              "crash %d: a mixture", crash);
        CHECK(!is_there(at("state.old")) && !is_there(at("state/junk")), "crash %d: remains", crash);
        directory_fresh(at("state.tmp"));
        put(at("state.tmp/step"), "3");
        directory_replace(at("state.tmp"), at("state"));
        CHECK(!strcmp(contents(at("state/step")), "3") && !is_there(at("state/only")) && !is_there(at("state.tmp")), "after %d", crash);
    }
    directory_fresh(at("first.tmp"));
    directory_replace(at("first.tmp"), at("first"));
    CHECK(is_there(at("first")), "nothing was there before");
    directory_recover(at("never"));
    CHECK(!is_there(at("never")), "recovering nothing");
}

// ---- signals, sizes ----

static void test_signals(void) {
    for (int number = SIGINT; number <= SIGTERM; number += SIGTERM - SIGINT) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            signals_watch();
            if (signal_seen() != 0) _exit(1);
            kill(getpid(), number);
            for (int i = 0; i < 1000 && !signal_seen(); i++) usleep(1000);
            if (signal_seen() != number) _exit(2);
            kill(getpid(), SIGINT + SIGTERM - number);   // the other one counts as the second
            sleep(5);
            _exit(3);
        }
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT + SIGTERM - number, "status %x", status);
    }
}

static void test_sizes(void) {
    struct { size_t bytes; const char* text; } cases[] = {
        {0, "0 B"}, {999, "999 B"}, {1024, "1.00 KiB"}, {1471026, "1.40 MiB"}, {(size_t)1 << 30, "1.00 GiB"}, {10475274, "9.99 MiB"},
        {10485000, "10.0 MiB"}, {104857600, "100 MiB"}, {(size_t)1023 << 20, "1.00 GiB"}, {SIZE_MAX, "16.0 EiB"},
    };
    char buffer[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(!strcmp(human_bytes(cases[i].bytes, buffer), cases[i].text), "%zu: %s, not %s", cases[i].bytes, buffer, cases[i].text);
    size_t before = process_peak_bytes(), more = (size_t)64 << 20;
    char* block = malloc(more);
    memset(block, 1, more);
    size_t after = process_peak_bytes();
    CHECK(block[more / 2] == 1 && before > 0 && after - before > more / 2, "%zu, then %zu", before, after);
    free(block);
}

int main(void) {
    if (!mkdtemp(base)) exit(1);
    test_log();
    test_files();
    test_places();
    test_directories();
    test_signals();
    test_sizes();
    directory_fresh(base);
    rmdir(base);
    TEST_END();
}
