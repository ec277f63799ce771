// The safetensors format, read and written.
//
//   8 bytes   little-endian length n of the header
//   n bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
//   the rest  tensor data, row-major; offsets count from here
//
// A file is mapped, not read: opening costs nothing, and a tensor's pages come in when it is copied out. Nothing in the header is
// trusted: every length, offset and product of a shape is checked against the file before use.
#ifndef PREBR_SAFETENSORS_H
#define PREBR_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "trouble.h"

C_BEGIN

enum { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_OTHER };   // OTHER: known to the format, not to us

typedef struct {
    char* name;
    int dtype;
    int ndim;
    int64_t shape[8];
    int64_t elements;
    const uint8_t* data;   // inside the mapping; not aligned
    size_t bytes;
    int used;              // set by whoever loads it, so that what is left over can be reported
} Tensor;

typedef struct {
    char* path;
    Tensor* tensors;       // in the file's order of names
    int count;
    uint8_t* map;
    size_t map_bytes;
} Safetensors;

// Opens path; ends the program (trouble) with file, place and cause where anything is wrong.
Safetensors safetensors_open(const char* path);
void safetensors_close(Safetensors* s);
// The parser alone, over n bytes that outlive s: fills s and returns NULL, or returns what is wrong (free() it; s holds what came before
// and is to be closed either way). Never ends the program, never reads outside the bytes; what the fuzzer feeds.
char* safetensors_parse(Safetensors* s, const uint8_t* bytes, size_t n);
// The tensor of that name or NULL.
Tensor* safetensors_find(const Safetensors* s, const char* name);
// Copies elements [from, from + n) of an F32, F16 or BF16 tensor as float. NaN or infinity is trouble, with the tensor's name and index.
void safetensors_copy(const Safetensors* s, const Tensor* t, float* out, int64_t from, int64_t n);

// Copies a whole tensor as it is, after checking its dtype and number of elements (trouble else); for run states.
void safetensors_copy_raw(const Safetensors* s, const char* name, int dtype, int64_t elements, void* out);

// Writing: declare all tensors in order, then give their data in the same order (in pieces if wanted), then finish (sync and rename).
// The file appears under its name only when it is complete.
typedef struct SafetensorsWriter SafetensorsWriter;
SafetensorsWriter* safetensors_create(const char* path);
void safetensors_declare(SafetensorsWriter* w, const char* name, int dtype, int ndim, const int64_t* shape);
void safetensors_write(SafetensorsWriter* w, const void* data, size_t bytes);
void safetensors_finish(SafetensorsWriter* w);

C_END

#endif
