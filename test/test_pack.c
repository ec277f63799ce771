// From photo files to an image pack: every mode and orientation of photo_read, and data/pack_images run as a program.
#include "data/images.h"
#include "data/photo.h"
#include "data/run.h"
#include "test.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <zlib.h>

static char base[] = "/tmp/prebr_test_pack_XXXXXX";
static char tool[512];   // the program under test

static const char* at(const char* format, ...) {
    static char paths[16][400];
    static int next;
    char* path = paths[next++ % 16];
    int n = snprintf(path, 400, "%s/", base);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + n, (size_t)(400 - n), format, arguments);
    va_end(arguments);
    return path;
}

static void put(const char* path, const void* data, size_t n) {
    FILE* f = file_create(path);
    fwrite(data, 1, n, f);
    file_finish(f, path);
}

static void put_text(const char* path, const char* text) { put(path, text, strlen(text)); }

// ---- photo files ----

static uint8_t* big_endian(uint8_t* p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
    return p + 4;
}

static uint8_t* chunk(uint8_t* p, const char* type, const void* data, size_t n) {
    uint8_t* start = big_endian(p, (uint32_t)n);
    memcpy(start, type, 4);
    memcpy(start + 4, data, n);
    return big_endian(start + 4 + n, (uint32_t)crc32(0, start, (unsigned)n + 4));
}

// A PNG of `depth` bits and the colour type of the standard; rows of `stride` bytes; palette [colours, 3] with alpha of its first one.
static void put_png(const char* path, int w, int h, int depth, int type, const uint8_t* rows, size_t stride, const uint8_t* palette,
                    int colours, int first_alpha) {
    static uint8_t file[1 << 17], raw[1 << 16], packed[1 << 16];
    uint8_t head[13] = {0};
    big_endian(big_endian(head, (uint32_t)w), (uint32_t)h);
    head[8] = (uint8_t)depth;
    head[9] = (uint8_t)type;
    for (int y = 0; y < h; y++) {
        raw[(size_t)y * (stride + 1)] = 0;
        memcpy(raw + (size_t)y * (stride + 1) + 1, rows + (size_t)y * stride, stride);
    }
    uLongf n = sizeof packed;
    compress(packed, &n, raw, (uLong)((size_t)h * (stride + 1)));
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    uint8_t* p = chunk(file + 8, "IHDR", head, 13);
    if (palette) p = chunk(p, "PLTE", palette, 3 * (size_t)colours);
    if (palette && first_alpha < 255) p = chunk(p, "tRNS", &(uint8_t){(uint8_t)first_alpha}, 1);
    p = chunk(p, "IDAT", packed, n);
    p = chunk(p, "IEND", "", 0);
    put(path, file, (size_t)(p - file));
}

static void put_plain(const char* path, int w, int h, int type, const uint8_t* pixels) {   // 8 bits, no palette
    put_png(path, w, h, 8, type, pixels, (size_t)w * (type == 0 ? 1 : type == 4 ? 2 : type == 2 ? 3 : 4), NULL, 0, 0);
}

static size_t read_all(const char* path, uint8_t* data, size_t room) {
    FILE* f = fopen(path, "rb");
    if (!f) exit(1);
    size_t n = fread(data, 1, room, f);
    fclose(f);
    return n;
}

static const char corners[] = "test/fixtures/corners.jpg";   // 48 x 32; red, green / blue, white

// The corners with an EXIF block after the first marker. Returns the file's size.
static size_t put_jpeg(const char* path, int orientation, int little) {
    uint8_t big[] = {0xff, 0xe1, 0, 46, 'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 2,
                     1, 0x0f, 0, 2, 0, 0, 0, 2, 'a', 0, 0, 0, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, (uint8_t)orientation, 0, 0, 0, 0, 0, 0};
    uint8_t small[] = {0xff, 0xe1, 0, 46, 'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0, 2, 0,
                       0x0f, 1, 2, 0, 2, 0, 0, 0, 'a', 0, 0, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, (uint8_t)orientation, 0, 0, 0, 0, 0, 0, 0};
    uint8_t jpeg[8192];
    size_t n = read_all(corners, jpeg + sizeof big, sizeof jpeg - sizeof big) + sizeof big;
    memcpy(jpeg, jpeg + sizeof big, 2);
    memcpy(jpeg + 2, little ? small : big, sizeof big);
    put(path, jpeg, n);
    return n;
}

