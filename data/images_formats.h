// Inside images.c and the reader of each format; nobody else includes this.
#ifndef PREBR_IMAGES_FORMATS_H
#define PREBR_IMAGES_FORMATS_H

#include "images.h"

// Each fills d (all but path) from d->path, which is known to be of its kind.
void images_read_cifar(Images* d, int classes);   // 10 or 100
void images_read_idx(Images* d);
void images_read_pack(Images* d);

// ---- what they share ----

// DIR/name of d's directory, a fresh string, or NULL where there is no such file.
char* images_file(const Images* d, const char* name);
// A whole file, mapped until images_close. An empty one is trouble.
const uint8_t* images_map(Images* d, const char* path, size_t* bytes);
// Memory that images_close frees.
void images_hold(Images* d, void* memory);
// Appends one image. Trouble where the label is outside the classes, with file and record number (from 0).
void split_add(Split* s, const uint8_t* image, int64_t label, int classes, const char* path, int64_t record);
// Names from lines of text, exactly d->classes of them (blank lines at the end do not count); text NULL: "0", "1", ...
void images_name_classes(Images* d, const char* path, const char* text, size_t bytes);

#endif
