/* What the attention kernel on warpgroup products is given: pieces of work, and the shape of its tiles. */
#ifndef SAT_ATTENTION_WGMMA_JOB_CUH
#define SAT_ATTENTION_WGMMA_JOB_CUH

#include "kernels/cuda/attention/attention_pieces.h"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/epilogue.cuh"

enum {
    SAT_ATT_AHEAD = 2, /* pieces that the producer may be ahead */
    SAT_ATT_ORDER = 2, /* named barriers: turns at the tensor cores, from here on; */
    SAT_ATT_GROUP = 6, /* a warpgroup's own */
};

struct sat_att_turn {
    sat_att_piece p; /* count -1: there are no more */
    int head, batch;
};

struct sat_att_job {
    unsigned *counter;                     /* two, zero before and after */
    unsigned items;                        /* pieces * all_heads */
    int pieces, all_heads, heads_together; /* a head's pieces; heads of all batches; those whose keys fit into L2 */
    const sat_att_piece *piece;            /* NULL: rows one after the other, and ranges of keys */
    const int2 *entry;                     /* lists: sat_att_entry */
    bool head_masks;                       /* each head has its own pieces */
    bool halves;                           /* the boxes of K and V are half a tile */
    int heads, share, m, n, dim;           /* share: query heads a key head */
    sat_att_reach reach;
    float c, slack; /* scale*log2(e); how far above the last one a row's largest score may be */
    void *o;
    int64_t o_batch, o_head, o_row;
    float *lse; /* NULL: not wanted */
};

struct sat_att_maps {
    CUtensorMap q, k, v; /* (dim, row, head, batch), boxes 64 wide */
};

struct sat_att_shared {
    uint64_t k_full[4], k_empty[4], v_full[4], v_empty[4], q_full[2], q_empty[2];
    uint64_t turn_full[SAT_ATT_AHEAD], turn_empty[SAT_ATT_AHEAD];
    sat_att_turn turns[SAT_ATT_AHEAD];
    uint32_t k_asked, v_asked; /* tiles that were asked for, or can be at once */
};

/* Head size D at most, BN keys a tile, STAGES tiles of K and of V, room for QBUF tiles of Q. */
template <int D_, int BN_, int GROUPS_, int STAGES_, int QBUF_> struct sat_att_shape {
    static constexpr int D = D_, BN = BN_, GROUPS = GROUPS_, STAGES = STAGES_, QBUF = QBUF_;
    static constexpr int PANELS = (D + 63) / 64, PANEL = BN * 128, TILE = PANELS * PANEL; // bytes
    static constexpr int Q = GROUPS * PANELS * 8192;
    static constexpr int K_FROM = QBUF * Q, V_FROM = K_FROM + STAGES * TILE, BARRIERS_FROM = V_FROM + STAGES * TILE;
    static constexpr int BYTES = BARRIERS_FROM + (int)sizeof(sat_att_shared);
    static constexpr int CTAS = 1, THREADS = GROUPS * 128 + (GROUPS == 1 ? 32 : 128);
    static constexpr int FEWER = GROUPS == 1 ? 0 : GROUPS == 2 ? 40 : 32, MORE = GROUPS == 2 ? 232 : 160; // registers
    // A warpgroup holds a tile of V until the next tile of K that it wants is there: in a list, GROUPS tiles later.
    static_assert(GROUPS <= STAGES + 1, "");
    static_assert(BN % 16 == 0 && D % 16 == 0 && STAGES <= 4 && QBUF <= 2, "");
    static_assert(CTAS * (BYTES + 1024) <= 228 * 1024, "shared memory of a multiprocessor");
};

#endif
