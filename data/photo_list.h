// Which photos a directory holds, of which class, for training or for testing. Three layouts, found by looking:
//
//   DIR/<class>/...                     all for training
//   DIR/train/<class>/..., DIR/val/...  (or DIR/test/...)
//   CUB-200-2011                        images.txt, image_class_labels.txt, train_test_split.txt, classes.txt, images/
//
// Classes and photos come in the byte order of their names (CUB: of their numbers). Names that begin with a dot are passed over.
#ifndef PREBR_PHOTO_LIST_H
#define PREBR_PHOTO_LIST_H

#include "trouble.h"

C_BEGIN

typedef struct {
    char* path;
    int label;
} PhotoEntry;

typedef struct {
    PhotoEntry* entry;      // [train + test], train first
    int train, test;
    int classes;
    char** class_name;      // [classes]
} PhotoList;

// test_dir: class sub-folders to test on, or NULL for what DIR itself holds. A class that training does not know, one without a photo,
// and CUB files that do not fit together are trouble.
PhotoList photo_list(const char* dir, const char* test_dir);
void photo_list_free(PhotoList* l);

C_END

#endif
