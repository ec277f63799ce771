// The CUDA kernels in either precision, on the host or on a card. In fp32 the ops' own tests say more; with floatx = bfloat16 (PRECISION=bf16) every
// op meets packs of eight, rows that are no multiple of eight, and one rounding at its end. Inputs are floatx to begin with, so that the references, in
// double, see what the kernels see.
#include "../test.h"
#include "kernels/attention.h"
#include "kernels/bandit.h"
#include "kernels/columns.h"
#include "kernels/dropout.h"
#include "kernels/embed.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/image.h"
#include "kernels/linear.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/philox.h"
#include "kernels/tanh.h"
#include "kernels/token_embed.h"
#include "kernels/topk.h"

#include <vector>

#ifdef __CUDACC__   // on a card, in memory that both sides can touch; main makes every launch wait for its end
template <class T> struct Managed {
    typedef T value_type;
    Managed() = default;
    template <class U> Managed(const Managed<U>&) {}
    T* allocate(size_t n) {
        void* p;
        if (cudaMallocManaged(&p, n * sizeof(T)) != cudaSuccess) abort();
        return (T*)p;
    }
    void deallocate(T* p, size_t) { cudaFree(p); }
    bool operator==(const Managed&) const { return true; }
    bool operator!=(const Managed&) const { return false; }
};
template <class T> using Array = std::vector<T, Managed<T>>;
#else
template <class T> using Array = std::vector<T>;
#endif

typedef Array<floatx> Narrow;
typedef Array<float> Floats;
typedef Array<double> Doubles;

static Narrow narrow(size_t n, double scale = 1) {
    Narrow a(n);
    for (floatx& v : a) v = floatx((float)(scale * test_random()));
    return a;
}

static Floats floats(size_t n) {
    Floats a(n);
    for (float& v : a) v = (float)test_random();
    return a;
}

// Half a unit in the last place of bfloat16, with a little for float's own rounding before it; small results beside sums of larger terms
// carry float's error of those terms.
static const double HALF_ULP = 1.002 / 256, FLOAT = 1e-5;

template <class A> static void compare(const A& got, const Doubles& expected, const char* what, int m, int n) {
    device_sync();
    double worst = 0;
    double relative = sizeof got[0] == 2 ? HALF_ULP : FLOAT;
    for (size_t i = 0; i < expected.size(); i++) {
        double error = fabs((double)(float)got[i] - expected[i]) / (relative * fabs(expected[i]) + FLOAT);
        if (!(error <= worst)) worst = error;
    }
    CHECK(got.size() == expected.size() && worst <= 1, "%s, %d x %d: %.3g of what rounding allows", what, m, n, worst);
}

static void test_gemm(int t, int cin, int cout) {
    Narrow x = narrow((size_t)t * cin), w = narrow((size_t)cout * cin), b = narrow(cout), r = narrow((size_t)t * cout), y((size_t)t * cout), dx((size_t)t * cin);
    Floats dw((size_t)cout * cin), db(cout);
    Doubles yd(y.size()), dxd(dx.size()), dwd(dw.size()), dbd(cout);
    for (int i = 0; i < t; i++)
        for (int o = 0; o < cout; o++) {
            yd[i * cout + o] = (double)(float)b[o] + (float)r[i * cout + o];
            for (int k = 0; k < cin; k++) {
                yd[i * cout + o] += (double)(float)x[i * cin + k] * (float)w[o * cin + k];
                dxd[i * cin + k] += (double)(float)r[i * cout + o] * (float)w[o * cin + k];
                dwd[o * cin + k] += (double)(float)r[i * cout + o] * (float)x[i * cin + k];
            }
            dbd[o] += (float)r[i * cout + o];
        }
    Array<char> scratch(linear_bias_scratch(t, cout));
    linear_forward(y.data(), x.data(), w.data(), b.data(), r.data(), t, cin, cout);
    linear_backward_input(dx.data(), r.data(), w.data(), 0, t, cin, cout);
    linear_backward_weight(dw.data(), r.data(), x.data(), 0, t, cin, cout);
    linear_backward_bias(db.data(), r.data(), 0, t, cout, scratch.data());
    compare(y, yd, "linear y", t, cout);
    compare(dx, dxd, "linear dx", t, cin);
    compare(dw, dwd, "linear dw", cout, cin);
    compare(db, dbd, "linear db", t, cout);
    Floats dw2((size_t)cout * cin, NAN), db2(cout, NAN);
    int both = linear_backward_weight_bias(dw2.data(), db2.data(), r.data(), x.data(), t, cin, cout);
#ifndef __CUDACC__   // a card's library decides for itself
    CHECK(both == (cout % 8 == 0 && t % 16 != 15), "dw and db in one product, %d x %d x %d: %d", t, cin, cout, both);
#endif
    if (both) compare(dw2, dwd, "linear dw in one with db", cout, cin);
    if (both) compare(db2, dbd, "linear db in one with dw", t, cout);
}