// ---- photo_read ----

static Photo must_read(const char* path) {
    Photo p;
    const char* why = photo_read(path, &p);
    CHECK(!why, "%s: %s", path, why);
    if (why) exit(1);
    return p;
}

static int pixel(const Photo* p, int x, int y, int c) { return p->rgb[(c * p->height + y) * p->width + x]; }

enum { W = 13, H = 7 };

static void test_modes(void) {
    uint8_t rgba[H * W * 4], grey_alpha[H * W * 2], grey16[H * W * 2], rgb16[H * W * 6], index[H * W], palette[5 * 3], rgb[H * W * 3];
    for (int i = 0; i < H * W * 4; i++) rgba[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < H * W * 2; i++) grey_alpha[i] = (uint8_t)test_int(0, 255), grey16[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < H * W * 6; i++) rgb16[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < H * W; i++) index[i] = (uint8_t)test_int(0, 4);
    for (int i = 0; i < 15; i++) palette[i] = (uint8_t)test_int(0, 255);
    for (int i = 0; i < H * W; i++) memcpy(rgb + 3 * i, rgba + 4 * i, 3);
    put_plain(at("rgba.png"), W, H, 6, rgba);
    put_plain(at("rgb.png"), W, H, 2, rgb);
    put_plain(at("ga.png"), W, H, 4, grey_alpha);
    put_png(at("g16.png"), W, H, 16, 0, grey16, W * 2, NULL, 0, 0);
    put_png(at("rgb16.png"), W, H, 16, 2, rgb16, W * 6, NULL, 0, 0);
    put_png(at("palette.png"), W, H, 8, 3, index, W, palette, 5, 255);
    put_png(at("clear.png"), W, H, 8, 3, index, W, palette, 5, 100);
    FILE* f = fopen(at("rgb.ppm"), "wb");
    fprintf(f, "P6\n%d %d\n255\n", W, H);
    fwrite(rgb, 1, sizeof rgb, f);
    fclose(f);
    put_plain(at("grey.png"), W, H, 0, index);
    const char* names[] = {"rgba.png", "rgb.png", "rgb.ppm", "ga.png", "g16.png", "rgb16.png", "palette.png", "clear.png", "grey.png"};
    for (int k = 0; k < 9; k++) {
        Photo p = must_read(at("%s", names[k]));
        CHECK(p.width == W && p.height == H, "%s: %d x %d", names[k], p.width, p.height);
        for (int i = 0; i < H * W; i++)
            for (int c = 0; c < 3; c++) {
                double alpha = k == 0 ? rgba[4 * i + 3] : k == 3 ? grey_alpha[2 * i + 1] : k == 7 && index[i] == 0 ? 100 : 255;
                double value = k < 3 ? rgb[3 * i + c] : k == 3 ? grey_alpha[2 * i] : k == 4 ? grey16[2 * i] : k == 5 ? rgb16[6 * i + 2 * c]
                             : k < 8 ? palette[3 * index[i] + c] : index[i];
                double expected = floor((value * alpha + 255 * (255 - alpha)) / 255 + 0.5);
                CHECK(pixel(&p, i % W, i / W, c) == expected, "%s: pixel %d, channel %d", names[k], i, c);
            }
        photo_free(&p);
    }
    // CMYK as Adobe stores it; left (200, 30, 90, 40), right (10, 240, 0, 100), each channel times 1 - K.
    const int cmyk[2][4] = {{200, 30, 90, 40}, {10, 240, 0, 100}};
    Photo p = must_read("test/fixtures/cmyk.jpg");
    CHECK(p.width == 16 && p.height == 8, "%d x %d", p.width, p.height);
    for (int x = 0; x < 16; x++)
        for (int c = 0; c < 3; c++) {
            double expected = (255 - cmyk[x / 8][c]) * (255 - cmyk[x / 8][3]) / 255.0;
            CHECK(fabs(pixel(&p, x, 3, c) - expected) < 3, "x %d, channel %d: %d, not %g", x, c, pixel(&p, x, 3, c), expected);
        }
    photo_free(&p);
}

