/* AMX tiles in plain C, for tests only: lets matmul_amx.c, included after this header, run on any machine with
 * AVX-512. Follows the instructions' own rules on shapes; what real hardware would refuse stops the test. */
#ifndef AMX_EMULATE_H
#define AMX_EMULATE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct emulated_tiles {
    int configured;
    uint16_t row_bytes[8];
    uint8_t rows[8];
    uint8_t data[8][16][64];
} emulated_tiles;

static _Thread_local emulated_tiles emulated;

static void emulated_check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

static void emulated_config(const void *from) {
    const uint8_t *c = from;
    emulated_check(c[0] == 1 && c[1] == 0, "palette 1, row 0 expected");
    for (int i = 2; i < 16; i++) emulated_check(c[i] == 0, "reserved bytes are not zero");
    for (int i = 0; i < 16; i++) {
        uint16_t bytes;
        memcpy(&bytes, c + 16 + 2 * i, 2);
        emulated_check(i < 8 ? bytes <= 64 && c[48 + i] <= 16 : bytes == 0 && c[48 + i] == 0, "shape of a tile");
        emulated_check((bytes == 0) == (c[48 + i] == 0), "rows without columns");
        if (i < 8) emulated.row_bytes[i] = bytes, emulated.rows[i] = c[48 + i];
    }
    memset(emulated.data, 0, sizeof emulated.data);
    emulated.configured = 1;
}

static void emulated_load(int t, const void *base, int64_t stride) {
    emulated_check(emulated.configured && emulated.rows[t], "tile is not configured");
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
    for (int i = 0; i < emulated.rows[t]; i++)
        memcpy(emulated.data[t][i], (const char *)base + i * stride, emulated.row_bytes[t]);
}

static void emulated_store(int t, void *base, int64_t stride) {
    emulated_check(emulated.configured && emulated.rows[t], "tile is not configured");
    for (int i = 0; i < emulated.rows[t]; i++)
        memcpy((char *)base + i * stride, emulated.data[t][i], emulated.row_bytes[t]);
}

static float emulated_bf16(const uint8_t *p) {
    uint32_t bits = ((uint32_t)p[1] << 24) | ((uint32_t)p[0] << 16);
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void emulated_product(int d, int a, int b) {
    emulated_check(emulated.configured, "tiles are not configured");
    emulated_check(emulated.rows[d] == emulated.rows[a], "rows of C and A differ");
    emulated_check(emulated.row_bytes[d] == emulated.row_bytes[b], "columns of C and B differ");
    emulated_check(emulated.row_bytes[a] == 4 * emulated.rows[b], "columns of A and rows of B differ");
    for (int i = 0; i < emulated.rows[d]; i++)
        for (int j = 0; j < emulated.row_bytes[d] / 4; j++) {
            float sum;
            memcpy(&sum, &emulated.data[d][i][4 * j], 4);
            for (int k = 0; k < emulated.rows[b]; k++)
                for (int h = 0; h < 2; h++)
                    sum += emulated_bf16(&emulated.data[a][i][4 * k + 2 * h]) *
                           emulated_bf16(&emulated.data[b][k][4 * j + 2 * h]);
            memcpy(&emulated.data[d][i][4 * j], &sum, 4);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(p)     emulated_config(p)
#define _tile_release()         ((void)(emulated.configured = 0))
#define _tile_loadd(t, p, s)    emulated_load(t, p, s)
#define _tile_stored(t, p, s)   emulated_store(t, p, s)
#define _tile_zero(t)           memset(emulated.data[t], 0, sizeof emulated.data[t])
#define _tile_dpbf16ps(d, a, b) emulated_product(d, a, b)

#endif