static void test_norm(int t, int c) {
    Narrow x = narrow((size_t)t * c, 2), dy = narrow(x.size()), dx = narrow(x.size()), y(x.size()), again(x.size());
    Floats gamma = floats(c), beta = floats(c), mean(t), rstd(t), dgamma(c), dbeta(c);
    Doubles yd(x.size()), dxd(x.size()), dgammad(c), dbetad(c);
    for (int i = 0; i < t; i++) {
        double m = 0, s = 0, g = 0, gx = 0;
        for (int j = 0; j < c; j++) m += (float)x[i * c + j] / c;
        for (int j = 0; j < c; j++) s += pow((float)x[i * c + j] - m, 2) / c;
        s = 1 / sqrt(s + 1e-6);
        for (int j = 0; j < c; j++) {
            double h = ((float)x[i * c + j] - m) * s, d = (float)dy[i * c + j];
            yd[i * c + j] = h * gamma[j] + beta[j];
            g += d * gamma[j] / c;
            gx += d * gamma[j] * h / c;
            dgammad[j] += d * h;
            dbetad[j] += d;
        }
        for (int j = 0; j < c; j++)
            dxd[i * c + j] = (float)dx[i * c + j] + s * ((double)(float)dy[i * c + j] * gamma[j] - g - ((float)x[i * c + j] - m) * s * gx);
    }
    Array<char> scratch(layernorm_scratch(t, c));
    layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), 1e-6f, t, c);
    layernorm_remake(again.data(), x.data(), mean.data(), rstd.data(), gamma.data(), beta.data(), t, c);
    layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), 1, 0, t, c, scratch.data());
    compare(y, yd, "norm y", t, c);
    CHECK(!memcmp(y.data(), again.data(), y.size() * sizeof y[0]), "the norm made again differs, %d x %d", t, c);
    compare(dx, dxd, "norm dx", t, c);
    compare(dgamma, dgammad, "norm dgamma", t, c);
    compare(dbeta, dbetad, "norm dbeta", t, c);
}

