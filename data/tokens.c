// Token files. Nothing in them is trusted: all is checked once, in tokens_parse, before anybody uses a number of the file.
#define _GNU_SOURCE
#include "tokens.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char* const split_name[SPLITS] = {"train", "dev", "test"};

enum { MOST_VOCABULARY = 1 << 24, MOST_CLASSES = 1 << 16, MOST_TEXT = 1 << 24, MOST_LENGTH = 1 << 16, MOST_SEGMENTS = 16 };

typedef struct {
    char magic[8];
    uint32_t version, vocabulary;
    uint64_t hash;
    uint32_t classes, text, count[SPLITS], labelled;
    uint64_t tokens;
    uint32_t pad, zero;
} Header;

_Static_assert(sizeof(Header) == 64, "the header has no gaps");

static uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// ---- the text: task, metrics, classes ----

// A line as a fresh string, or NULL where there is none; moves *at behind it.
static char* next_line(const char** at, const char* end) {
    const char* stop = memchr(*at, '\n', (size_t)(end - *at));
    if (!stop) return NULL;
    char* line = format_string("%.*s", (int)(stop - *at), *at);
    *at = stop + 1;
    return line;
}

static char* parse_metrics(Tokens* t, char* line) {
    static const char* const known[] = {"accuracy", "f1", "matthews", "pearson", "spearman"};
    enum { KNOWN = sizeof known / sizeof *known };
    t->metric = allocate(KNOWN, sizeof *t->metric);
    for (char *rest = line, *name; (name = strsep(&rest, " "));) {
        int k = 0;
        while (k < KNOWN && strcmp(known[k], name)) k++;
        if (k == KNOWN || t->metrics == KNOWN) return format_string("its metric '%.40s' is not known here", name);
        if ((k >= 3) != (t->classes == 0)) return format_string("its metric '%s' does not fit %s", name, t->classes ? "classes" : "scores");
        if (k == 1 && t->classes != 2) return format_string("its metric 'f1' is for 2 classes, not %d", t->classes);
        t->metric[t->metrics++] = format_string("%s", name);
    }
    return NULL;
}

static char* parse_text(Tokens* t, const char* text, uint32_t bytes) {
    const char *at = text, *end = text + bytes;
    size_t used = strnlen(text, bytes);
    for (size_t i = used; i < bytes; i++)
        if (text[i]) return format_string("there is a zero byte among its names");
    end = text + used;
    char* metrics = NULL;
    t->task = next_line(&at, end);
    if (t->task) metrics = next_line(&at, end);
    if (!metrics) return format_string("its header names no task and no metric");
    char* wrong = parse_metrics(t, metrics);
    free(metrics);
    if (wrong) return wrong;
    t->class_name = allocate((size_t)t->classes, sizeof *t->class_name);
    for (int i = 0; i < t->classes; i++)
        if (!(t->class_name[i] = next_line(&at, end))) return format_string("it names %d of its %d classes", i, t->classes);
    return at == end ? NULL : format_string("it names more than its %d classes", t->classes);
}

// ---- sequences ----

static char* check_split(TokenSplit* s, int which, int classes, uint64_t tokens) {
    for (int i = 0; i < s->count; i++) {
        uint64_t from = s->offset[i], to = s->offset[i + 1];
        if (to > tokens || from > to) return format_string("%s record %d (from 0) lies outside its %llu tokens", split_name[which], i, (unsigned long long)tokens);
        if (from == to) return format_string("%s record %d (from 0) is empty", split_name[which], i);
        if (to - from > MOST_LENGTH) return format_string("%s record %d (from 0) has %llu tokens, more than %d", split_name[which], i, (unsigned long long)(to - from), MOST_LENGTH);
        if ((int)(to - from) > s->longest) s->longest = (int)(to - from);
        if (!s->labelled) continue;
        if (classes && (s->label[i] < 0 || s->label[i] >= classes))
            return format_string("%s record %d (from 0) has label %d, outside the %d classes 0 .. %d", split_name[which], i, s->label[i], classes, classes - 1);
        if (!classes && !isfinite(s->score[i])) return format_string("%s record %d (from 0) has a score that is no number", split_name[which], i);
    }
    return NULL;
}

// Which record a token belongs to, for a message.
static char* wrong_token(const Tokens* t, uint64_t token, const char* what, uint32_t value, int most) {
    for (int k = 0; k < SPLITS; k++)
        for (int i = 0; i < t->split[k].count; i++)
            if (token < t->split[k].offset[i + 1])
                return format_string("%s record %d (from 0), token %llu: %s %u, outside 0 .. %d", split_name[k], i,
                                     (unsigned long long)(token - t->split[k].offset[i]), what, value, most);
    return format_string("%s %u, outside 0 .. %d", what, value, most);
}

