// One photo file as planar RGB bytes: JPEG, PNG, BMP or PNM, of any mode, turned upright.
//
// Grey becomes three equal channels, 16 bits become 8, CMYK and palettes become RGB, alpha is laid over white, and a JPEG's EXIF
// orientation is carried out.
#ifndef PREBR_PHOTO_H
#define PREBR_PHOTO_H

#include <stdint.h>
#include "trouble.h"

C_BEGIN

typedef struct {
    int width, height;
    uint8_t* rgb;       // [3, height, width]
} Photo;

// Returns NULL, or why the file cannot be read (a text that lasts until the thread's next call). May run in several threads.
const char* photo_read(const char* path, Photo* p);
void photo_free(Photo* p);

C_END

#endif
