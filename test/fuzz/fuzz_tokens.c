// Arbitrary bytes as a token file: refused with a reason, or every number in it is safe to use.
//
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. test/fuzz/fuzz_tokens.c data/tokens.c data/run.c data/trouble.c -lm -lpthread
//   ./a.out -max_len=512 -runs=1000000
#include <stdlib.h>
#include <string.h>
#include "data/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    void* bytes = malloc(n);   // aligned, and not a byte longer than the input
    if (n) memcpy(bytes, data, n);
    Tokens t;
    char* wrong = tokens_parse(&t, bytes, n);
    uint64_t sum = 0;
    for (int k = 0; !wrong && k < SPLITS; k++)
        for (int i = 0; i < t.split[k].count; i++)
            for (uint64_t j = t.split[k].offset[i]; j < t.split[k].offset[i + 1]; j++) {
                if (t.ids[j] >= (uint32_t)t.vocabulary || t.segment[j] >= t.segments) abort();
                sum += t.ids[j];
            }
    free(wrong);
    tokens_close(&t);
    free(bytes);
    return sum == UINT64_MAX;
}