static void test_orientation(void) {
    // The corners of the stored picture: red, green / blue, white. As EXIF has them shown: top left, top right, bottom left, bottom right.
    const char* shown[9] = {"RGBW", "RGBW", "GRWB", "WBGR", "BWRG", "RBGW", "BRWG", "WGBR", "GWRB"};
    enum { w = 48, h = 32 };
    for (int orientation = 0; orientation < 18; orientation++) {
        int o = orientation % 9, valid = o >= 1 && o <= 8;
        put_jpeg(at("o.jpg"), o, orientation >= 9);   // 0 is no orientation
        Photo p = must_read(at("o.jpg"));
        CHECK(p.width == (valid && o > 4 ? h : w) && p.height == (valid && o > 4 ? w : h), "%d: %d x %d", o, p.width, p.height);
        for (int corner = 0; corner < 4; corner++) {
            int x = corner % 2 ? p.width - 4 : 3, y = corner / 2 ? p.height - 4 : 3;
            int r = pixel(&p, x, y, 0) > 127, g = pixel(&p, x, y, 1) > 127, b = pixel(&p, x, y, 2) > 127;
            char colour = r && g && b ? 'W' : r ? 'R' : g ? 'G' : 'B';
            CHECK(r + g + b == (colour == 'W' ? 3 : 1) && colour == shown[o][corner], "orientation %d, corner %d: %c", o, corner, colour);
        }
        photo_free(&p);
    }
}

static void must_fail(const char* path, const char* expected) {
    Photo p;
    const char* why = photo_read(path, &p);
    CHECK(why && strstr(why, expected), "%s: %s, not %s", path, why ? why : "was read", expected);
    if (!why) photo_free(&p);
}

static void test_damage(void) {
    static uint8_t rgb[32 * 32 * 3], jpeg[8192], damaged[8192];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i / 40);
    put_text(at("text.jpg"), "this is not a photo");
    put_text(at("empty.jpg"), "");
    must_fail(at("text.jpg"), "not of any known type");
    must_fail(at("empty.jpg"), "not of any known type");
    must_fail(at("absent.jpg"), "No such file");
    must_fail(base, "is not a file");
    put_plain(at("cut.png"), 32, 32, 2, rgb);
    if (truncate(at("cut.png"), 100)) exit(1);
    must_fail(at("cut.png"), "Corrupt PNG");
    size_t whole = put_jpeg(at("cut.jpg"), 6, 0);
    if (truncate(at("cut.jpg"), (off_t)whole - 2)) exit(1);
    must_fail(at("cut.jpg"), "cut off");
    if (truncate(at("cut.jpg"), (off_t)whole / 2)) exit(1);
    must_fail(at("cut.jpg"), "cut off");
    // Whatever is damaged: a reason or a photo, and no step outside the file (the sanitizers look on).
    put_jpeg(at("whole.jpg"), 6, 0);
    size_t n = read_all(at("whole.jpg"), jpeg, sizeof jpeg);
    for (int round = 0; round < 300; round++) {
        size_t cut = round % 3 ? n : (size_t)test_int(0, (int)n);
        memcpy(damaged, jpeg, n);
        for (int i = 0; i < 3; i++) damaged[test_int(2, round % 2 ? 60 : (int)n - 1)] = (uint8_t)test_int(0, 255);
        FILE* f = fopen(at("damaged.jpg"), "wb");
        fwrite(damaged, 1, cut, f);
        fclose(f);
        Photo p;
        if (!photo_read(at("damaged.jpg"), &p)) photo_free(&p);
    }
}

// ---- the program ----

static char output[4096];

