// Reading and writing safetensors. First the parser (bytes -> table of tensors, or what is wrong with them), then reading, then writing.
#include "safetensors.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST_HEADER = 100000000 };   // bytes; the format's own limit

// Every dtype of the format, with the bits of an element (some take less than a byte).
static const struct { const char* name; int dtype, bits; } dtypes[] = {
    {"F32", DTYPE_F32, 32}, {"F16", DTYPE_F16, 16}, {"BF16", DTYPE_BF16, 16}, {"F64", DTYPE_F64, 64}, {"I32", DTYPE_I32, 32},
    {"I64", DTYPE_I64, 64}, {"BOOL", DTYPE_OTHER, 8}, {"U8", DTYPE_OTHER, 8}, {"I8", DTYPE_OTHER, 8}, {"I16", DTYPE_OTHER, 16},
    {"U16", DTYPE_OTHER, 16}, {"U32", DTYPE_OTHER, 32}, {"U64", DTYPE_OTHER, 64}, {"C64", DTYPE_OTHER, 64},
    {"F8_E5M2", DTYPE_OTHER, 8}, {"F8_E4M3", DTYPE_OTHER, 8}, {"F8_E8M0", DTYPE_OTHER, 8}, {"F6_E2M3", DTYPE_OTHER, 6},
    {"F6_E3M2", DTYPE_OTHER, 6}, {"F4", DTYPE_OTHER, 4},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof *dtypes };

static const char* dtype_name(int dtype) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype && dtype != DTYPE_OTHER) return dtypes[i].name;
    return "another type";
}

// ---- the parser: no function here ends the program; NULL is success, else a fresh string says what is wrong ----

// A JSON number that is a whole number an offset can be.
static int whole_number(const cJSON* item, int64_t* value) {
    if (!cJSON_IsNumber(item)) return 0;
    double d = item->valuedouble;
    if (!(d >= 0 && d <= 9007199254740992.0 && d == floor(d))) return 0;   // beyond 2^53 a double skips whole numbers
    *value = (int64_t)d;
    return 1;
}

// One entry of the header into t: type, shape, and place within the `room` bytes at `data`.
static char* parse_tensor(Tensor* t, const cJSON* entry, const uint8_t* data, size_t room) {
    const char* name = entry->string;
    const cJSON* dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON* shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON* offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const cJSON* dimension;
    int64_t begin, end, bits;
    int kind = 0;

    t->name = strdup(name);
    if (!t->name) return strdup("out of memory");
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return format_string("tensor '%s': dtype, shape or data_offsets is missing or malformed", name);

    while (kind < DTYPE_COUNT && strcmp(dtypes[kind].name, dtype->valuestring)) kind++;
    if (kind == DTYPE_COUNT) return format_string("tensor '%s': unknown dtype '%.40s'", name, dtype->valuestring);
    t->dtype = dtypes[kind].dtype;

    t->elements = 1;
    cJSON_ArrayForEach(dimension, shape) {
        if (t->ndim == 8) return format_string("tensor '%s': more than 8 dimensions", name);
        if (!whole_number(dimension, &t->shape[t->ndim])) return format_string("tensor '%s': dimension %d is not a size", name, t->ndim);
        if (__builtin_mul_overflow(t->elements, t->shape[t->ndim++], &t->elements))
            return format_string("tensor '%s': its shape has more elements than fit in 64 bits", name);
    }
    if (__builtin_mul_overflow(t->elements, (int64_t)dtypes[kind].bits, &bits) || bits % 8)
        return format_string("tensor '%s': its shape is not a possible number of bytes", name);

    if (!whole_number(offsets->child, &begin) || !whole_number(offsets->child->next, &end) || begin > end)
        return format_string("tensor '%s': its data_offsets are not a range", name);
    if ((uint64_t)end > room)
        return format_string("tensor '%s' ends at byte %lld of the data, but only %zu bytes are there: the file is truncated", name,
                             (long long)end, room);
    if (end - begin != bits / 8)
        return format_string("tensor '%s': dtype and shape need %lld bytes, data_offsets give %lld", name, (long long)(bits / 8),
                             (long long)(end - begin));
    t->data = data + begin;
    t->bytes = (size_t)(end - begin);
    return NULL;
}