static char* check_tokens(Tokens* t, uint64_t tokens) {
    for (uint64_t i = 0; i < tokens; i++) {
        if (t->ids[i] >= (uint32_t)t->vocabulary) return wrong_token(t, i, "token number", t->ids[i], t->vocabulary - 1);
        if (t->segment[i] >= MOST_SEGMENTS) return wrong_token(t, i, "segment", t->segment[i], MOST_SEGMENTS - 1);
        if (t->segment[i] >= t->segments) t->segments = t->segment[i] + 1;
    }
    return NULL;
}

char* tokens_parse(Tokens* t, const void* bytes, size_t n) {
    const Header* h = bytes;
    *t = (Tokens){0};
    if (n < sizeof *h || memcmp(h->magic, "prebrtok", 8)) return format_string("is not a token file; scripts/tokenize_glue.py makes one from text");
    if (h->version != 1) return format_string("is of version %u, this program reads version 1: make it again", h->version);
    if (h->vocabulary - 1 >= MOST_VOCABULARY || h->classes > MOST_CLASSES || h->text > MOST_TEXT || h->text % 8 || h->pad >= h->vocabulary)
        return format_string("its header says %u tokens of vocabulary (padding: %u), %u classes, %u bytes of names", h->vocabulary, h->pad, h->classes, h->text);
    uint64_t count = (uint64_t)h->count[0] + h->count[1] + h->count[2];
    if (count > INT_MAX || h->tokens > (uint64_t)1 << 40) return format_string("its header says %llu sequences, %llu tokens", (unsigned long long)count, (unsigned long long)h->tokens);
    uint64_t labels_at = sizeof *h + h->text + 8 * (count + 1), ids_at = labels_at + padded(4 * count), segments_at = ids_at + padded(4 * h->tokens);
    uint64_t expected = segments_at + padded(h->tokens);
    if (n != expected)
        return format_string("its header says %llu bytes, there are %zu: it is cut off or damaged, make it again", (unsigned long long)expected, n);
    t->vocabulary = (int)h->vocabulary;
    t->hash = h->hash;
    t->classes = (int)h->classes;
    t->pad = (int)h->pad;
    t->segments = 1;
    const uint8_t* file = bytes;
    const uint64_t* offset = (const uint64_t*)(file + sizeof *h + h->text);
    t->ids = (const uint32_t*)(file + ids_at);
    t->segment = file + segments_at;
    char* wrong = parse_text(t, (const char*)file + sizeof *h, h->text);
    if (!wrong && (offset[0] || offset[count] != h->tokens)) wrong = format_string("its sequences do not cover its %llu tokens", (unsigned long long)h->tokens);
    for (int k = 0, first = 0; !wrong && k < SPLITS; first += (int)h->count[k++]) {
        TokenSplit* s = &t->split[k];
        s->count = (int)h->count[k];
        s->labelled = h->labelled >> k & 1;
        s->offset = offset + first;
        s->label = (const int32_t*)(file + labels_at) + first;
        s->score = (const float*)(file + labels_at) + first;
        wrong = check_split(s, k, t->classes, h->tokens);
    }
    return wrong ? wrong : check_tokens(t, h->tokens);
}

Tokens tokens_open(const char* path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (file < 0 || fstat(file, &s)) trouble("%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode)) trouble("%s: is not a file; scripts/tokenize_glue.py makes a token file from text", path);
    if (s.st_size == 0) trouble("%s: is empty; make it again", path);
    void* map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED) trouble("%s: cannot map it: %s", path, strerror(errno));
    close(file);
    Tokens t;
    char* wrong = tokens_parse(&t, map, (size_t)s.st_size);
    if (wrong) trouble("%s: %s", path, wrong);
    t.path = format_string("%s", path);
    t.map = map;
    t.bytes = (size_t)s.st_size;
    return t;
}

void tokens_close(Tokens* t) {
    if (t->map) munmap(t->map, t->bytes);
    for (int i = 0; t->class_name && i < t->classes; i++) free(t->class_name[i]);
    for (int i = 0; i < t->metrics; i++) free(t->metric[i]);
    free(t->class_name);
    free(t->metric);
    free(t->task);
    free(t->path);
    *t = (Tokens){0};
}

uint64_t vocabulary_hash(const char* path, int* tokens) {
    uint64_t hash = HASH_START;
    FILE* f = fopen(path, "rbe");
    char* line = NULL;
    size_t room = 0;
    *tokens = 0;
    if (!f) return 0;
    for (ssize_t n; (n = getline(&line, &room, f)) > 0; ++*tokens) {
        if (line[n - 1] == '\n') n--;
        if (n && line[n - 1] == '\r') n--;
        hash = hash_bytes(hash_bytes(hash, line, (size_t)n), "\n", 1);
    }
    free(line);
    fclose(f);
    return hash;
}
