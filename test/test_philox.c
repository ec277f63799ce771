// Philox4x32-10 against the known answers of the Random123 distribution, and the two ways of reading its bits.
#include "kernels/philox.h"

#include "test.h"

static void known(uint64_t seed, uint32_t stream, uint32_t step, uint64_t index, const uint32_t answer[4]) {
    Philox r = philox(seed, stream, step, index);
    for (int i = 0; i < 4; i++) CHECK(r.v[i] == answer[i], "word %d of %08x.. is %08x", i, answer[0], r.v[i]);
}

int main(void) {
    known(0, 0, 0, 0, (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    known(~0ull, ~0u, ~0u, ~0ull, (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    known(0x299f31d0a4093822, 0x03707344, 0x13198a2e, 0x85a308d3243f6a88,
          (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

    CHECK(philox_uniform(0) == 0, "least");
    CHECK(philox_uniform(~0u) < 1, "largest");
    CHECK(philox_below(~0u, 1) == 0 && philox_below(~0u, 7) == 6 && philox_below(0, 7) == 0, "range");

    // Uniformity: 70000 draws in 7 cells, chi-square with 6 degrees of freedom (22.5 has probability 0.001; the draws are fixed).
    int cell[7] = {0};
    double mean = 0, chi = 0;
    for (int i = 0; i < 70000; i++) {
        uint32_t bits = philox(1, STREAM_INIT, 0, i).v[0];
        cell[philox_below(bits, 7)]++;
        mean += philox_uniform(bits) / 70000;
    }
    for (int i = 0; i < 7; i++) chi += (cell[i] - 10000.0) * (cell[i] - 10000.0) / 10000;
    CHECK(chi < 22.5, "chi-square %g", chi);
    CHECK(fabs(mean - 0.5) < 0.005, "mean %g", mean);
    TEST_END();
}