static double phi(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

static void test_gelu(size_t n) {
    Narrow x = narrow(n, 5), dy = narrow(n), y(n), dx(n), y2(n), dx2(n);
    Array<uint8_t> codes((n + 3) / 4);
    Doubles yd(n), dxd(n), dx2d(n);
    const double c[3] = {-3.1858810036855245, -0.001178821281161997, 3.190832613414926};
    const double level[4] = {0, -0.04922261145617846, -0.04922261145617846 + 1.0979632065417297, -0.04922261145617846 + 1.0979632065417297 - 0.048740595085551286};
    for (size_t i = 0; i < n; i++) {
        double v = (float)x[i], d = (float)dy[i];
        yd[i] = v * phi(v);
        dxd[i] = d * (phi(v) + v * exp(-v * v / 2) / sqrt(2 * M_PI));
        dx2d[i] = d * level[(v > c[0]) + (v > c[1]) + (v > c[2])];
    }
    gelu_forward(y.data(), x.data(), n);
    gelu_backward(dx.data(), dy.data(), x.data(), n);
    regelu2_forward(y2.data(), codes.data(), x.data(), n);
    regelu2_backward(dx2.data(), dy.data(), codes.data(), n);
    compare(y, yd, "gelu", (int)n, 1);
    compare(dx, dxd, "gelu's slope", (int)n, 1);
    compare(y2, yd, "regelu2", (int)n, 1);
    compare(dx2, dx2d, "regelu2's slope", (int)n, 1);
    for (size_t i = 0; i < n; i++) yd[i] = tanh((float)x[i]);
    tanh_forward(y.data(), x.data(), n);
    compare(y, yd, "tanh", (int)n, 1);
    for (size_t i = 0; i < n; i++) dxd[i] = (float)dy[i] * (1 - (double)(float)y[i] * (float)y[i]);
    tanh_backward(dx.data(), dy.data(), y.data(), n);
    compare(dx, dxd, "tanh's slope", (int)n, 1);
}

static void test_columns(int t, int cin, int width) {
    Narrow x = narrow((size_t)t * cin), to = narrow(x.size()), before = to;
    Array<int> blocks;
    for (int i = 0; i < cin / width; i += 1 + i % 2) blocks.push_back(i);
    int n = (int)blocks.size();
    Narrow packed((size_t)t * n * width);
    Array<double> squares(cin / width);
    Doubles expected(cin / width);
    Array<char> scratch(columns_squares_scratch(t, cin, width));
    columns_gather(packed.data(), x.data(), blocks.data(), n, width, t, cin);
    columns_scatter(to.data(), packed.data(), blocks.data(), n, width, t, cin);
    columns_squares(squares.data(), x.data(), 0, width, t, cin, scratch.data());
    int wrong = 0;
    for (int i = 0; i < t; i++)
        for (int k = 0; k < cin; k++) {
            int block = k / width, at = -1;
            for (int j = 0; j < n; j++)
                if (blocks[j] == block) at = j;
            float v = (float)x[(size_t)i * cin + k];
            expected[block] += (double)v * v;
            wrong += (float)to[(size_t)i * cin + k] != (at >= 0 ? v : (float)before[(size_t)i * cin + k]);
            if (at >= 0) wrong += (float)packed[((size_t)i * n + at) * width + k % width] != v;
        }
    Narrow whole(x.size()), made(packed.size());
    Floats gamma = floats(cin), beta = floats(cin), mean(t), rstd(t);
    for (int op = 0; op < 2; op++) {   // a norm's or GELU's output made again, whole or in blocks
        if (op == 0) layernorm_forward(whole.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), 1e-6f, t, cin);
        if (op == 0) layernorm_remake_columns(made.data(), x.data(), mean.data(), rstd.data(), gamma.data(), beta.data(), blocks.data(), n, width, t, cin);
        if (op == 1) gelu_forward(whole.data(), x.data(), x.size());
        if (op == 1) gelu_forward_columns(made.data(), x.data(), blocks.data(), n, width, t, cin);
        columns_gather(packed.data(), whole.data(), blocks.data(), n, width, t, cin);
        CHECK(!memcmp(made.data(), packed.data(), packed.size() * sizeof packed[0]), "%s differs in blocks of columns, %d x %d, blocks of %d", op ? "GELU" : "the norm", t, cin, width);
    }
    Array<int> slots(cin / width, -1);
    for (int j = 0; j < n; j++) slots[blocks[j]] = j;
    Array<uint8_t> codes((x.size() + 3) / 4), codes2(codes.size());
    Narrow whole2(x.size());
    regelu2_forward(whole.data(), codes.data(), x.data(), x.size());
    regelu2_forward_columns(whole2.data(), codes2.data(), made.data(), x.data(), slots.data(), n, width, t, cin);
    CHECK(!memcmp(whole.data(), whole2.data(), whole.size() * sizeof whole[0]) && !memcmp(codes.data(), codes2.data(), codes.size()) &&
          !memcmp(made.data(), packed.data(), packed.size() * sizeof packed[0]), "ReGELU2 with packing differs, %d x %d, blocks of %d", t, cin, width);
    CHECK(wrong == 0, "%d elements moved wrongly, %d x %d, blocks of %d", wrong, t, cin, width);
    compare(squares, expected, "squares of column blocks", t, cin);
}