static int by_place(const void* a, const void* b) {
    const Tensor *x = *(Tensor* const*)a, *y = *(Tensor* const*)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void* a, const void* b) { return strcmp((*(Tensor* const*)a)->name, (*(Tensor* const*)b)->name); }

// The tensors must lie one after the other and fill the data, and no name may come twice.
static char* check_table(const Safetensors* s, const uint8_t* data, size_t room) {
    Tensor** order = calloc(s->count ? s->count : 1, sizeof *order);
    if (!order) return strdup("out of memory");
    char* wrong = NULL;
    const uint8_t* end = data;

    for (int i = 0; i < s->count; i++) order[i] = &s->tensors[i];
    qsort(order, s->count, sizeof *order, by_place);
    for (int i = 0; i < s->count && !wrong; i++) {
        if (order[i]->data < end) wrong = format_string("tensors '%s' and '%s' overlap", order[i - 1]->name, order[i]->name);
        else if (order[i]->data > end)
            wrong = format_string("%td bytes before tensor '%s' belong to no tensor", order[i]->data - end, order[i]->name);
        end = order[i]->data + order[i]->bytes;
    }
    if (!wrong && end != data + room) wrong = format_string("%td bytes after the last tensor belong to no tensor", data + room - end);

    qsort(order, s->count, sizeof *order, by_name);
    for (int i = 1; i < s->count && !wrong; i++)
        if (!strcmp(order[i - 1]->name, order[i]->name)) wrong = format_string("tensor '%s' is there twice", order[i]->name);
    free(order);
    return wrong;
}

static char* parse_header(Safetensors* s, const cJSON* header, const uint8_t* data, size_t room) {
    const cJSON* entry;
    char* wrong = NULL;
    s->tensors = calloc((size_t)cJSON_GetArraySize(header) + 1, sizeof *s->tensors);
    if (!s->tensors) return strdup("out of memory");
    cJSON_ArrayForEach(entry, header) {
        if (!strcmp(entry->string, "__metadata__")) continue;
        if ((wrong = parse_tensor(&s->tensors[s->count++], entry, data, room))) return wrong;
    }
    return check_table(s, data, room);
}

char* safetensors_parse(Safetensors* s, const uint8_t* bytes, size_t n) {
    uint64_t length = 0;
    const char *text, *end;
    memset(s, 0, sizeof *s);
    if (n < 8) return format_string("it has %zu bytes, not even the length of a header", n);
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (length > LARGEST_HEADER) return format_string("its header would have %llu bytes: not a safetensors file", (unsigned long long)length);
    if (length > n - 8)
        return format_string("its header should have %llu bytes, but only %zu are there: the file is truncated", (unsigned long long)length, n - 8);
    text = (const char*)bytes + 8;
    if (length == 0 || text[0] != '{') return strdup("its header does not begin with '{': not a safetensors file");

    cJSON* header = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    if (!header) return format_string("its header is not valid JSON at byte %td", end ? end - text : 0);
    while (end < text + length && (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t')) end++;
    char* wrong = end < text + length ? format_string("its header has something after the JSON, at byte %td", end - text)
                                      : parse_header(s, header, bytes + 8 + length, n - 8 - length);
    cJSON_Delete(header);
    return wrong;
}

// ---- reading ----

Safetensors safetensors_open(const char* path) {
    Safetensors s;
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status)) trouble("%s: cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode)) trouble("%s: is not a file; name the safetensors file itself", path);
    size_t n = (size_t)status.st_size;
    void* map = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
    if (map == MAP_FAILED) trouble("%s: cannot be mapped: %s", path, strerror(errno));
    close(file);

    char* wrong = safetensors_parse(&s, map, n);
    if (wrong) trouble("%s: %s; download or save it again", path, wrong);
    s.path = format_string("%s", path);
    s.map = map;
    s.map_bytes = n;
    return s;
}

void safetensors_close(Safetensors* s) {
    for (int i = 0; i < s->count; i++) free(s->tensors[i].name);
    free(s->tensors);
    free(s->path);
    if (s->map) munmap(s->map, s->map_bytes);
    memset(s, 0, sizeof *s);
}

Tensor* safetensors_find(const Safetensors* s, const char* name) {
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->tensors[i].name, name)) return &s->tensors[i];
    return NULL;
}