// Runs the tool in a shell, its stdout and stderr in `output`; returns its exit code.
static int run(const char* format, ...) {
    char arguments[1024], command[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "%s %s 2>&1", tool, arguments);
    FILE* f = popen(command, "r");
    output[fread(output, 1, sizeof output - 1, f)] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A PNG whose every pixel is `value` (so that it is known again after resizing).
static void put_flat(const char* path, int w, int h, int value) {
    uint8_t* grey = malloc((size_t)(w * h));
    memset(grey, value, (size_t)(w * h));
    put_plain(path, w, h, 0, grey);
    free(grey);
}

// The pack's images are flat with these values and labels, train first.
static void check_pack(const char* path, int size, int train, int test, const int* value, const int* label) {
    Images d = images_open(path, NULL);
    CHECK(d.train.count == train && d.test.count == test && d.height == size && d.width == size && d.channels == 3, "%d + %d of %d",
          d.train.count, d.test.count, d.height);
    for (int i = 0; i < d.train.count + d.test.count && i < train + test; i++) {
        const Split* s = i < train ? &d.train : &d.test;
        int k = i < train ? i : i - train;
        for (int b = 0; b < 3 * size * size; b++) CHECK(s->image[k][b] == value[i], "image %d, byte %d: %d", i, b, s->image[k][b]);
        CHECK(s->label[k] == label[i], "image %d has label %d", i, s->label[k]);
    }
    images_close(&d);
}

static void test_folders(void) {
    directory_make(at("f/bee/deep"));
    directory_make(at("f/ant"));
    put_text(at("f/README"), "beside the classes");
    put_text(at("f/ant/.hidden"), "passed over");
    put_flat(at("f/ant/b.png"), 20, 10, 11);
    put_flat(at("f/ant/a.png"), 10, 20, 12);
    put_flat(at("f/bee/z.png"), 3, 3, 13);
    put_flat(at("f/bee/deep/x.png"), 1, 1, 14);
    CHECK(run("%s %s --size 9", at("f"), at("f.pack")) == 0, "%s", output);
    CHECK(strstr(output, "4 photos to train and 0 to test on, 2 classes, 9 x 9 pixels"), "%s", output);
    check_pack(at("f.pack"), 9, 4, 0, (int[]){12, 11, 14, 13}, (int[]){0, 0, 1, 1});
    Images d = images_open(at("f.pack"), NULL);
    CHECK(!strcmp(d.class_name[0], "ant") && !strcmp(d.class_name[1], "bee"), "%s", d.class_name[0]);
    images_close(&d);

    directory_make(at("v/bee"));
    put_flat(at("v/bee/t.png"), 5, 5, 99);
    CHECK(run("%s %s --size=4 --val %s", at("f"), at("f.pack"), at("v")) == 0, "%s", output);
    check_pack(at("f.pack"), 4, 4, 1, (int[]){12, 11, 14, 13, 99}, (int[]){0, 0, 1, 1, 1});

    // A photo that cannot be read: trouble, the old pack stays; or left out, and the rest moves up.
    put_text(at("f/ant/a2.jpg"), "broken");
    CHECK(run("%s %s --size 4", at("f"), at("f.pack")) == 1, "%s", output);
    CHECK(strstr(output, "f/ant/a2.jpg: Image not of any known type") && strstr(output, "--skip-bad"), "%s", output);
    CHECK(access(at("f.pack.tmp"), F_OK), "a temporary file is left");
    check_pack(at("f.pack"), 4, 4, 1, (int[]){12, 11, 14, 13, 99}, (int[]){0, 0, 1, 1, 1});
    put_text(at("v/bee/s.jpg"), "broken");
    CHECK(run("%s %s --size 4 --skip-bad --val %s", at("f"), at("f.pack"), at("v")) == 0, "%s", output);
    CHECK(strstr(output, "a2.jpg: ") && strstr(output, "s.jpg: ") && strstr(output, "; 2 left out\n"), "%s", output);
    check_pack(at("f.pack"), 4, 4, 1, (int[]){12, 11, 14, 13, 99}, (int[]){0, 0, 1, 1, 1});

    directory_make(at("s/train"));
    CHECK(rename(at("f/ant"), at("s/train/ant")) == 0 && rename(at("f/bee"), at("s/train/bee")) == 0, "moving");
    CHECK(rename(at("v"), at("s/test")) == 0, "moving");
    unlink(at("s/train/ant/a2.jpg"));
    unlink(at("s/test/bee/s.jpg"));
    CHECK(run("%s %s --size 4", at("s"), at("s.pack")) == 0, "%s", output);
    check_pack(at("s.pack"), 4, 4, 1, (int[]){12, 11, 14, 13, 99}, (int[]){0, 0, 1, 1, 1});
    directory_make(at("s/val/wasp"));
    CHECK(run("%s %s", at("s"), at("s.pack")) == 1 && strstr(output, "s/val/wasp: training knows no class"), "%s", output);
    directory_make(at("s/train/wasp"));
    CHECK(run("%s %s", at("s"), at("s.pack")) == 1 && strstr(output, "s/train/wasp: there is no photo"), "%s", output);
    CHECK(run("%s %s", at("v2"), at("s.pack")) == 1 && strstr(output, "v2: No such file"), "%s", output);
    CHECK(run("%s %s", at("s/val"), at("s.pack")) == 1, "%s", output);
    CHECK(run("%s", at("s")) == 2 && strstr(output, "OUT is missing"), "%s", output);
    CHECK(run("%s %s --size 0", at("s"), at("s.pack")) == 2 && strstr(output, "from 1 to 4096"), "%s", output);
    CHECK(run("%s %s/no/x.pack", at("s/test"), base) == 1 && strstr(output, "no/x.pack.tmp: No such file"), "%s", output);
}

static void test_cub(void) {
    directory_make(at("cub/images/001.A"));
    directory_make(at("cub/images/002.B"));
    for (int i = 0; i < 5; i++) put_flat(at("cub/images/%s/%d.png", i < 2 ? "001.A" : "002.B", i), 4, 4, 50 + i);
    put_text(at("cub/images.txt"), "1 001.A/0.png\n2 001.A/1.png\n3 002.B/2.png\n4 002.B/3.png\n5 002.B/4.png\n");
    put_text(at("cub/image_class_labels.txt"), "1 1\n2 1\n3 2\n4 2\n5 2\n");
    put_text(at("cub/train_test_split.txt"), "1 0\n2 1\n3 1\n4 0\n5 1\n");
    put_text(at("cub/classes.txt"), "1 001.A\n2 002.B\n");
    CHECK(run("%s %s --size 6", at("cub"), at("cub.pack")) == 0, "%s", output);
    check_pack(at("cub.pack"), 6, 3, 2, (int[]){51, 52, 54, 50, 53}, (int[]){0, 1, 1, 0, 1});
    put_text(at("cub/image_class_labels.txt"), "1 1\n2 1\n3 3\n4 2\n5 2\n");
    CHECK(run("%s %s", at("cub"), at("cub.pack")) == 1 && strstr(output, "labels.txt:3: '3' is not a number from 1 to 2"), "%s", output);
    put_text(at("cub/image_class_labels.txt"), "1 1\n2 1\n3 2\n4 2\n");
    CHECK(run("%s %s", at("cub"), at("cub.pack")) == 1 && strstr(output, "images.txt has 5 lines, image_class_labels.txt 4"), "%s", output);
    put_text(at("cub/classes.txt"), "1 001.A\n3 002.B\n");
    CHECK(run("%s %s", at("cub"), at("cub.pack")) == 1 && strstr(output, "classes.txt:2: this line should begin with 2"), "%s", output);
}

// Keys' cubic, a = -0.5, over `side` bytes `step` apart, the ends repeated: what output `to` of `size` is in one direction.
static void filter_taps(int to, int size, int side, int* index, double* weight, int* taps) {
    double scale = (double)side / size, wide = scale > 1 ? scale : 1, centre = (to + 0.5) * scale, sum = 0;
    *taps = 0;
    for (int i = (int)floor(centre - 2 * wide) - 1; i <= (int)ceil(centre + 2 * wide) + 1; i++) {
        double x = fabs((i + 0.5 - centre) / wide);
        double v = x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
        index[*taps] = i < 0 ? 0 : i >= side ? side - 1 : i;
        weight[(*taps)++] = v;
        sum += v;
    }
    for (int i = 0; i < *taps; i++) weight[i] /= sum;
}

static void test_resize(void) {
    const int cases[][3] = {{61, 40, 16}, {40, 77, 40}, {33, 32, 64}, {101, 100, 37}, {7, 8, 9}};   // width, height, size
    for (int k = 0; k < 5; k++) {
        int w = cases[k][0], h = cases[k][1], size = cases[k][2], side = w < h ? w : h, x0 = (w - side) / 2, y0 = (h - side) / 2;
        uint8_t* rgb = malloc((size_t)(w * h * 3));
        for (int i = 0; i < w * h * 3; i++) rgb[i] = (uint8_t)test_int(40, 215);
        directory_fresh(at("r"));
        directory_make(at("r/c"));
        put_plain(at("r/c/p.png"), w, h, 2, rgb);
        CHECK(run("%s %s --size %d", at("r"), at("r.pack"), size) == 0, "%s", output);
        Images d = images_open(at("r.pack"), NULL);
        double worst = 0;
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < size; y++)
                for (int x = 0; x < size; x++) {
                    int ix[64], iy[64], nx, ny;
                    double wx[64], wy[64], v = 0;
                    filter_taps(x, size, side, ix, wx, &nx);
                    filter_taps(y, size, side, iy, wy, &ny);
                    for (int a = 0; a < ny; a++)
                        for (int b = 0; b < nx; b++) v += wy[a] * wx[b] * rgb[3 * ((y0 + iy[a]) * w + x0 + ix[b]) + c];
                    v = v < 0 ? 0 : v > 255 ? 255 : v;
                    double e = fabs(v - d.train.image[0][(c * size + y) * size + x]);
                    if (e > worst) worst = e;
                }
        CHECK(worst < 1, "%d x %d to %d: off by %g", w, h, size, worst);
        images_close(&d);
        free(rgb);
    }
}