// Few different magnitudes, so ties at the threshold are the rule.
static void test_topk(int samples, int n, double prune) {
    Narrow x = narrow((size_t)samples * n), y(x.size()), pruned(x.size());
    int capacity = topk_capacity(n, prune), words = (n + 31) / 32, m = (int)(n * prune) < 1 ? 1 : (int)(n * prune), wrong = 0;
    Narrow values((size_t)samples * capacity);
    Array<uint32_t> mask((size_t)samples * words);
    Floats threshold(samples);
    topk_threshold(threshold.data(), x.data(), prune, samples, n);
    topk_pack(values.data(), mask.data(), x.data(), threshold.data(), capacity, samples, n);
    topk_unpack(y.data(), values.data(), mask.data(), capacity, samples, n);
    topk_prune(pruned.data(), x.data(), threshold.data(), capacity, samples, n);
    for (int s = 0; s < samples; s++) {
        Array<float> order(n);
        const floatx* xs = &x[(size_t)s * n];
        for (int i = 0; i < n; i++) order[i] = fabsf((float)xs[i]);
        qsort(order.data(), n, sizeof(float), [](const void* a, const void* b) { return (*(const float*)a > *(const float*)b) - (*(const float*)a < *(const float*)b); });
        wrong += threshold[s] != order[m - 1];
        int larger = 0, ties = 0;
        for (int i = 0; i < n; i++) larger += fabsf((float)xs[i]) > order[m - 1];
        for (int i = 0; i < n; i++) {
            float v = fabsf((float)xs[i]);
            bool stays = v > order[m - 1] || (v == order[m - 1] && ties++ < capacity - larger);
            wrong += (float)y[(size_t)s * n + i] != (stays ? (float)xs[i] : 0) || (float)pruned[(size_t)s * n + i] != (stays ? (float)xs[i] : 0);
        }
    }
    CHECK(wrong == 0, "top-k of %d: %d wrong", n, wrong);
}

static void test_loss(int b, int n) {
    Narrow logits = narrow((size_t)b * n, 3), d(logits.size());
    Array<int> labels(b), correct(b);
    Floats losses(b);
    Doubles expected(b), dd(d.size());
    for (int s = 0; s < b; s++) {
        double sum = 0;
        labels[s] = test_int(0, n - 1);
        for (int i = 0; i < n; i++) sum += exp((float)logits[s * n + i]);
        expected[s] = log(sum) - (float)logits[s * n + labels[s]];
        for (int i = 0; i < n; i++) dd[s * n + i] = 0.5 * (exp((float)logits[s * n + i]) / sum - (i == labels[s]));
    }
    cross_entropy(losses.data(), correct.data(), d.data(), logits.data(), labels.data(), 0.5f, b, n);
    compare(losses, expected, "cross-entropy", b, n);
    compare(d, dd, "its gradient", b, n);
    Narrow y = narrow(b), dy(b);
    Floats targets = floats(b);
    Doubles dyd(b);
    for (int s = 0; s < b; s++) {
        expected[s] = pow((double)(float)y[s] - targets[s], 2);
        dyd[s] = 2 * 0.25 * ((double)(float)y[s] - targets[s]);
    }
    squared_error(losses.data(), dy.data(), y.data(), targets.data(), 0.25f, b);
    compare(losses, expected, "squared error", b, 1);
    compare(dy, dyd, "its gradient", b, 1);
}

