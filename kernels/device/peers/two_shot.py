"""In two shots: each rank reduces its own chunk of everybody's values, then sends the result to all.

One kernel, `staged`, does the verbs that are made of these steps: all-reduce (both), reduce-scatter (the first),
all-gather (the second), and broadcast (the first from the root alone, without a sum, and the second).

Steps of a block: send piece t of each chunk to its owner, reduce piece t - 1 of the own chunk and send it to all, copy
piece t - 2 of everybody's result. When piece t is sent, piece t - 2 (of a reduce-scatter) or t - 3 has come here from
all peers, before which they had used piece t - 4 at least: its slot is free, of 4. Likewise for results. The slots are
free for the next call because a call that does both steps ends when all peers have used what it sent first, and sends
results only once all peers have begun; one that does a single step waits for them at its end.
"""

STAGED = r"""
struct Chunks { u64 start[P]; u64 length[P]; };  // of each rank's chunk, in elements

// Chunk q of an array that is split evenly into packs: for arrays whose chunks the caller does not name.
__device__ __forceinline__ void even(u64 n, u32 q, u64& start, u64& length) {
    const u64 packs = packs_of(n), each = (packs + P - 1) / P * W;
    start = q * each < n ? q * each : n;
    length = start + each < n ? each : n - start;
}

constexpr u32 SCATTER = 1, GATHER = 2, COPY = 4;

extern "C" __global__ void __launch_bounds__(512) staged(
    const Group g, const T* x, T* y, T* own, u64 n, const Chunks chunks, u32 steps, u32 root, A divisor, u32 piece) {
    const u64 e = begin(g), row = (u64)gridDim.x * piece;
    const u64 area = DEPTH * P * row * 16;
    u64 start[P], length[P], longest = 0;
#pragma unroll
    for (int q = 0; q < P; ++q) {
        if (n) even(n, q, start[q], length[q]);
        else start[q] = chunks.start[q], length[q] = chunks.length[q];
        longest = length[q] > longest ? length[q] : longest;
    }
    const u32 pieces = (packs_of(longest) + row - 1) / row;
    const bool scatter = steps & SCATTER, gather = steps & GATHER, copy = steps & COPY;
    const bool source = copy && root == g.rank;  // has all that it sends, in memory that may be read only
    u64 mine = 0;
#pragma unroll
    for (int q = 0; q < P; ++q) mine = q == g.rank ? length[q] : mine;
    const bool to_own = aligned(own);
    const u64 offset = (u64)blockIdx.x * piece;
    if (threadIdx.x == 64) raise(g, e);
    for (u32 t = 0; t < pieces + 2; ++t) {
        if (scatter && t < pieces) {
            if (!copy || source)
#pragma unroll
                for (int k = 1; k < P; ++k) {
#pragma unroll
                    for (int q = 0; q < P; ++q)
                        if (q == (g.rank + k) % P) {
                            Pack* to = (Pack*)(g.wide[q] + (((t % DEPTH) * P + g.rank) * row + offset) * 16);
                            const bool whole = aligned(x + start[q]);
                            const u64 at = t * row + offset, packs = packs_of(length[q]);
                            for (u32 i = threadIdx.x; i < piece && at + i < packs; i += blockDim.x)
                                to[i] = get(x + start[q], at + i, length[q], whole);
                        }
                }
            signal(g, 0, numbered(e, t));
        }
        if (t > 0 && t <= pieces) {
            const u32 s = t - 1;
            const u64 at = s * row + offset, packs = packs_of(mine);
            if (scatter && !await(g, e, 0, numbered(e, s))) break;
            const unsigned char* came = g.wide[g.rank] + ((s % DEPTH) * P * row + offset) * 16;
            u64 first = 0;
#pragma unroll
            for (int q = 0; q < P; ++q) first = q == g.rank ? start[q] : first;
            const bool whole = aligned(x + (scatter ? first : 0));
            const T* from = scatter ? x + first : x;
            for (u32 i = threadIdx.x; i < piece && at + i < packs; i += blockDim.x) {
                Pack p;
                if (!scatter) p = get(from, at + i, mine, whole);
                else if (copy)
                    p = source ? get(from, at + i, mine, whole) : fresh((const Pack*)(came + root * row * 16) + i);
                else {
                    Pack all[P];
#pragma unroll
                    for (int k = 0; k < P; ++k)
                        all[k] = k == g.rank ? get(from, at + i, mine, whole)
                                             : fresh((const Pack*)(came + k * row * 16) + i);
                    A sum[W];
#pragma unroll
                    for (int k = 0; k < P; ++k) add(sum, all[k], k == 0);
                    p = rounded(sum, divisor);
                }
                if (!source) put(own, at + i, mine, to_own, p);
                if (gather)
#pragma unroll
                    for (int k = 1; k < P; ++k) {
                        Pack* to = (Pack*)(g.wide[(g.rank + k) % P] + area +
                                           (((s % DEPTH) * P + g.rank) * row + offset) * 16);
                        to[i] = p;
                    }
            }
            if (gather) signal(g, 1, numbered(e, s));
        }
        if (gather && t > 1) {
            const u32 s = t - 2;
            if (!await(g, e, 1, numbered(e, s))) break;
            if (source) continue;
            const unsigned char* came = g.wide[g.rank] + area + ((s % DEPTH) * P * row + offset) * 16;
#pragma unroll
            for (int q = 0; q < P; ++q)
                if (q != g.rank) {
                    const u64 at = s * row + offset, packs = packs_of(length[q]);
                    const bool whole = aligned(y + start[q]);
                    for (u32 i = threadIdx.x; i < piece && at + i < packs; i += blockDim.x)
                        put(y + start[q], at + i, length[q], whole, fresh((const Pack*)(came + q * row * 16) + i));
                }
        }
    }
    if (!scatter || !gather) {
        signal(g, scatter ? 1 : 0, numbered(e, pieces));
        await(g, e, scatter ? 1 : 0, numbered(e, pieces));
    }
}
"""
