// Arbitrary bytes as a safetensors file: refused or read, never a touch outside them. With clang and libFuzzer:
//
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. test/fuzz/fuzz_safetensors.c data/safetensors.c data/trouble.c -lcjson -lm
//   ./a.out -max_len=4096 -max_total_time=60
#include <stdlib.h>
#include "data/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
    static volatile uint8_t sum;
    Safetensors s;
    char* wrong = safetensors_parse(&s, bytes, n);
    for (int i = 0; i < s.count && !wrong; i++) {
        const Tensor* t = &s.tensors[i];
        for (size_t k = 0; k < t->bytes; k++) sum += t->data[k];   // every byte of every tensor must be the file's
        if (safetensors_find(&s, t->name) != t) abort();           // and every name one tensor's
    }
    safetensors_close(&s);
    free(wrong);
    return 0;
}