// n little-endian elements to float. 1 when all are finite: exponent bits all ones are collected with OR, so that the loops stay
// free of branches and vectorise.
static int convert_f32(float* out, const uint8_t* in, int n) {
    uint32_t bad = 0;
    memcpy(out, in, (size_t)n * 4);
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &out[i], 4);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

static int convert_bf16(float* out, const uint8_t* in, int n) {
    uint32_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, in + 2 * (size_t)i, 2);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&out[i], &bits, 4);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

// F16 is sign 1, exponent 5 (bias 15), mantissa 10. A normal number only moves its exponent to bias 127 (infinity and NaN to 255); a
// subnormal one is mantissa * 2^-24, computed as that (no float subnormal on the way: the CPU may be set to flush them).
static int convert_f16(float* out, const uint8_t* in, int n) {
    uint32_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, in + 2 * (size_t)i, 2);
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
        uint32_t normal = (rest << 13) + (rest < 0x7c00 ? (127 - 15) << 23 : (255 - 31) << 23), subnormal, bits;
        float small = (float)(int)rest * 0x1p-24f;
        memcpy(&subnormal, &small, 4);
        bits = sign | (rest < 0x400 ? subnormal : normal);
        memcpy(&out[i], &bits, 4);
        bad |= rest >= 0x7c00;
    }
    return !bad;
}

// Gives the whole pages of a range back to the system: what has been copied need not count as this process's memory any more.
static void drop_pages(const Safetensors* s, const uint8_t* from, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)from + page - 1) / page * page, end = ((uintptr_t)from + bytes) / page * page;
    if (s->map && begin < end) madvise((void*)begin, end - begin, MADV_DONTNEED);
}

void safetensors_copy(const Safetensors* s, const Tensor* t, float* out, int64_t from, int64_t n) {
    enum { PIECE = 4096, PAGES = 1 << 20 };   // elements: a piece stays in the first cache between its loops; pages go in larger steps
    int (*convert)(float*, const uint8_t*, int) = t->dtype == DTYPE_F32 ? convert_f32 : t->dtype == DTYPE_BF16 ? convert_bf16 : convert_f16;
    int64_t size = t->dtype == DTYPE_F32 ? 4 : 2;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        trouble("%s: tensor '%s' is %s; only F32, F16 and BF16 weights can be read: save the model in one of them", s->path, t->name,
                dtype_name(t->dtype));
    if (from < 0 || n < 0 || from > t->elements || n > t->elements - from)
        trouble("%s: tensor '%s' has %lld elements, too few for this model", s->path, t->name, (long long)t->elements);

    for (int64_t done = 0; done < n; done += PIECE) {
        int count = (int)(n - done < PIECE ? n - done : PIECE);
        const uint8_t* in = t->data + (from + done) * size;
        if (!convert(out + done, in, count)) {
            int i = 0;
            while (isfinite(out[done + i])) i++;
            trouble("%s: tensor '%s' has %s at element %lld; this checkpoint is damaged, use an earlier or another one", s->path, t->name,
                    isnan(out[done + i]) ? "NaN" : "infinity", (long long)(from + done + i));
        }
        if ((done + count) % PAGES == 0 || done + count == n) {
            int64_t start = (done + count - 1) / PAGES * PAGES;
            drop_pages(s, t->data + (from + start) * size, (size_t)((done + count - start) * size));
        }
    }
}