// The real photos: any number of threads gives the same bytes.
static void test_real(void) {
    const char* data = getenv("PREBR_TEST_DATA");
    char photos[400];
    snprintf(photos, sizeof photos, "%s/photos", data ? data : "");
    if (!data || access(photos, R_OK)) return;
    char plain_tool[512];
    strcpy(plain_tool, tool);
    for (int threads = 1; threads <= 3; threads++) {
        snprintf(tool, sizeof tool, "OMP_NUM_THREADS=%d %.400s", threads, plain_tool);
        CHECK(run("%s %s --size 64", photos, at("p%d.pack", threads)) == 0, "%s", output);
    }
    strcpy(tool, plain_tool);
    char command[1300];
    snprintf(command, sizeof command, "cmp %s %s && cmp %s %s", at("p1.pack"), at("p2.pack"), at("p1.pack"), at("p3.pack"));
    CHECK(system(command) == 0, "the number of threads changes the pack");
    Images d = images_open(at("p1.pack"), NULL);
    CHECK(d.train.count == 48 && d.test.count > 0 && d.classes == 2 && !strcmp(d.class_name[1], "bees"), "%d", d.train.count);
    images_close(&d);
}

int main(int argc, char** argv) {
    // Beside a sanitized test lies the sanitized tool; the other one lies in data/.
    snprintf(tool, sizeof tool, "%.*s../data/pack_images", (int)(strrchr(argv[0], '/') + 1 - argv[0]), argv[0]);
    if (access(tool, X_OK)) strcpy(tool, "data/pack_images");
    if (access(tool, X_OK)) {
        printf("%s: not there; make it first\n", tool);
        return 1;
    }
    if (!mkdtemp(base)) exit(1);
    test_modes();
    test_orientation();
    test_damage();
    test_folders();
    test_cub();
    test_resize();
    test_real();
    directory_fresh(base);
    rmdir(base);
    TEST_END();
}
