// Decoding is stb_image's; what it leaves to its callers is here: orientation, alpha, and noticing damage.
#include "photo.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STB_IMAGE_IMPLEMENTATION
#define STBI_NO_TGA   // has no signature: any bytes may pass for it
#define STBI_NO_GIF   // no format of photos, and its reader has open faults
#define STBI_NO_PSD
#define STBI_NO_HDR
#define STBI_NO_PIC
#define STBI_FAILURE_USERMSG
#define STBI_MAX_DIMENSIONS 65536
#include <stb/stb_image.h>

// ---- what a JPEG says beside its pixels ----

static unsigned number(const uint8_t* p, int bytes, int little) {
    unsigned v = 0;
    for (int i = 0; i < bytes; i++) v |= (unsigned)p[i] << 8 * (little ? i : bytes - 1 - i);
    return v;
}

// The orientation (1 .. 8) in an EXIF block: TIFF header, then the first directory of 12-byte entries (tag, type, count, value).
static int exif_orientation(const uint8_t* p, size_t n) {
    if (n < 14 || memcmp(p, "Exif\0", 6)) return 1;
    p += 6;
    n -= 6;
    int little = p[0] == 'I';
    size_t at = number(p + 4, 4, little);
    if (at > n - 2) return 1;
    unsigned entries = number(p + at, 2, little);
    at += 2;
    for (unsigned i = 0; i < entries && at + 12 <= n; i++, at += 12) {
        if (number(p + at, 2, little) != 0x0112) continue;
        unsigned value = number(p + at + 8, 2, little);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

// 1 where the tables of a DHT segment (class and number, 16 counts, that many values) are within it and no larger than 256, which
// stb_image 2.27 takes for granted.
static int huffman_tables_fit(const uint8_t* p, size_t n) {
    while (n > 0) {
        size_t values = 0;
        for (int i = 1; i <= 16 && n >= 17; i++) values += p[i];
        if (n < 17 || values > 256 || n - 17 < values) return 0;
        p += 17 + values;
        n -= 17 + values;
    }
    return 1;
}

// Walks the markers from the first to the last: 0xff, a byte that is neither 0 (compressed data), 0xff (padding) nor a restart
// (d0 .. d7), then two bytes of length and the segment. Returns NULL and the orientation, or why stb_image should not see this file:
// it would, for one, fill up with grey what is cut off.
static const char* jpeg_walk(const uint8_t* file, size_t n, int* orientation) {
    *orientation = 1;
    for (size_t at = 2; at + 1 < n; at++) {
        uint8_t marker = file[at + 1];
        if (file[at] != 0xff || marker == 0 || marker == 0xff || (marker >= 0xd0 && marker <= 0xd7)) continue;
        if (marker == 0xd9) return NULL;   // the end
        size_t length = at + 4 <= n ? number(file + at + 2, 2, 0) : 0;
        if (length < 2 || at + 2 + length > n) break;
        const uint8_t* segment = file + at + 4;
        if (marker == 0xc4 && !huffman_tables_fit(segment, length - 2)) return "its Huffman tables are damaged";
        if (marker == 0xe1 && *orientation == 1) *orientation = exif_orientation(segment, length - 2);
        at += 1 + length;
    }
    return "the file is cut off";
}

// ---- from what stb_image gives to planar RGB ----

// pixels [h, w, n], n: 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA. An orientation is a mirroring of x, of y and a swap of both.
static void upright(Photo* p, const uint8_t* pixels, int w, int h, int n, int orientation) {
    int mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    int mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    int swap = orientation >= 5;
    ptrdiff_t along_x = mirror_x ? -n : n, along_y = (ptrdiff_t)(mirror_y ? -w : w) * n;
    const uint8_t* corner = pixels + (mirror_x ? (ptrdiff_t)(w - 1) * n : 0) + (mirror_y ? (ptrdiff_t)(h - 1) * w * n : 0);
    p->width = swap ? h : w;
    p->height = swap ? w : h;
    size_t plane = (size_t)w * (size_t)h, to = 0;
    p->rgb = allocate(plane, 3);
    for (int y = 0; y < p->height; y++) {
        const uint8_t* from = corner + y * (swap ? along_x : along_y);
        for (int x = 0; x < p->width; x++, to++, from += swap ? along_y : along_x) {
            int alpha = n == 2 ? from[1] : n == 4 ? from[3] : 255;
            for (int c = 0; c < 3; c++) {
                int value = from[n < 3 ? 0 : c];
                p->rgb[c * plane + to] = (uint8_t)((value * alpha + 255 * (255 - alpha) + 127) / 255);   // over white
            }
        }
    }
}

// The whole file, or NULL with the reason in *why.
static uint8_t* read_file(const char* path, size_t* bytes, const char** why) {
    FILE* f = fopen(path, "rb");
    struct stat s;
    uint8_t* data = NULL;
    if (!f || fstat(fileno(f), &s)) {
        *why = strerror(errno);
    } else if (!S_ISREG(s.st_mode) || s.st_size > INT_MAX) {
        *why = S_ISREG(s.st_mode) ? "more than 2 GiB" : "is not a file";
    } else {
        data = allocate((size_t)s.st_size, 1);
        *bytes = fread(data, 1, (size_t)s.st_size, f);   // a read error looks like a file that is cut off
    }
    if (f) fclose(f);
    return data;
}

const char* photo_read(const char* path, Photo* p) {
    *p = (Photo){0};
    const char* why = NULL;
    size_t bytes = 0;
    uint8_t* file = read_file(path, &bytes, &why);
    if (!file) return why;
    int orientation = 1, w, h, n;
    if (bytes > 2 && file[0] == 0xff && file[1] == 0xd8) why = jpeg_walk(file, bytes, &orientation);
    uint8_t* pixels = why ? NULL : stbi_load_from_memory(file, (int)bytes, &w, &h, &n, 0);
    free(file);
    if (!pixels) return why ? why : stbi_failure_reason();
    upright(p, pixels, w, h, n, orientation);
    stbi_image_free(pixels);
    return NULL;
}

void photo_free(Photo* p) {
    free(p->rgb);
    *p = (Photo){0};
}