static void test_embeddings(int b, int n, int c, int prefix) {
    int t = n + prefix, vocabulary = 7;
    Narrow embedded = narrow((size_t)b * n * c), tokens((size_t)b * t * c), dtokens = narrow(tokens.size()), dembedded(embedded.size()), pooled((size_t)b * c);
    Floats cls = floats(c), position = floats((size_t)t * c), word = floats((size_t)vocabulary * c), type = floats(2 * (size_t)c);
    Floats dcls(c), dposition(position.size()), dword(word.size()), dtype(type.size());
    Doubles td(tokens.size()), dclsd(c), dpositiond(position.size()), dwordd(word.size()), dtyped(type.size()), yd(tokens.size()), ded(embedded.size()), pd(pooled.size());
    Array<int> ids((size_t)b * t), types(ids.size());
    for (size_t i = 0; i < ids.size(); i++) ids[i] = test_int(0, vocabulary - 1), types[i] = test_int(0, 1);
    for (int s = 0; s < b; s++)
        for (int i = 0; i < t; i++)
            for (int k = 0; k < c; k++) {
                size_t token = (size_t)s * t + i, at = token * c + k;
                td[at] = position[(size_t)i * c + k] + (i < prefix ? (double)cls[k] : (float)embedded[((size_t)s * n + i - prefix) * c + k]);
                yd[at] = (double)word[(size_t)ids[token] * c + k] + position[(size_t)i * c + k] + type[(size_t)types[token] * c + k];
                double d = (float)dtokens[at];
                dpositiond[(size_t)i * c + k] += d;
                dwordd[(size_t)ids[token] * c + k] += d;
                dtyped[(size_t)types[token] * c + k] += d;
                if (i < prefix) dclsd[k] += d;
                else ded[((size_t)s * n + i - prefix) * c + k] = d;
                if (i >= prefix) pd[(size_t)s * c + k] += (double)(float)dtokens[at] / n;
            }
    tokens_forward(tokens.data(), embedded.data(), prefix ? cls.data() : NULL, position.data(), b, n, prefix, c);
    compare(tokens, td, "tokens", b, c);
    tokens_backward(dembedded.data(), prefix ? dcls.data() : NULL, dposition.data(), dtokens.data(), 0, b, n, prefix, c);
    compare(dembedded, ded, "gradient of patches", b, c);
    compare(dcls, dclsd, "gradient of the class token", b, c);
    compare(dposition, dpositiond, "gradient of positions", b, c);
    token_embed_forward(tokens.data(), word.data(), position.data(), type.data(), ids.data(), types.data(), b, t, c);
    compare(tokens, yd, "word embedding", b, c);
    token_embed_backward(dword.data(), dposition.data(), dtype.data(), dtokens.data(), ids.data(), types.data(), 0, b, t, c, vocabulary, t, 2);
    compare(dword, dwordd, "gradient of words", b, c);
    compare(dposition, dpositiond, "gradient of places", b, c);
    compare(dtype, dtyped, "gradient of segments", b, c);
    pool_forward(pooled.data(), dtokens.data(), 1, prefix, b, t, c);
    compare(pooled, pd, "mean of tokens", b, c);
    Doubles back(tokens.size());
    for (size_t i = 0; i < back.size(); i++) back[i] = (int)(i / c % t) < prefix ? 0 : (double)(float)pooled[i / c / t * c + i % c] / n;
    pool_backward(tokens.data(), pooled.data(), 1, prefix, b, t, c);
    compare(tokens, back, "gradient of the mean", b, c);
}

static void test_patches(int size, int patch) {
    Narrow images = narrow((size_t)2 * 3 * size * size);
    int grid = size / patch, row = 3 * patch * patch, wrong = 0;
    Narrow patches((size_t)2 * grid * grid * row);
    patches_gather(patches.data(), images.data(), 2, 3, size, patch);
    for (size_t i = 0; i < patches.size(); i++) {
        int column = (int)(i % row), p = (int)(i / row), y = p / grid % grid * patch + column / patch % patch, x = p % grid * patch + column % patch;
        wrong += (float)patches[i] != (float)images[(((size_t)p / (grid * grid) * 3 + column / (patch * patch)) * size + y) * size + x];
    }
    CHECK(wrong == 0, "%d pixels of patches of %d wrong", wrong, patch);
}

static void test_image(void) {
    enum { SIZE = 9 };
    Array<uint8_t> raw(3 * 5 * 5, 51);   // a grey image stays grey at any size
    const float mean[3] = {0.5f, 0.25f, 0}, std[3] = {0.5f, 0.25f, 1};
    Narrow images(3 * SIZE * SIZE);
    Array<char> scratch(image_scratch(1, 5, 5, SIZE));
    Doubles expected(images.size());
    for (int i = 0; i < 3 * SIZE * SIZE; i++) expected[i] = (0.2 - mean[i / (SIZE * SIZE)]) / std[i / (SIZE * SIZE)];
    images_prepare(images.data(), raw.data(), NULL, mean, std, INTERPOLATE_BICUBIC, 1, 3, 5, 5, SIZE, scratch.data());
    compare(images, expected, "a grey image", SIZE, SIZE);
}

static void test_dropout(size_t n) {
    Narrow x = narrow(n), r = narrow(n), y(n);
    Dropout d = {0.3f, 11, 5, 2};
    Doubles expected(n);
    for (size_t i = 0; i < n; i++) {
        Philox draw = philox(d.seed, STREAM_DROPOUT, d.step, ((uint64_t)d.site << 40) + i / 4);
        expected[i] = (float)r[i] + (philox_uniform(draw.v[i % 4]) < d.p ? 0 : (float)x[i] / (1 - (double)d.p));
    }
    dropout_apply(y.data(), x.data(), r.data(), d, n);
    compare(y, expected, "dropout", (int)n, 1);
}

