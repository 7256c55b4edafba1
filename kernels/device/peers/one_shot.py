"""All-reduce in one shot: everybody gets everybody's values and reduces them by itself, in rank order.

`flagged`: each store carries 8 bytes of data and the epoch twice, so that no flag follows: the fastest for small
arrays, and twice the bytes. `pulled`: values are put into the rank's own slots, and read by its peers.
"""

FLAGGED = r"""
constexpr int H = 8 / sizeof(T);

__device__ __forceinline__ uint2 get_word(const T* x, u64 i, u64 n, bool whole) {
    union { uint2 u; T v[H]; } w;
    if (whole && (i + 1) * H <= n) w.u = ((const uint2*)x)[i];
    else
#pragma unroll
        for (int k = 0; k < H; ++k) w.v[k] = i * H + k < n ? x[i * H + k] : T(0);
    return w.u;
}

extern "C" __global__ void __launch_bounds__(512) flagged(const Group g, const T* x, T* y, u64 n, A divisor) {
    const u64 words = (n + H - 1) / H;
    const bool whole = (((u64)x | (u64)y) & 7) == 0;
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    uint2 mine = make_uint2(0, 0);
    if (i < words) mine = get_word(x, i, n, whole);
    const u64 e = begin(g), slot = (e & 1) * P * FLAGGED_WORDS;
    const u32 f = (u32)e, h = f ^ g.fingerprint;  // another call's words never come
    bool alive = true, raised = threadIdx.x != 0;
    while (alive && i < words) {
#pragma unroll
        for (int k = 1; k < P; ++k) {
            const u32 q = (g.rank + k) % P;
            store_now(g.base[q] + FLAGGED_AT + (slot + g.rank * FLAGGED_WORDS + i) * 16, mine.x, f, mine.y, h);
        }
        if (!raised) raise(g, e), raised = true;
        A sum[H];
#pragma unroll
        for (int k = 0; k < P; ++k) {
            union { uint2 u; T v[H]; } w;
            if (k == g.rank) w.u = mine;
            else {
                const unsigned char* at = g.base[g.rank] + FLAGGED_AT + (slot + k * FLAGGED_WORDS + i) * 16;
                uint4 v;
                alive = alive && wait(g, e, [&] { v = load_fresh(at); return v.y == f && v.w == h; });
                w.u = make_uint2(v.x, v.z);
            }
#pragma unroll
            for (int j = 0; j < H; ++j) sum[j] = k ? op(sum[j], widen(w.v[j])) : widen(w.v[j]);
        }
        union { uint2 u; T v[H]; } out;
#pragma unroll
        for (int j = 0; j < H; ++j) out.v[j] = narrow(divisor ? (A)(sum[j] / divisor) : sum[j]);
        if (whole && (i + 1) * H <= n) ((uint2*)y)[i] = out.u;
        else
#pragma unroll
            for (int j = 0; j < H; ++j)
                if (i * H + j < n) y[i * H + j] = out.v[j];
        i += gridDim.x * (u64)blockDim.x;
        if (i < words) mine = get_word(x, i, n, whole);
    }
    if (g.shape && blockIdx.x == 0 && threadIdx.x < P)
        wait(g, e, [&] { return begun(g, e, threadIdx.x); });
}
"""
SUMS = r"""
__device__ __forceinline__ void add(A* sum, const Pack& p, bool first) {
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] = first ? widen(p.v[j]) : op(sum[j], widen(p.v[j]));
}
__device__ __forceinline__ Pack rounded(const A* sum, A divisor) {
    Pack p;
#pragma unroll
    for (int j = 0; j < W; ++j) p.v[j] = narrow(divisor ? (A)(sum[j] / divisor) : sum[j]);
    return p;
}
"""
PULLED = r"""
extern "C" __global__ void __launch_bounds__(512) pulled(const Group g, const T* x, T* y, u64 n, A divisor) {
    const u64 e = begin(g), packs = packs_of(n), slot = PULLED_AT + (e & 1) * PULLED_BYTES;
    const bool from = aligned(x), to = aligned(y);
    const u64 each = (packs + gridDim.x - 1) / gridDim.x, low = blockIdx.x * each;
    const u64 high = low + each < packs ? low + each : packs;
    for (u64 i = low + threadIdx.x; i < high; i += blockDim.x)
        ((Pack*)(g.base[g.rank] + slot))[i] = get(x, i, n, from);
    signal(g, 0, numbered(e, 0));
    if (threadIdx.x == 64) raise(g, e);
    if (await(g, e, 0, numbered(e, 0)))
        for (u64 i = low + threadIdx.x; i < high; i += blockDim.x) {
            Pack all[P];
#pragma unroll
            for (int k = 0; k < P; ++k) all[k] = fresh((const Pack*)(g.base[k] + slot) + i);
            A sum[W];
#pragma unroll
            for (int k = 0; k < P; ++k) add(sum, all[k], k == 0);
            put(y, i, n, to, rounded(sum, divisor));
        }
}
"""
