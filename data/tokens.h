// Token files: sentences (or pairs of them) as numbers, with their labels, in up to three splits. scripts/tokenize_glue.py makes them.
//
// Little-endian, every part at a multiple of 8 bytes:
//
//   64 bytes   "prebrtok", u32 version 1, u32 vocabulary size, u64 hash of the vocabulary, u32 classes (0: the labels are scores),
//              u32 bytes of text, u32 sequences in train, dev, test, u32 which splits have labels (bits 0, 1, 2),
//              u64 tokens, u32 number of the padding token, u32 0
//   text       lines: the task, the names of its metrics with a space between, then one line a class; zero bytes up to a multiple of 8
//   u64 [sequences + 1]   where each sequence begins among the tokens (train, dev, test one after the other), and the end
//   i32 or f32 [sequences]   class or score, 0 where a split has none; padded with zeros
//   u32 [tokens]          token numbers; padded
//   u8 [tokens]           segments (token types); padded
//
// The hash is FNV-1a (64 bits) over all tokens of the vocabulary in the order of their numbers, each followed by '\n': over vocab.txt, when
// its lines end so.
#ifndef PREBR_TOKENS_H
#define PREBR_TOKENS_H

#include <stddef.h>
#include <stdint.h>
#include "trouble.h"

C_BEGIN

enum { SPLIT_TRAIN, SPLIT_DEV, SPLIT_TEST, SPLITS };
extern const char* const split_name[SPLITS];

typedef struct {
    int count;
    int labelled;
    int longest;               // tokens of its longest sequence
    const uint64_t* offset;    // [count + 1] in ids and segments
    const int32_t* label;      // [count] classes, or
    const float* score;        // [count] what a regression learns
} TokenSplit;

typedef struct {
    char *path, *task;
    char** metric;             // [metrics] "accuracy", "f1", "matthews", "pearson", "spearman"
    int metrics;
    int classes;               // 0: regression
    char** class_name;         // [classes]
    int vocabulary;
    uint64_t hash;
    int pad;                   // number of the padding token
    int segments;              // kinds of segments, 1 or more
    TokenSplit split[SPLITS];
    const uint32_t* ids;
    const uint8_t* segment;
    void* map;
    size_t bytes;
} Tokens;

// Maps the file and checks all of it: sizes, order of offsets, empty sequences, token numbers, labels. Trouble with file, place and cause.
Tokens tokens_open(const char* path);
void tokens_close(Tokens* t);
// The parser alone, over bytes (aligned to 8) that outlive t: NULL, or what is wrong (free() it). Never ends the program and never reads
// outside the bytes; what the fuzzer feeds. t is to be closed either way.
char* tokens_parse(Tokens* t, const void* bytes, size_t n);

// The hash of a vocab.txt (CR at the ends of lines do not count) and its number of tokens; 0 where there is no such file.
uint64_t vocabulary_hash(const char* path, int* tokens);

// ---- batches ----

typedef struct {
    int32_t* ids;              // [count, length] padded with the padding token
    int32_t* segment;          // [count, length] padded with 0
    int32_t* lengths;          // [count] real tokens
    int32_t* index;            // [count] record numbers in the split
    int32_t* label;            // [count]; 0 where the split has none
    float* score;              // [count]
    int count, length;         // length: the longest of this batch
} TokenBatch;

// Room for `batch` sequences of at most `longest` tokens.
TokenBatch token_batch_make(int batch, int longest);
void token_batch_free(TokenBatch* b);

// Which sequences make training batch `number` of the run (epochs of floor(count / batch) batches; loader.h has an epoch's order).
// grouped: within each run of GROUP_BATCHES batches (the last may be shorter) the sequences are first sorted by length (equal lengths
// stay in order) and cut into batches, and these batches come in the order of a Fisher-Yates shuffle with draws
// philox(seed, STREAM_SHUFFLE, epoch, (1 << 40) + (run << 20) + i).
enum { GROUP_BATCHES = 32 };
typedef struct {
    const TokenSplit* split;
    int batch, grouped;
    uint64_t seed;
    int32_t* order;            // [split->count] of the epoch last asked for
    int64_t epoch;
} TokenOrder;
TokenOrder token_order_make(const TokenSplit* s, int batch, int grouped, uint64_t seed);
void token_order_free(TokenOrder* o);
const int32_t* token_order_batch(TokenOrder* o, int64_t number);

// Fills b with the `count` sequences of those record numbers.
void token_batch_fill(TokenBatch* b, const Tokens* t, const TokenSplit* s, const int32_t* index, int count);

C_END

#endif