void safetensors_copy_raw(const Safetensors* s, const char* name, int dtype, int64_t elements, void* out) {
    Tensor* t = safetensors_find(s, name);
    if (!t) trouble("%s: there is no tensor '%s'; the file does not belong to this run", s->path, name);
    if (t->dtype != dtype || t->elements != elements)
        trouble("%s: tensor '%s' is %s with %lld elements where this run has %s with %lld; the file does not belong to it", s->path, name,
                dtype_name(t->dtype), (long long)t->elements, dtype_name(dtype), (long long)elements);
    memcpy(out, t->data, t->bytes);
    drop_pages(s, t->data, t->bytes);
    t->used = 1;
}

// ---- writing ----

struct SafetensorsWriter {
    char *path, *temporary;
    FILE* file;
    cJSON* header;           // until the first data
    size_t declared, written;   // bytes of data
};

// What was written so far is of no use: it goes, and the old file under the real name stays as it was.
NORETURN static void writing_failed(const SafetensorsWriter* w, int error) {
    unlink(w->temporary);
    trouble("%s: cannot be written: %s; what was there before is unchanged: make room or name another directory", w->path, strerror(error));
}

SafetensorsWriter* safetensors_create(const char* path) {
    SafetensorsWriter* w = allocate(1, sizeof *w);
    w->path = format_string("%s", path);
    w->temporary = format_string("%s.tmp", path);
    w->header = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(w->header, "__metadata__"), "format", "pt");   // transformers insists on it
    w->file = fopen(w->temporary, "wbe");
    if (!w->file) writing_failed(w, errno);
    return w;
}

void safetensors_declare(SafetensorsWriter* w, const char* name, int dtype, int ndim, const int64_t* shape) {
    int kind = 0;
    while (dtypes[kind].dtype != dtype) kind++;
    cJSON* entry = cJSON_AddObjectToObject(w->header, name);
    cJSON_AddStringToObject(entry, "dtype", dtypes[kind].name);
    cJSON* list = cJSON_AddArrayToObject(entry, "shape");
    size_t bytes = (size_t)dtypes[kind].bits / 8;
    for (int i = 0; i < ndim; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)shape[i]));
        bytes *= (size_t)shape[i];
    }
    cJSON* offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)w->declared));
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(w->declared += bytes)));
}

// The header, padded with blanks so that the data begins at a multiple of 8.
static void write_header(SafetensorsWriter* w) {
    char* text = cJSON_PrintUnformatted(w->header);
    if (!text) writing_failed(w, ENOMEM);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    if (fwrite(length, 1, 8, w->file) < 8 || fprintf(w->file, "%s%*s", text, (int)(padded - n), "") < 0) writing_failed(w, errno);
    free(text);
    cJSON_Delete(w->header);
    w->header = NULL;
}

void safetensors_write(SafetensorsWriter* w, const void* data, size_t bytes) {
    if (w->header) write_header(w);
    if (fwrite(data, 1, bytes, w->file) < bytes) writing_failed(w, errno);
    w->written += bytes;
}

// Data first, then the name, then the directory entry: after a crash at any point the name stands for a whole file.
void safetensors_finish(SafetensorsWriter* w) {
    if (w->header) write_header(w);
    if (w->written != w->declared) {
        unlink(w->temporary);
        trouble("%s: %zu bytes were declared but %zu written: this is an error in the program", w->path, w->declared, w->written);
    }
    if (fflush(w->file) || fsync(fileno(w->file))) writing_failed(w, errno);
    if (fclose(w->file) || rename(w->temporary, w->path)) writing_failed(w, errno);

    char* slash = strrchr(w->path, '/');
    if (slash) slash[1] = 0;
    int directory = open(slash ? w->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
        fsync(directory);
        close(directory);
    }
    free(w->path);
    free(w->temporary);
    free(w);
}
