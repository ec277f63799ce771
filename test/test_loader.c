// Batches ahead: the order against the header's recipe, starting anywhere, evaluation order, closing at any time, signals.
#include "data/loader.h"
#include "kernels/philox.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>

enum { CHANNELS = 3, HEIGHT = 5, WIDTH = 7, BYTES = CHANNELS * HEIGHT * WIDTH };

// n images whose every byte follows from their number.
static Split split_of(int n) {
    Split s = {n, NULL, NULL};
    const uint8_t** image = malloc((size_t)(n + 1) * sizeof *image);
    int32_t* label = malloc((size_t)(n + 1) * sizeof *label);
    for (int i = 0; i < n; i++) {
        uint8_t* bytes = malloc(BYTES);
        for (int k = 0; k < BYTES; k++) bytes[k] = (uint8_t)(i * 31 + k * 7);
        image[i] = bytes;
        label[i] = i * 13 % 10;
    }
    s.image = image;
    s.label = label;
    return s;
}

static void split_drop(Split* s) {
    for (int i = 0; i < s->count; i++) free((void*)s->image[i]);
    free((void*)s->image);
    free((void*)s->label);
}

static int same(const Batch* b, int place, int image) {
    if (b->index[place] != image || b->label[place] != image * 13 % 10) return 0;
    for (int k = 0; k < BYTES; k++)
        if (b->raw[place * BYTES + k] != (uint8_t)(image * 31 + k * 7)) return 0;
    return 1;
}

static void test_order(void) {
    for (int round = 0; round < 20; round++) {
        int n = round ? test_int(1, 500) : 1, *expected = malloc((size_t)n * sizeof *expected), *order = malloc((size_t)n * sizeof *order);
        char* there = calloc((size_t)n, 1);
        uint64_t seed = test_state;
        for (int i = 0; i < n; i++) expected[i] = i;
        for (int i = n - 1; i >= 1; i--) {   // the recipe, draw for draw
            uint64_t draw = philox(seed, STREAM_SHUFFLE, (uint32_t)round, (uint64_t)i).v[0];
            int j = (int)(draw * (uint64_t)(i + 1) >> 32), swapped = expected[i];
            expected[i] = expected[j];
            expected[j] = swapped;
        }
        shuffle_order(order, n, seed, (uint32_t)round);
        CHECK(!memcmp(order, expected, (size_t)n * sizeof *order), "order of %d", n);
        for (int i = 0; i < n; i++) there[order[i]] = 1;
        for (int i = 0; i < n; i++) CHECK(there[i], "%d of %d is lost", i, n);
        free(expected), free(order), free(there);
    }
}

static void test_training(void) {
    for (int round = 0; round < 30; round++) {
        int n = test_int(1, 60), batch = test_int(1, n), per_epoch = n / batch;
        int64_t first = round % 3 ? test_int(0, 5 * per_epoch) : 0;
        Split s = split_of(n);
        int32_t* order = malloc((size_t)n * sizeof *order);
        Loader* l = loader_open(&s, CHANNELS, HEIGHT, WIDTH, batch, 1, 7 + (uint64_t)round, first);
        for (int64_t i = first; i < first + 3 * per_epoch + 2; i++) {
            Batch b = loader_next(l);
            shuffle_order(order, n, 7 + (uint64_t)round, (uint32_t)(i / per_epoch));
            CHECK(b.count == batch, "count %d", b.count);
            if (i % 7 == 0) usleep(200);   // lets the thread run ahead: it must not touch what is in use
            for (int k = 0; k < batch; k++) CHECK(same(&b, k, order[i % per_epoch * batch + k]), "n %d, batch %d, place %d", n, (int)i, k);
        }
        loader_close(l);
        split_drop(&s);
        free(order);
    }
}

static void test_evaluation(void) {
    const int cases[][3] = {{1, 1, 0}, {10, 3, 0}, {10, 5, 0}, {10, 32, 0}, {0, 4, 0}, {23, 4, 2}, {8, 4, 2}, {8, 4, 9}};   // n, batch, first
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c][0], batch = cases[c][1], place = cases[c][2] * batch;
        Split s = split_of(n);
        Loader* l = loader_open(&s, CHANNELS, HEIGHT, WIDTH, batch, 0, 1, cases[c][2]);
        for (Batch b; (b = loader_next(l)).count > 0; place += b.count) {
            CHECK(b.count == (n - place < batch ? n - place : batch), "%d of %d at %d", b.count, n, place);
            for (int k = 0; k < b.count; k++) CHECK(same(&b, k, place + k), "place %d", place + k);
        }
        CHECK(place == (n > cases[c][2] * batch ? n : cases[c][2] * batch), "%d of %d", place, n);
        for (int i = 0; i < 5; i++) CHECK(loader_next(l).count == 0, "there is nothing after the end");
        loader_close(l);
        split_drop(&s);
    }
}

static void test_closing(void) {
    Split s = split_of(40);
    for (int taken = 0; taken < 8; taken++)
        for (int round = 0; round < 20; round++) {
            Loader* l = loader_open(&s, CHANNELS, HEIGHT, WIDTH, 8, round % 2, 1, 0);
            for (int i = 0; i < taken; i++) loader_next(l);
            if (round % 4 == 0) usleep(50);
            loader_close(l);
        }
    loader_close(NULL);
    split_drop(&s);
}

static void too_large(const void* split) { loader_open(split, CHANNELS, HEIGHT, WIDTH, 6, 1, 1, 0); }

static pthread_t handled_by;
static void note(int number) { handled_by = pthread_self(); }

// With the signal blocked in the main thread it must stay pending: no other thread may take it.
static void test_signals(void) {
    Split s = split_of(40);
    sigset_t one, pending, before;
    sigemptyset(&one);
    sigaddset(&one, SIGTERM);
    signal(SIGTERM, note);
    Loader* l = loader_open(&s, CHANNELS, HEIGHT, WIDTH, 8, 1, 1, 0);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    CHECK(!sigismember(&before, SIGTERM), "loader_open left the main thread's signals blocked");
    kill(getpid(), SIGTERM);
    for (int i = 0; i < 20; i++) loader_next(l);
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGTERM), "the loader's thread took a signal");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(pthread_equal(handled_by, pthread_self()), "not handled here");
    loader_close(l);
    split_drop(&s);
}

int main(void) {
    test_order();
    test_training();
    test_evaluation();
    test_closing();
    Split s = split_of(5);
    test_dies(too_large, &s, "a batch of 6 images is more than the 5", 1);
    split_drop(&s);
    test_signals();
    TEST_END();
}
