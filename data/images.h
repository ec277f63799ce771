// Labelled images on disk, as the trainers see them: a train and a test split of equal-sized planar uint8 images.
//
// Read as they are downloaded: CIFAR-10 and CIFAR-100 binary directories, Fashion-MNIST / MNIST IDX files (.gz or plain; one channel),
// and image packs made by data/pack_images. Which one a path is, is found by looking at it. CIFAR and packs are mapped, IDX is
// unpacked into memory.
#ifndef PREBR_IMAGES_H
#define PREBR_IMAGES_H

#include <stdint.h>
#include "trouble.h"

C_BEGIN

typedef struct {
    int count;
    const uint8_t* const* image;   // [count] pointers to channels x height x width bytes
    const int32_t* label;          // [count]
} Split;

typedef struct {
    char* path;
    const char* kind;              // "CIFAR-10", "CIFAR-100", "IDX", "image pack"
    int channels, height, width;   // channels 1 or 3
    int classes;
    char** class_name;             // [classes]; "0", "1", ... where the files name none
    Split train, test;             // test.count may be 0
    struct Holding* holding;       // the mappings and memory behind the images
} Images;

// Ends the program with file, record and cause where anything is wrong (truncated file, label outside the classes, ...).
// keep_classes: NULL for all, or a list such as "0-4,7": only those classes stay, renumbered in that order.
Images images_open(const char* path, const char* keep_classes);
void images_close(Images* d);
// A number that says whether images are still the same: of sizes, classes, labels and the first bytes of every image.
uint64_t images_hash(const Images* d);

// Image pack, little-endian:
//   "prebrimg" (8 bytes), u32 version 1, u32 channels, u32 height, u32 width, u32 classes, u32 train count, u32 test count,
//   u32 bytes of names; names (UTF-8, each ended by '\n'); i32 labels [train + test]; then the images, planar, train first.

C_END

#endif