// The copies are the weights, rounded, wherever these were updated, and nowhere else.
static void test_copies(int rows, int cin, int width, size_t shift) {
    size_t n = (size_t)rows * cin;
    Array<int> blocks = {0, 2}, t = {1, 4};
    for (int kind = 0; kind < 4; kind++) {
        Floats w = floats(n), old = w, m = floats(n), v(n, 0.5f), g = floats(n);
        Narrow room(n + 8);
        floatx* copy = room.data() + shift;
        for (size_t i = 0; i < n; i++) copy[i] = floatx(-7.0f);
        Floats scale(1, 1.0f);
        AdamW adamw = {0.1, 0.9, 0.999, 1e-8, 0.01, scale.data()};
        SGD sgd = {0.1, 0.9, 0.01, scale.data()};
        if (kind == 0) adamw_dense(w.data(), copy, m.data(), v.data(), g.data(), adamw, 3, n);
        if (kind == 1) sgd_dense(w.data(), copy, m.data(), g.data(), sgd, 0, n);
        if (kind == 2) adamw_columns(w.data(), copy, m.data(), v.data(), g.data(), adamw, t.data(), blocks.data(), 2, width, rows, cin);
        if (kind == 3) sgd_columns(w.data(), copy, m.data(), g.data(), sgd, t.data(), blocks.data(), 2, width, rows, cin);
        int wrong = 0, updated = 0;
        for (size_t i = 0; i < n; i++) {
            int block = (int)(i % cin) / width, touched = kind < 2 || block == 0 || block == 2;
            wrong += touched ? (float)copy[i] != (float)floatx(w[i]) : w[i] != old[i] || (float)copy[i] != -7;
            updated += w[i] != old[i];
        }
        CHECK(wrong == 0 && updated > 0, "update %d of %d x %d: %d copies wrong, %d weights changed", kind, rows, cin, wrong, updated);
        device_round(copy, old.data(), n);
        Floats back(n);
        device_download_floats(back.data(), copy, n);
        for (size_t i = 0; i < n; i++) wrong += back[i] != (float)floatx(old[i]);
        CHECK(wrong == 0, "%d weights rounded wrongly", wrong);
    }
}

// The bandit's update by its definition, the projection by bisection; then the draw, which holds the right number of arms and all that are certain; the
// largest by counting who is larger; the counts of updates.
static void test_bandit(int n, int budget) {
    const double alpha = 1e-3, p_min = 0.01;
    Doubles p(n, (double)budget / n), squares(n), log_w(n), expected(n);
    Array<int> sampled(n), updates(n), counts(n, -1);
    double most = 0, least = INFINITY, low = -1e6, high = 1e6;
    for (int i = 0; i < n; i++) {
        sampled[i] = i % 3 != 1;
        squares[i] = i % 11 == 5 ? 0 : i % 13 == 7 ? NAN : exp(4 * test_random());
        if (sampled[i] && squares[i] > most) most = squares[i];
    }
    for (int round = 0; round < 2; round++)   // losses, of which the least is wanted; then the logarithms of the weights
        for (int i = 0; i < n; i++) {
            double loss = sampled[i] && squares[i] > 0 ? pow(1 / p_min, 2) - squares[i] / most / (p[i] * p[i]) : NAN;
            if (round == 0 && loss < least) least = loss;
            log_w[i] = log(p[i]) - (isnan(loss) ? 0 : alpha * (loss - least) / p[i]);
        }
    for (int round = 0; round < 200; round++) {
        double middle = (low + high) / 2, sum = 0;
        for (int i = 0; i < n; i++) sum += fmin(fmax(exp(fmin(log_w[i] + middle, 1)), p_min), 1);
        (sum < budget ? low : high) = middle;
    }
    for (int i = 0; i < n; i++) expected[i] = fmin(fmax(exp(fmin(log_w[i] + high, 1)), p_min), 1);
    bandit_update(p.data(), squares.data(), sampled.data(), alpha, p_min, budget, n);
    double worst = 0;
    for (int i = 0; i < n; i++) worst = fmax(worst, fabs(p[i] - expected[i]));
    CHECK(worst < 1e-8, "bandit, %d arms: off by %g", n, worst);

    int drawn = 0, wrong = 0, larger, taken = 0;
    sample_arms(sampled.data(), p.data(), 5, 2, 1, n);
    for (int i = 0; i < n; i++) {
        drawn += sampled[i];
        wrong += p[i] >= 1 && !sampled[i];
    }
    CHECK(drawn == budget && wrong == 0, "%d of %d arms drawn instead of %d, %d certain ones missed", drawn, n, budget, wrong);
    Floats scale(1, 1.0f);
    count_updates(updates.data(), counts.data(), sampled.data(), scale.data(), n);
    for (int i = 0; i < n; i++) {
        wrong += updates[i] != sampled[i];
        if (sampled[i]) wrong += counts[taken++] != 1;
    }
    CHECK(wrong == 0, "%d of %d counts of updates are wrong", wrong, n);
    largest_arms(sampled.data(), log_w.data(), budget, n);
    for (int i = 0; i < n; i++) {
        larger = 0;
        for (int j = 0; j < n; j++) larger += log_w[j] > log_w[i] || (log_w[j] == log_w[i] && j < i);
        wrong += sampled[i] != (larger < budget);
    }
    CHECK(wrong == 0, "%d of the %d largest of %d arms are wrong", wrong, budget, n);
}

