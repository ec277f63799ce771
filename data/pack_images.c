// data/pack_images DIR OUT: decodes the photos of a directory once and for all into an image pack (images.h has the format).
//
// Each photo's central square is resized to SIZE x SIZE with the cubic filter that kernels/image.c and Pillow use as "bicubic".
#include "options.h"
#include "photo.h"
#include "photo_list.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STB_IMAGE_RESIZE_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#include <stb/stb_image_resize.h>
#pragma GCC diagnostic pop

enum { CHUNK = 64, HEADER_BYTES = 40 };   // photos decoded at a time

static const char* in;
static const char* out;
static const char* test_dir;
static int size = 256;
static int skip_bad;

static Option options[] = {
    {.kind = OPTION_GROUP, .name = "Files"},
    {.kind = OPTION_ARGUMENT, .name = "dir", .value = &in, .argument = "DIR",
     .help = "class sub-folders, or train/ and val/ (or test/) with class sub-folders each, or CUB-200-2011"},
    {.kind = OPTION_ARGUMENT, .name = "out", .value = &out, .argument = "OUT", .help = "the image pack"},
    {.kind = OPTION_TEXT, .name = "val", .value = &test_dir, .argument = "DIR", .help = "class sub-folders to test on"},
    {.kind = OPTION_FLAG, .name = "skip-bad", .value = &skip_bad, .help = "leave out photos that cannot be read, naming each"},
    {.kind = OPTION_GROUP, .name = "Images"},
    {.kind = OPTION_INT, .name = "size", .letter = 's', .value = &size, .argument = "N",
     .help = "side of the stored squares in pixels", .least = 1, .most = 4096},
    {.kind = OPTION_END},
};

// The central square of p, resized: square [3, size, size].
static void resize_square(const Photo* p, uint8_t* square) {
    int side = p->width < p->height ? p->width : p->height;
    const uint8_t* corner = p->rgb + (size_t)((p->height - side) / 2) * (size_t)p->width + (p->width - side) / 2;
    size_t plane = (size_t)p->width * (size_t)p->height;
    for (int c = 0; c < 3; c++)
        if (!stbir_resize_uint8_generic(corner + c * plane, side, side, p->width, square + (size_t)c * size * size, size, size,
                                        size, 1, STBIR_ALPHA_CHANNEL_NONE, 0, STBIR_EDGE_CLAMP, STBIR_FILTER_CATMULLROM,
                                        STBIR_COLORSPACE_LINEAR, NULL))
            trouble("out of memory for resizing %d x %d pixels", side, side);
}

// NULL, or a fresh text that says why not.
static char* read_square(const char* path, uint8_t* square) {
    Photo p;
    const char* why = photo_read(path, &p);
    if (why) return format_string("%s", why);
    resize_square(&p, square);
    photo_free(&p);
    return NULL;
}

// Header, names, and labels (entries whose path is NULL are left out), from the beginning of the file on.
static void write_front(FILE* f, const PhotoList* l, int train, int test) {
    uint32_t names = 0;
    for (int i = 0; i < l->classes; i++) names += (uint32_t)strlen(l->class_name[i]) + 1;
    uint32_t numbers[8] = {1, 3, (uint32_t)size, (uint32_t)size, (uint32_t)l->classes, (uint32_t)train, (uint32_t)test, names};
    rewind(f);
    fwrite("prebrimg", 1, 8, f);
    fwrite(numbers, 4, 8, f);
    for (int i = 0; i < l->classes; i++) fprintf(f, "%s\n", l->class_name[i]);
    for (int i = 0; i < l->train + l->test; i++)
        if (l->entry[i].path) fwrite(&(int32_t){l->entry[i].label}, 4, 1, f);
}

// Moves everything from `from` on to the front by `by` bytes and cuts the file there.
static void close_gap(FILE* f, off_t from, off_t by) {
    static uint8_t buffer[1 << 20];
    size_t got;
    for (;; from += (off_t)got) {
        fseeko(f, from, SEEK_SET);
        got = fread(buffer, 1, sizeof buffer, f);
        if (got == 0) break;
        fseeko(f, from - by, SEEK_SET);
        fwrite(buffer, 1, got, f);
    }
    if (fflush(f) || ftruncate(fileno(f), from - by)) trouble("%s: cannot shorten the file", out);
}

// Decodes all photos in order and writes their squares; the path of one left out becomes NULL. Returns how many there are.
static int write_squares(FILE* f, PhotoList* l, uint8_t* squares) {
    int count = l->train + l->test, left_out = 0;
    size_t bytes = (size_t)3 * size * size;
    for (int first = 0; first < count && !ferror(f); first += CHUNK) {   // file_finish reports a write that failed
        int n = count - first < CHUNK ? count - first : CHUNK;
        char* why[CHUNK];
        #pragma omp parallel for schedule(dynamic)
        for (int i = 0; i < n; i++) why[i] = read_square(l->entry[first + i].path, squares + (size_t)i * bytes);
        for (int i = 0; i < n; i++) {
            PhotoEntry* e = &l->entry[first + i];
            if (!why[i]) {
                fwrite(squares + (size_t)i * bytes, 1, bytes, f);
                continue;
            }
            if (!skip_bad) file_abandon(f, out);
            if (!skip_bad) trouble("%s: %s; --skip-bad leaves such photos out", e->path, why[i]);
            warn("%s: %s; left out", e->path, why[i]);
            left_out++;
            free(why[i]);
            free(e->path);
            e->path = NULL;
        }
    }
    return left_out;
}

static int count_kept(const PhotoEntry* e, int n) {
    int kept = 0;
    for (int i = 0; i < n; i++) kept += e[i].path != NULL;
    return kept;
}

int main(int argc, char** argv) {
    options_parse(options, argc, argv, "data/pack_images DIR OUT [OPTION]...", "pack_images (prebr) 0.1");
    PhotoList l = photo_list(in, test_dir);
    FILE* f = file_create(out);
    uint8_t* squares = allocate((size_t)CHUNK * 3, (size_t)size * (size_t)size);
    write_front(f, &l, l.train, l.test);
    off_t images_at = ftello(f);
    int left_out = write_squares(f, &l, squares);
    int train = count_kept(l.entry, l.train), test = count_kept(l.entry + l.train, l.test);
    if (train == 0) {
        file_abandon(f, out);
        trouble("%s: none of the photos to train on can be read", in);
    }
    if (left_out) {   // the front is shorter than was reserved
        close_gap(f, images_at, 4 * (off_t)left_out);
        write_front(f, &l, train, test);
        fseeko(f, 0, SEEK_END);
    }
    char bytes[32];
    human_bytes((size_t)ftello(f), bytes);
    file_finish(f, out);
    printf("%s: %d photos to train and %d to test on, %d classes, %d x %d pixels, %s", out, train, test, l.classes, size, size, bytes);
    if (left_out) printf("; %d left out", left_out);
    printf("\n");
    free(squares);
    photo_list_free(&l);
    return 0;
}
