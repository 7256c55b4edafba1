"""What the kernels of all peer calls share, as CUDA source: a rank's region, epochs, flags, waits, and their end.

Each rank has a *region* of device memory that its peers have mapped. A call has a number, the *epoch*, which lies in
device memory: so a call can be part of a CUDA graph that is started often. What a peer writes into a region carries the
epoch; nobody clears it.

Lines: at the start of a call each rank writes the epoch and the call's *fingerprint* into every peer's region, and
no kernel ends well before it has compared everybody's. So ranks that pass different calls all find out. And once a
rank's kernel has ended, all its peers have begun that call, hence ended the one before: memory that is used by turns,
by the epoch's last bit, is free again two calls later.

Waits: the word that ends one may come from a rank that has died. Now and then the first thread looks at the lines, and
at a word in pinned host memory by which the host ends the call. Kernels then run to their end without data.
"""

LINES_AT = 0
FLAGS_AT = 4096
MOST_RANKS = 8
MOST_BLOCKS = 512
HEAD_BYTES = 128 * 1024
"""Of a region, before its slots: lines [2][ranks] of 16 bytes, then flags [blocks][2][ranks] of 8 bytes."""
DEPTH = 4
"""Pieces of a block that may be under way: see the order of steps in `one_shot` and `two_shot`."""
LOST = 255
"""A verdict: the host has ended the call. Others are 1 + the rank whose call differs."""

SOURCE = r"""
typedef unsigned long long u64;
typedef unsigned int u32;

constexpr int W = 16 / sizeof(T);  // elements of a pack
struct alignas(16) Pack { T v[W]; };

struct State { u64 epoch; u64 ended; u32 arrived; };
struct Group {
    unsigned char* base[P];  // everybody's region, as mapped here
    unsigned char* wide[P];  // and everybody's slots for `staged`
    State* state;            // this rank's own
    volatile u32* host;      // pinned: [0] the order to end calls, [1] the first verdict, [2] the call that waits
    u32 rank;
    u32 fingerprint;         // of what must agree
    u32 shape;               // of what must agree where it is not 0
    u32 reserved;
};

__device__ __forceinline__ uint4 load_fresh(const void* at) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_now(void* at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ unsigned char* line(const Group& g, u32 of, u32 from, u64 e) {
    return g.base[of] + LINES_AT + ((e & 1) * MOST_RANKS + from) * 16;
}
__device__ __forceinline__ u64* flag(const Group& g, u32 of, u32 from, u32 stage) {
    return (u64*)(g.base[of] + FLAGS_AT) + (blockIdx.x * 2 + stage) * MOST_RANKS + from;
}

// Whether this call has been ended: a verdict is there, with the call's number.
__device__ __forceinline__ bool ended(const Group& g, u64 e) { return *(volatile u64*)&g.state->ended == e; }

__device__ __forceinline__ void judge(const Group& g, u64 e, u32 verdict) {
    if (!g.host[1]) g.host[1] = verdict;
    __threadfence_system();
    *(volatile u64*)&g.state->ended = e;
}

// The call's number, read by all threads.
__device__ __forceinline__ u64 begin(const Group& g) {
    const u64 e = *(volatile u64*)&g.state->epoch + 1;
    if (blockIdx.x == 0 && threadIdx.x < P)
        store_now(line(g, threadIdx.x, g.rank, e), (u32)e, g.fingerprint, (u32)e, g.shape);
    __syncthreads();
    return e;
}

// Raises it for the next call once all blocks have read it. For one thread of each block, while data is on its way.
__device__ __forceinline__ void raise(const Group& g, u64 e) {
    if (gridDim.x == 1 || atomicInc(&g.state->arrived, gridDim.x - 1) == gridDim.x - 1)
        *(volatile u64*)&g.state->epoch = e;
}

// Whether a peer's call has begun; if it is another one, this call is ended.
__device__ __forceinline__ bool begun(const Group& g, u64 e, u32 peer) {
    const uint4 v = load_fresh(line(g, g.rank, peer, e));
    if (v.x != (u32)e || v.z != (u32)e) return false;
    if (v.y != g.fingerprint || (v.w && g.shape && v.w != g.shape)) judge(g, e, 1 + peer);
    return true;
}

__device__ __noinline__ bool look(const Group& g, u64 e) {
    if (blockIdx.x == 0 && threadIdx.x <= P) {
        g.host[2] = (u32)e;
        if (g.host[0]) judge(g, e, LOST);
        for (u32 k = 0; k < P; ++k) begun(g, e, k);
    }
    return !ended(g, e);
}

// Returns true once ready() is, false where the call has been ended meanwhile.
template <typename Ready> __device__ __forceinline__ bool wait(const Group& g, u64 e, Ready ready) {
    u32 turns = 0;
    while (!ready())
        if ((++turns & 127) == 0 && !look(g, e)) return false;
    return true;
}

// Tells all peers that this block's stores up to here are there. For all threads.
__device__ __forceinline__ void signal(const Group& g, u32 stage, u64 number) {
    __syncthreads();
    if (threadIdx.x < P && threadIdx.x != g.rank) {
        __threadfence_system();
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag(g, threadIdx.x, g.rank, stage)), "l"(number)
                     : "memory");
    }
}

// Waits for that of the peers, and in the first block for their lines. For all threads; false where the call was ended.
__device__ __forceinline__ bool await(const Group& g, u64 e, u32 stage, u64 number) {
    bool alive = true;
    if (threadIdx.x < P && threadIdx.x != g.rank) {
        const u64* at = flag(g, g.rank, threadIdx.x, stage);
        alive = wait(g, e, [&] {
            u64 v;
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
            return v >= number;
        });
    } else if (blockIdx.x == 0 && threadIdx.x >= 32 && threadIdx.x < 32 + P) {
        alive = wait(g, e, [&] { return begun(g, e, threadIdx.x - 32); }) && !ended(g, e);
    }
    return __syncthreads_and(alive);
}

__device__ __forceinline__ u64 numbered(u64 e, u32 piece) { return (e << 20) + piece + 1; }

__device__ __forceinline__ bool aligned(const void* a) { return ((u64)a & 15) == 0; }

// Pack i of n elements; what lies behind the end is anything.
__device__ __forceinline__ Pack get(const T* x, u64 i, u64 n, bool whole) {
    Pack p;
    if (whole && (i + 1) * W <= n) p = ((const Pack*)x)[i];
    else
#pragma unroll
        for (int k = 0; k < W; ++k) p.v[k] = i * W + k < n ? x[i * W + k] : T(0);
    return p;
}
__device__ __forceinline__ void put(T* y, u64 i, u64 n, bool whole, const Pack& p) {
    if (whole && (i + 1) * W <= n) ((Pack*)y)[i] = p;
    else
#pragma unroll
        for (int k = 0; k < W; ++k)
            if (i * W + k < n) y[i * W + k] = p.v[k];
}
__device__ __forceinline__ Pack fresh(const Pack* at) {
    const uint4 v = load_fresh(at);
    return *(const Pack*)&v;
}
__device__ __forceinline__ u64 packs_of(u64 n) { return (n + W - 1) / W; }
"""