// o, dq, dk, dv of attention; probabilities and their gradients are rounded to bfloat16 on the way to a tensor core, so the bound is that of a
// weighted mean of values each off by half a unit: a unit of the largest one.
static void test_attention(int b, int t, int h, int d, int materialized, float p, const Array<int>& lengths) {
    size_t wide = (size_t)h * d, n = (size_t)b * t * wide;
    Narrow qkv = narrow(3 * n), d_o = narrow(n), o(n), dqkv(3 * n), probs((size_t)b * h * t * t);
    Floats lse((size_t)b * h * t);
    Doubles od(n), dd(3 * n);
    Dropout drop = {p, 3, 1, 4};
    auto at = [&](int s, int i, int part, int head) { return (((size_t)s * t + i) * 3 + part) * wide + (size_t)head * d; };
    for (int s = 0; s < b; s++)
        for (int head = 0; head < h; head++)
            for (int i = 0; i < t; i++) {
                int keys = lengths[s];
                Doubles w(t), dw(t), kept(t, 1);
                double most = -INFINITY, sum = 0, dot = 0;
                for (int j = 0; j < keys; j++) {
                    for (int x = 0; x < d; x++) w[j] += (double)(float)qkv[at(s, i, 0, head) + x] * (float)qkv[at(s, j, 1, head) + x] / sqrt(d);
                    most = fmax(most, w[j]);
                    uint64_t row = (((uint64_t)s * h + head) * t + i) * ((t + 3) / 4);
                    Philox r = philox(drop.seed, STREAM_DROPOUT, drop.step, ((uint64_t)drop.site << 40) + row + j / 4);
                    if (p > 0) kept[j] = philox_uniform(r.v[j % 4]) < p ? 0 : 1 / (1 - (double)p);
                }
                for (int j = 0; j < keys; j++) sum += w[j] = exp(w[j] - most);
                const floatx* up = &d_o[((size_t)s * t + i) * wide + (size_t)head * d];
                for (int j = 0; j < keys; j++) {
                    w[j] /= sum;
                    for (int x = 0; x < d; x++) {
                        double v = (float)qkv[at(s, j, 2, head) + x];
                        od[((size_t)s * t + i) * wide + (size_t)head * d + x] += w[j] * kept[j] * v;
                        dd[at(s, j, 2, head) + x] += w[j] * kept[j] * (float)up[x];
                        dw[j] += (float)up[x] * v * kept[j];
                    }
                    dot += w[j] * dw[j];
                }
                for (int j = 0; j < keys; j++)
                    for (int x = 0; x < d; x++) {
                        double ds = w[j] * (dw[j] - dot) / sqrt(d);
                        dd[at(s, i, 0, head) + x] += ds * (float)qkv[at(s, j, 1, head) + x];
                        dd[at(s, j, 1, head) + x] += ds * (float)qkv[at(s, i, 0, head) + x];
                    }
            }
    Array<char> scratch(attention_flash_scratch(b, t, h, d) + attention_materialized_scratch(b, t, h, d));
    if (materialized) {
        attention_materialized_forward(o.data(), probs.data(), qkv.data(), lengths.data(), drop, b, t, h, d, scratch.data());
        attention_materialized_backward(dqkv.data(), d_o.data(), probs.data(), qkv.data(), lengths.data(), drop, b, t, h, d, scratch.data());
    } else {
        attention_flash_forward(o.data(), lse.data(), qkv.data(), lengths.data(), drop, b, t, h, d, scratch.data());
        attention_flash_backward(dqkv.data(), d_o.data(), o.data(), lse.data(), qkv.data(), lengths.data(), drop, b, t, h, d, scratch.data());
        Narrow again(dqkv.size());
        attention_flash_backward(again.data(), d_o.data(), o.data(), lse.data(), qkv.data(), lengths.data(), drop, b, t, h, d, scratch.data());
        CHECK(!memcmp(again.data(), dqkv.data(), again.size() * sizeof again[0]), "the same call gives other bits, %d tokens, %d", t, d);
    }
    double worst_o = 0, worst_d = 0, unit_o = 1e-6, unit_d = 1e-6;
    for (double v : od) unit_o = fmax(unit_o, fabs(v) / 128);
    for (double v : dd) unit_d = fmax(unit_d, fabs(v) / 128);
    for (size_t i = 0; i < n; i++) worst_o = fmax(worst_o, isfinite((float)o[i]) ? fabs((float)o[i] - od[i]) : INFINITY);
    for (size_t i = 0; i < 3 * n; i++) worst_d = fmax(worst_d, isfinite((float)dqkv[i]) ? fabs((float)dqkv[i] - dd[i]) : INFINITY);
    CHECK(worst_o <= unit_o && worst_d <= unit_d, "%s attention, %d x %d, %d heads of %d: o off by %.3g units, gradients by %.3g", materialized ? "materialized" : "flash", b, t,
          h, d, worst_o / unit_o, worst_d / unit_d);
}

