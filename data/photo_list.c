// Walks class folders, or reads CUB's four lists.
#include "photo_list.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int is_directory(const char* path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static int not_hidden(const struct dirent* e) { return e->d_name[0] != '.'; }
static int by_name(const struct dirent** a, const struct dirent** b) { return strcmp((*a)->d_name, (*b)->d_name); }

// The sorted paths in dir, fresh, ended by NULL. only_directories: those of sub-folders.
static char** paths_in(const char* dir, int only_directories) {
    struct dirent** entry;
    int n = scandir(dir, &entry, not_hidden, by_name), kept = 0;
    if (n < 0) trouble("%s: %s", dir, strerror(errno));
    char** path = allocate((size_t)n + 1, sizeof *path);
    for (int i = 0; i < n; i++) {
        path[kept] = format_string("%s/%s", dir, entry[i]->d_name);
        if (!only_directories || is_directory(path[kept])) kept++;
        else free(path[kept]);
        free(entry[i]);
    }
    path[kept] = NULL;
    free(entry);
    return path;
}

static void free_all(char** text) {
    for (char** t = text; *t; t++) free(*t);
    free(text);
}

static const char* last_part(const char* path) { return strrchr(path, '/') + 1; }

// ---- class folders ----

// Appends an entry; takes the path over. Full at every power of two.
static void add(PhotoList* l, int* count, char* path, int label) {
    size_t n = (size_t)(l->train + l->test);
    if (n == INT_MAX / 2) trouble("%s: too many photos", path);
    if ((n & (n - 1)) == 0) {
        l->entry = realloc(l->entry, (n ? 2 * n : 1) * sizeof *l->entry);
        if (!l->entry) trouble("out of memory for a list of %zu photos", n);
    }
    l->entry[n] = (PhotoEntry){path, label};
    ++*count;
}

static void add_tree(PhotoList* l, int* count, const char* dir, int label) {
    char** path = paths_in(dir, 0);
    for (char** p = path; *p; p++) {
        if (is_directory(*p)) {
            add_tree(l, count, *p, label);
            free(*p);
        } else {
            add(l, count, *p, label);
        }
    }
    free(path);
}

static int find_class(const PhotoList* l, const char* name) {
    for (int i = 0; i < l->classes; i++)
        if (strcmp(l->class_name[i], name) == 0) return i;
    return -1;
}

static void read_train_folders(PhotoList* l, const char* dir) {
    char** folder = paths_in(dir, 1);
    while (folder[l->classes]) l->classes++;
    if (l->classes == 0) trouble("%s: there is no sub-folder in it; each class needs one", dir);
    l->class_name = allocate((size_t)l->classes, sizeof *l->class_name);
    for (int i = 0; i < l->classes; i++) {
        int before = l->train;
        l->class_name[i] = format_string("%s", last_part(folder[i]));
        if (strchr(l->class_name[i], '\n')) trouble("%s: a class cannot have a line break in its name", folder[i]);
        add_tree(l, &l->train, folder[i], i);
        if (l->train == before) trouble("%s: there is no photo of this class", folder[i]);
    }
    free_all(folder);
}

static void read_test_folders(PhotoList* l, const char* dir) {
    char** folder = paths_in(dir, 1);
    if (!folder[0]) trouble("%s: there is no sub-folder in it; each class needs one", dir);
    for (char** f = folder; *f; f++) {
        int label = find_class(l, last_part(*f));
        if (label < 0) trouble("%s: training knows no class of this name", *f);
        add_tree(l, &l->test, *f, label);
    }
    free_all(folder);
}

// ---- CUB-200-2011 ----

// The texts behind the numbers of lines "1 text", "2 text", ...; fresh, ended by NULL.
static char** numbered_lines(const char* dir, const char* name, int* count) {
    char* path = format_string("%s/%s", dir, name);
    FILE* f = fopen(path, "r");
    if (!f) trouble("%s: %s", path, strerror(errno));
    char *line = NULL, **text = NULL;
    size_t room = 0;
    int n = 0;
    for (; getline(&line, &room, f) > 0; n++) {
        char* end;
        line[strcspn(line, "\r\n")] = 0;
        if (strtol(line, &end, 10) != n + 1 || *end != ' ')
            trouble("%s:%d: this line should begin with %d and a space", path, n + 1, n + 1);
        text = realloc(text, ((size_t)n + 2) * sizeof *text);
        if (!text) trouble("%s: out of memory after %d lines", path, n);
        text[n] = format_string("%s", end + 1);
        text[n + 1] = NULL;
    }
    if (n == 0) trouble("%s: is empty", path);
    fclose(f);
    free(line);
    free(path);
    *count = n;
    return text;
}

// A whole number from least to most, that line's only word.
static int parse_number(const char* text, const char* dir, const char* name, int line, int least, int most) {
    char* end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < least || v > most)
        trouble("%s/%s:%d: '%s' is not a number from %d to %d", dir, name, line, text, least, most);
    return (int)v;
}

static void read_cub(PhotoList* l, const char* dir) {
    int n, labels, splits;
    char** image = numbered_lines(dir, "images.txt", &n);
    char** label = numbered_lines(dir, "image_class_labels.txt", &labels);
    char** split = numbered_lines(dir, "train_test_split.txt", &splits);
    l->class_name = numbered_lines(dir, "classes.txt", &l->classes);
    if (labels != n) trouble("%s: images.txt has %d lines, image_class_labels.txt %d", dir, n, labels);
    if (splits != n) trouble("%s: images.txt has %d lines, train_test_split.txt %d", dir, n, splits);
    for (int train = 1; train >= 0; train--)
        for (int i = 0; i < n; i++) {
            if (parse_number(split[i], dir, "train_test_split.txt", i + 1, 0, 1) != train) continue;
            int class = parse_number(label[i], dir, "image_class_labels.txt", i + 1, 1, l->classes) - 1;
            add(l, train ? &l->train : &l->test, format_string("%s/images/%s", dir, image[i]), class);
        }
    free_all(image);
    free_all(label);
    free_all(split);
}

// ---- which layout ----

// A fresh DIR/name where that is a directory with sub-folders, else NULL. (A class may be called "train", too.)
static char* split_folder(const char* dir, const char* name) {
    char* path = format_string("%s/%s", dir, name);
    char** inside = is_directory(path) ? paths_in(path, 1) : NULL;
    int found = inside && inside[0];
    if (inside) free_all(inside);
    if (found) return path;
    free(path);
    return NULL;
}

PhotoList photo_list(const char* dir, const char* test_dir) {
    PhotoList l = {0};
    char* cub = format_string("%s/images.txt", dir);
    struct stat s;
    int is_cub = stat(cub, &s) == 0;
    free(cub);
    if (is_cub) {
        if (test_dir) trouble("%s: is CUB-200-2011, which names its own test photos", dir);
        read_cub(&l, dir);
        return l;
    }
    char *train = split_folder(dir, "train"), *test = NULL;
    if (train) test = split_folder(dir, "val");
    if (train && !test) test = split_folder(dir, "test");
    read_train_folders(&l, train ? train : dir);
    if (test_dir || test) read_test_folders(&l, test_dir ? test_dir : test);
    free(train);
    free(test);
    return l;
}

void photo_list_free(PhotoList* l) {
    for (int i = 0; i < l->train + l->test; i++) free(l->entry[i].path);
    for (int i = 0; i < l->classes; i++) free(l->class_name[i]);
    free(l->entry);
    free(l->class_name);
    *l = (PhotoList){0};
}