int main(void) {
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    test_gemm(5, 7, 3);
    test_gemm(33, 64, 48);
    test_gemm(31, 24, 16);
    for (int c : {1, 37, 96, 768, 1032, 1600}) test_norm(9, c);
    for (size_t n : {1, 5, 8, 131, 1024}) test_gelu(n);
    test_columns(7, 96, 16);
    test_columns(5, 33, 3);
    test_columns(3, 40, 1);
    test_topk(3, 1000, 0.8);
    test_topk(2, 5000, 0.9);
    test_topk(2, 33, 0.5);
    test_loss(5, 2);
    test_loss(3, 101);
    test_embeddings(3, 4, 24, 1);
    test_embeddings(2, 5, 13, 0);
    test_patches(32, 8);
    test_patches(15, 5);
    test_image();
    for (size_t n : {3, 8, 77}) test_dropout(n);
    test_copies(5, 48, 16, 0);
    test_copies(3, 21, 3, 1);
    test_copies(4, 12, 4, 4);
    test_bandit(1, 1);
    test_bandit(48, 24);
    test_bandit(2311, 460);
    for (int materialized = 0; materialized < 2; materialized++) {
        test_attention(2, 17, 2, 32, materialized, 0, {17, 9});
        test_attention(2, 5, 1, 20, materialized, 0.2f, {0, 5});
        test_attention(1, 70, 1, 64, materialized, 0.1f, {66});
    }
    for (int d : {32, 64, 80, 96, 128})
        for (int t : {1, 17, 64, 65, 133}) test_attention(1, t, 2, d, 0, t % 2 ? 0.1f : 0, {t});
    test_attention(3, 100, 1, 40, 0, 0.1f, {100, 0, 37});
    test_attention(2, 5, 1, 128, 0, 0.3f, {0, 2});
    test_attention(2, 197, 1, 64, 0, 0, {197, 130});
    test_attention(1, 33, 2, 36, 0, 0, {33});   // rows are no whole packs: without tensor cores
    TEST_END();
}
