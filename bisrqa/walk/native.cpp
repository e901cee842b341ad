// The walk on a CPU: building the layout, solving by Gauss-Seidel, and forward push.
//
// A C ABI without Python or torch in it, loaded with ctypes (native.py holds the same structs).
// The numeric part stands in this file once and is compiled once for each instruction set: the
// file includes itself, and `isa()` picks one at run time. Explicit `fma` and no contraction by
// the compiler give every question the same arithmetic in every vector width, so a result does
// not depend, to the last bit, on the batch, on the width or on the number of threads.
//
// Notation, for one question: z is the unnormalised score, s the total weight of the arcs that
// leave a node, y = z / s. A step over arc (u -> v) of relation r moves a * w[r] * y[u], with
// a = 1 - restart, so the inner loop reads one source, one relation, one weight and one y.

#ifndef WALK_NUMERIC

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

struct Layout {  // fields as in WalkGraph
    int64_t nodes, graphs, relations, loops;
    const int64_t *ptr;  // where the arcs into each node start: offsets need 64 bits
    const int32_t *src;
    const void *rel;  // 2 r along an edge of relation r, 2 r + 1 against it
    const int32_t *loop_node, *loop_rel;
    const int64_t *node_ptr, *relation_ptr;
    int32_t wide_rel;  // rel is int32, not uint16
    int32_t both_ways;
};

struct Problem {
    int64_t questions;
    const void *p, *weight, *inverse;  // [questions, nodes] and twice [questions, relations]
    void *scores;                      // [questions, nodes]
    int64_t *steps;                    // [questions, graphs]
    double *residual;                  // [questions, graphs]
    double restart, tol;
    int64_t max_steps;
    int32_t float64, threads, width;  // width: most questions side by side; 0 to choose
};

struct Push {
    int64_t questions;
    const int64_t *seed_ptr, *seed;  // CSR of the personalization
    const double *mass, *weight, *inverse;
    double restart, threshold;
    int32_t *node;  // [questions, nodes]: the nodes reached, as many as `reached` says
    double *score;  // the same shape
    int64_t *reached, *arcs;  // [questions]
    double *error;            // [questions]
    int32_t threads;
};

// ---- memory ----

// The state of a big graph is read at random: large pages spare most of the address look-ups.
static void *big_alloc(size_t bytes) {
    const size_t page = size_t(1) << 21;
    bool large = bytes >= 4 * page;
    size_t align = large ? page : 64;
    bytes = (bytes + align - 1) / align * align;
    void *memory = nullptr;
    if (posix_memalign(&memory, align, bytes ? bytes : align)) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

struct Scratch {  // one a thread, grown as needed
    void *memory = nullptr;
    size_t size = 0;
    ~Scratch() { free(memory); }
    void *get(size_t bytes) {
        if (bytes > size) {
            free(memory);
            memory = big_alloc(bytes);
            size = memory ? bytes : 0;
        }
        return memory;
    }
};

// ---- threads over independent items: which thread takes which does not matter ----

template <class F> static bool run(int64_t items, int threads, F item) {
    std::atomic<int64_t> next(0);
    std::atomic<bool> failed(false);
    auto work = [&]() {
        Scratch scratch;
        for (int64_t i; !failed && (i = next.fetch_add(1)) < items;) try {
                if (!item(i, scratch)) failed = true;
            } catch (const std::bad_alloc &) {
                failed = true;
            }
    };
    int extra = int(std::min<int64_t>(threads, items)) - 1;
    std::vector<std::thread> pool;
    pool.reserve(std::max(extra, 0));
    for (int t = 0; t < extra; t++) {
        try {
            pool.emplace_back(work);
        } catch (const std::exception &) {
            break;  // the threads that there are do the work
        }
    }
    work();
    for (auto &t : pool) t.join();
    return !failed;
}

struct Item {  // one graph of a batch and `lanes` questions
    int64_t graph, first, lanes, cost;
};

// How many arcs ahead the inner loop asks for a source's state.
static const int64_t AHEAD = 24;
// How many nodes are summed in the precision of the state before the sum goes on in double.
static const int64_t BLOCK = 128;
// How many arcs are summed plainly before what rounding took is looked after.
static const int64_t RUN = 32;
// After how many sweeps without a smaller residual over-relaxation is given up, times 2 - omega.
static const int64_t STUCK = 8;

// ---- the layout: two stable counting sorts, by source and then by destination ----

struct Edges {
    const int64_t *head, *tail, *type;
    bool both;
};

// Arcs of one graph, in the order of the layout, to src and rel; offsets from 0 to ptr. Returns
// how many there are after repeated ones are dropped.
template <class R>
static int64_t build_one(const Edges &edges, int64_t first, int64_t last, int64_t node, int64_t nodes,
                         int64_t relation, int64_t relations,
                         int64_t *ptr, int32_t *src, R *rel, Scratch &scratch) {
    const int64_t most = (last - first) * (edges.both ? 2 : 1);
    // Where each node's arcs out of it start, and then end; and those arcs' other ends and relations.
    int64_t *at = (int64_t *)scratch.get((nodes + 1) * sizeof(int64_t) + 2 * most * sizeof(int32_t));
    if (!at) throw std::bad_alloc();
    int32_t *to = (int32_t *)(at + nodes + 1), *kind = to + most;
    std::fill(at, at + nodes + 1, 0);
    std::fill(ptr, ptr + nodes, 0);
    for (int64_t e = first; e < last; e++) {
        const int64_t h = edges.head[e] - node, t = edges.tail[e] - node;
        if (uint64_t(h) >= uint64_t(nodes) || uint64_t(t) >= uint64_t(nodes) ||
            uint64_t(edges.type[e] - relation) >= uint64_t(relations))
            return -2 - e;
        if (h == t) continue;
        at[h]++, ptr[t]++;
        if (edges.both) at[t]++, ptr[h]++;
    }
    int64_t out = 0, in = 0;
    for (int64_t v = 0; v < nodes; v++) {
        const int64_t leave = at[v], enter = ptr[v];
        at[v] = out, ptr[v] = in;
        out += leave, in += enter;
    }
    for (int64_t e = first; e < last; e++) {
        const int64_t h = edges.head[e] - node, t = edges.tail[e] - node;
        if (h == t) continue;
        const int32_t r = int32_t(2 * edges.type[e]);
        int64_t k = at[h]++;
        to[k] = int32_t(t), kind[k] = r;
        if (edges.both) k = at[t]++, to[k] = int32_t(h), kind[k] = r + 1;
    }
    for (int64_t u = 0, k = 0; u < nodes; u++)
        for (; k < at[u]; k++) {
            const int64_t place = ptr[to[k]]++;
            src[place] = int32_t(node + u), rel[place] = R(kind[k]);
        }
    // ptr holds where each node's arcs end. Arcs of one pair of nodes stand together: order them
    // by relation, and keep each once.
    int64_t kept = 0;
    for (int64_t v = 0, k = 0; v < nodes; v++) {
        const int64_t end = ptr[v];
        ptr[v] = kept;
        while (k < end) {
            int64_t stop = k + 1;
            while (stop < end && src[stop] == src[k]) stop++;
            if (stop - k > 1) std::sort(rel + k, rel + stop);
            const int32_t from = src[k];
            for (int64_t j = k, last_rel = -1; j < stop; j++)
                if (int64_t(rel[j]) != last_rel) {
                    last_rel = rel[j];
                    src[kept] = from, rel[kept++] = R(last_rel);
                }
            k = stop;
        }
    }
    return kept;
}

// All graphs of a batch, whose edges stand together; each first where it has room for all of its
// arcs, then moved up to where the graph before it ends.
template <class R>
static int64_t build(const Edges &edges, int64_t graphs, const int64_t *edge_ptr,
                     const int64_t *node_ptr, const int64_t *relation_ptr, int64_t *ptr, int32_t *src, R *rel, int threads) {
    const int64_t ways = edges.both ? 2 : 1;
    std::vector<int64_t> count(graphs);
    const bool done = run(graphs, threads, [&](int64_t g, Scratch &scratch) {
        const int64_t room = ways * edge_ptr[g], node = node_ptr[g];
        count[g] = build_one(edges, edge_ptr[g], edge_ptr[g + 1], node, node_ptr[g + 1] - node,
                             relation_ptr[g], relation_ptr[g + 1] - relation_ptr[g], ptr + node, src + room, rel + room, scratch);
        return true;
    });
    if (!done) return -1;
    for (int64_t g = 0; g < graphs; g++)
        if (count[g] < 0) return count[g];
    int64_t start = 0;
    for (int64_t g = 0; g < graphs; g++) {
        const int64_t room = ways * edge_ptr[g];
        if (room != start) {
            std::memmove(src + start, src + room, count[g] * sizeof(int32_t));
            std::memmove(rel + start, rel + room, count[g] * sizeof(R));
        }
        for (int64_t v = node_ptr[g]; v < node_ptr[g + 1]; v++) ptr[v] += start;
        start += count[g];
    }
    ptr[node_ptr[graphs]] = start;
    return start;
}

// ---- forward push: mass is moved from a node only while it is worth moving ----

// Scores of a few seeds' walk. What is not moved yet stays behind as `rest`; the sum of it bounds
// the error. One dense array a thread, cleaned by the list of nodes that were reached.
struct Pushed {
    double *score, *rest, *size;
    uint8_t *state;  // 1: in the queue, 2: reached
    std::vector<int32_t> reached, queue;
    explicit Pushed(int64_t nodes) {
        score = (double *)calloc(nodes + 1, sizeof(double));
        rest = (double *)calloc(nodes + 1, sizeof(double));
        size = (double *)calloc(nodes + 1, sizeof(double));
        state = (uint8_t *)calloc(nodes + 1, 1);
    }
    ~Pushed() { free(score), free(rest), free(size), free(state); }
    bool whole() const { return score && rest && size && state; }
};

template <class R>
static void push_one(const Layout &g, const Push &job, int64_t q, Pushed &at) {
    const R *rel = (const R *)g.rel;
    const double a = 1 - job.restart;
    const double *weights[2] = {job.weight + q * g.relations, job.inverse + q * g.relations};
    const int flip = g.both_ways ? 1 : 0;  // an arc into a node is its way out, walked backwards
    auto weight = [&](int64_t kind) { return weights[kind & 1][kind >> 1]; };
    auto reach = [&](int32_t v, double mass, double threshold) {
        at.rest[v] += mass;
        if (!(at.state[v] & 2)) at.state[v] |= 2, at.reached.push_back(v);
        if (!(at.state[v] & 1) && at.rest[v] > threshold * double(g.ptr[v + 1] - g.ptr[v] + 1))
            at.state[v] |= 1, at.queue.push_back(v);
    };
    int64_t arcs = 0;
    for (int64_t k = job.seed_ptr[q]; k < job.seed_ptr[q + 1]; k++)
        reach(int32_t(job.seed[k]), job.mass[k], 0);  // a seed always moves
    std::vector<int32_t> round;
    while (!at.queue.empty()) {
        round.swap(at.queue);
        at.queue.clear();
        for (int32_t u : round) {
            at.state[u] &= ~1;
            double mass = at.rest[u], loops = 0;
            at.rest[u] = 0;
            const int64_t begin = g.ptr[u], end = g.ptr[u + 1];
            const int32_t *loop = std::lower_bound(g.loop_node, g.loop_node + g.loops, u);
            for (; loop < g.loop_node + g.loops && *loop == u; loop++)
                loops += weight(g.loop_rel[loop - g.loop_node]);
            if (at.size[u] == 0) {
                double size = loops;
                for (int64_t e = begin; e < end; e++) size += weight(int64_t(rel[e]) ^ flip);
                at.size[u] = size > 0 ? size : -1;
            }
            const double size = at.size[u];
            if (size < 0) {  // nothing leads away: the mass rests here
                at.score[u] += mass;
                continue;
            }
            mass /= 1 - a * loops / size;  // once round each self-loop for ever
            at.score[u] += mass;
            const double unit = a * mass / size;
            arcs += end - begin;
            for (int64_t e = begin; e < end; e++) {
                const double flow = unit * weight(int64_t(rel[e]) ^ flip);
                if (flow > 0) reach(g.src[e], flow, job.threshold);
            }
        }
        round.clear();
    }
    double total = 0, rest = 0;
    for (int32_t v : at.reached) total += at.score[v], rest += at.rest[v];
    int64_t kept = 0;
    std::sort(at.reached.begin(), at.reached.end());
    for (int32_t v : at.reached) {
        if (at.score[v] > 0) {
            job.node[q * g.nodes + kept] = v;
            job.score[q * g.nodes + kept++] = at.score[v] / total;
        }
        at.score[v] = at.rest[v] = at.size[v] = 0, at.state[v] = 0;
    }
    at.reached.clear();
    job.reached[q] = kept, job.arcs[q] = arcs;
    // Unmoved mass becomes at most rest / restart of score; the scores are scaled to sum to 1.
    const double missing = rest / job.restart;
    job.error[q] = 2 * missing / (total + missing);
}

template <class R> static bool push_all(const Layout &g, const Push &job) {
    std::atomic<int64_t> next(0);
    return run(std::min<int64_t>(job.threads, job.questions), job.threads,
               [&](int64_t, Scratch &) {
                   Pushed at(g.nodes);
                   if (!at.whole()) return false;
                   for (int64_t q; (q = next.fetch_add(1)) < job.questions;)
                       push_one<R>(g, job, q, at);
                   return true;
               });
}

// The numeric part, once an instruction set. Widths are in bytes of one vector of questions.
#define FLAT static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#if defined(__clang__)
#define BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to=function)")
#define BEGIN_AVX512 _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512dq,avx512vl,avx2,fma\"))), apply_to=function)")
#define END_ISA _Pragma("clang attribute pop")
#else
#define BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define BEGIN_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512dq,avx512vl,avx2,fma\")")
#define END_ISA _Pragma("GCC pop_options")
#endif
#define WALK_X86 1
#endif

#define WALK_NUMERIC plain
#define MOST_BYTES 16
#include "native.cpp"
#undef WALK_NUMERIC
#undef MOST_BYTES

#ifdef WALK_X86
BEGIN_AVX2
#define WALK_NUMERIC avx2
#define MOST_BYTES 32
#define WALK_FMA 1
#include "native.cpp"
#undef WALK_NUMERIC
#undef MOST_BYTES
END_ISA
BEGIN_AVX512
#define WALK_NUMERIC avx512
#define MOST_BYTES 64
#include "native.cpp"
END_ISA
#endif

// ---- what Python calls ----

extern "C" {

// Raised whenever a struct or a function changes; native.py holds the same number.
int walk_abi() { return 2; }

// 0 plain, 1 AVX2, 2 AVX-512: the best that this machine runs.
int walk_isa() {
#ifdef WALK_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// Arcs in the order of the layout; returns how many, or -1 where memory runs out. Self-loops are
// left out, repeated edges count once. Edges must be grouped by graph; -2 - e says that edge e has
// a node or a relation that is not of its graph.
int64_t walk_build(const int64_t *head, const int64_t *tail, const int64_t *type, int64_t graphs,
                   const int64_t *edge_ptr, const int64_t *node_ptr,
                   const int64_t *relation_ptr, int both, int wide, int threads,
                   int64_t *ptr, int32_t *src, void *rel) {
    const Edges edges = {head, tail, type, both != 0};
    try {
        if (wide) return build(edges, graphs, edge_ptr, node_ptr, relation_ptr, ptr, src, (int32_t *)rel, threads);
        return build(edges, graphs, edge_ptr, node_ptr, relation_ptr, ptr, src, (uint16_t *)rel, threads);
    } catch (const std::bad_alloc &) {
        return -1;
    }
}

// 0, or -1 where memory runs out.
int walk_solve(const Layout *layout, const Problem *problem, int isa) {
    try {
#ifdef WALK_X86
        if (isa == 2) return avx512::solve(*layout, *problem) ? 0 : -1;
        if (isa == 1) return avx2::solve(*layout, *problem) ? 0 : -1;
#endif
        return plain::solve(*layout, *problem) ? 0 : -1;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}

// The same. On a graph that is walked one way, `layout` holds its arcs by source.
int walk_push(const Layout *layout, const Push *job) {
    try {
        bool done = layout->wide_rel ? push_all<int32_t>(*layout, *job)
                                     : push_all<uint16_t>(*layout, *job);
        return done ? 0 : -1;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}
}

#else  // ---------------------------------------------------------------- the numeric part

namespace WALK_NUMERIC {

template <class S, int LANES> struct Lanes {
    typedef S type __attribute__((vector_size(sizeof(S) * LANES)));
};
template <class S> struct Lanes<S, 1> {
    typedef S type;
};

#ifdef WALK_FMA
FLAT float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FLAT double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
FLAT __m128 fma(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
FLAT __m128d fma(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
FLAT __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
FLAT __m256d fma(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#if MOST_BYTES == 64
FLAT __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
FLAT __m512d fma(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#endif
#else
template <class V> FLAT V fma(V a, V b, V c) { return a * b + c; }
#endif

template <class V> FLAT V absolute(V v) { return v < 0 ? -v : v; }

// A sum that keeps what rounding takes (Kahan): a hub's thousands of arcs, or one heavy arc beside
// many light ones, would else cost more than the tolerance in single precision.
template <class V> struct Sum {
    V value, lost;
    FLAT void add(Sum &sum, V part) {
        const V exact = part - sum.lost, next = sum.value + exact;
        sum.lost = (next - sum.value) - exact;
        sum.value = next;
    }
};

// One graph (or one block of a batch) and one tile of LANES questions.
//
// Gauss-Seidel on z = g p + a W^T y, where y = z / s: a node's new z is used at once by the nodes
// after it. A self-loop moves to the left side, into the divisor of its node. Mass on a node that
// nothing leads away from belongs back on p: the system is solved without that, and z is scaled
// to sum to 1 at the end, which comes to the same. g is set after every sweep so that the mass
// that enters equals the mass that leaves; this takes the slowest mode out of the iteration.
//
// Where every edge weighs the same both ways, the matrix is symmetric and positive definite, and
// over-relaxation converges: each node moves on by `beyond` of its step. How far is best follows
// from the rate at which the steps shrink (Young), which is watched sweep by sweep.
template <class S, class R, int LANES> struct Tile {
    typedef typename Lanes<S, LANES>::type V;
    const Layout &layout;
    const Problem &job;
    const Item item;
    const int64_t first_node, nodes, first_rel, kinds;
    const R *const rel;
    int64_t loop_begin, loop_end;
    V *y, *s, *p;  // [nodes]; s is -1 where nothing leads away
    V *w;          // [kinds], scaled
    bool even[LANES];     // edges weigh the same both ways
    double start[LANES];  // sum of p: near 1, and what is near is not enough below

    Tile(const Layout &layout, const Problem &job, const Item &item)
        : layout(layout), job(job), item(item), first_node(layout.node_ptr[item.graph]),
          nodes(layout.node_ptr[item.graph + 1] - first_node),
          first_rel(2 * layout.relation_ptr[item.graph]),
          kinds(2 * layout.relation_ptr[item.graph + 1] - first_rel),
          rel((const R *)layout.rel) {
        const int32_t *begin = layout.loop_node, *end = begin + layout.loops;
        loop_begin = std::lower_bound(begin, end, int32_t(first_node)) - begin;
        loop_end = std::lower_bound(begin, end, int32_t(first_node + nodes)) - begin;
    }

    FLAT S &lane(V &v, int t) { return ((S *)&v)[t]; }
    // Lanes without a question of their own repeat the first.
    int64_t question(int t) const { return item.first + (t < item.lanes ? t : 0); }

    bool place(Scratch &scratch) {
        char *memory = (char *)scratch.get((3 * nodes + kinds) * sizeof(V));
        y = (V *)memory, s = y + nodes, p = s + nodes, w = p + nodes;
        return memory != nullptr;
    }

    void prepare() {
        const S a = S(1 - job.restart), fill = S(1 / job.restart);
        for (int t = 0; t < LANES; t++) {
            const S *forth = (const S *)job.weight + question(t) * layout.relations;
            const S *back = (const S *)job.inverse + question(t) * layout.relations;
            S most = 0;
            even[t] = layout.both_ways;
            for (int64_t r = first_rel / 2; r < (first_rel + kinds) / 2; r++) {
                most = std::max(most, std::max(forth[r], back[r]));
                even[t] &= forth[r] == back[r];
            }
            // A common factor cancels. With the largest weight near 2^60, z / s and its products
            // stay among the normal numbers for weights up to 2^180 apart.
            const int shift = most > 0 ? 60 - std::ilogb(most) : 0;
            for (int64_t k = 0; k < kinds; k++) {
                const int64_t r = (first_rel + k) >> 1;
                lane(w[k], t) = std::ldexp((k & 1 ? back : forth)[r], shift);
            }
        }
        const V *weights = w - first_rel;
        if (layout.both_ways)  // what leads away is what leads in, walked backwards
            for (int64_t i = 0; i < nodes; i++) {
                Sum<V> sum = {V{}, V{}};
                const int64_t end = layout.ptr[first_node + i + 1];
                for (int64_t e = layout.ptr[first_node + i]; e < end;) {
                    V part = V{};
                    for (const int64_t stop = std::min(e + RUN, end); e < stop; e++)
                        part += weights[rel[e] ^ 1];
                    Sum<V>::add(sum, part);
                }
                s[i] = sum.value;
            }
        else {  // y holds what rounding took, until it gets its first value
            for (int64_t i = 0; i < nodes; i++) s[i] = y[i] = V{};
            const int64_t end = layout.ptr[first_node + nodes];
            for (int64_t e = layout.ptr[first_node]; e < end; e++) {
                const int64_t u = layout.src[e] - first_node;
                Sum<V> sum = {s[u], y[u]};
                Sum<V>::add(sum, weights[rel[e]]);
                s[u] = sum.value, y[u] = sum.lost;
            }
        }
        for (int64_t k = loop_begin; k < loop_end; k++)
            s[layout.loop_node[k] - first_node] += weights[layout.loop_rel[k]];
        for (int64_t k = 0; k < kinds; k++) w[k] *= a;

        const S *rows[LANES];
        for (int t = 0; t < LANES; t++) {
            rows[t] = (const S *)job.p + question(t) * layout.nodes + first_node;
            start[t] = 0;
        }
        for (int64_t i = 0; i < nodes; i++) {
            S in[LANES];
            for (int t = 0; t < LANES; t++) in[t] = rows[t][i], start[t] += in[t];
            memcpy(&p[i], in, sizeof(V));
            s[i] = s[i] > 0 ? s[i] : V{} - 1;
            y[i] = p[i] * fill / absolute(s[i]);
        }
    }

    // What arcs from begin to end bring.
    FLAT V pull(const Tile &tile, const V *weights, const V *sources, int64_t begin, int64_t end,
                int64_t last) {
        const int32_t *const src = tile.layout.src;
        V part = V{};
        for (int64_t e = begin; e < end; e++) {
            if (LANES > 1 && e < last) __builtin_prefetch(sources + src[e + AHEAD]);
            part = fma(weights[tile.rel[e]], sources[src[e]], part);
        }
        return part;
    }

    // One pass over the nodes. Sums: of the change of z, of z, and of z where nothing leads away;
    // BLOCK nodes in the precision of the state, then in double.
    void sweep(const V g, const V beyond, const V moving, double *change, double *total,
               double *stuck) {
        for (int t = 0; t < LANES; t++) change[t] = total[t] = stuck[t] = 0;
        const V *const weights = w - first_rel;
        const V *const sources = y - first_node;
        const int64_t *const ptr = layout.ptr + first_node;
        const int64_t last = layout.ptr[first_node + nodes] - AHEAD;
        int64_t loop = loop_begin;
        int64_t next_loop = loop < loop_end ? layout.loop_node[loop] - first_node : nodes;
        for (int64_t block = 0; block < nodes; block += BLOCK) {
            const int64_t stop = std::min(block + BLOCK, nodes);
            V moved = V{}, all = V{}, still = V{};
            for (int64_t i = block; i < stop; i++) {
                const int64_t begin = ptr[i], end = ptr[i + 1];
                V in = g * p[i];
                if (end - begin <= RUN)
                    in += pull(*this, weights, sources, begin, end, last);
                else {
                    Sum<V> sum = {in, V{}};
                    for (int64_t e = begin; e < end; e += RUN)
                        Sum<V>::add(
                            sum, pull(*this, weights, sources, e, std::min(e + RUN, end), last));
                    in = sum.value;
                }
                const V size = absolute(s[i]), old = y[i];
                V divisor = size;
                while (i == next_loop) {
                    divisor -= weights[layout.loop_rel[loop]];
                    loop++;
                    next_loop = loop < loop_end ? layout.loop_node[loop] - first_node : nodes;
                }
                const V settled = in / divisor, least = settled * S(0.5);
                V now = fma(beyond, settled - old, settled);
                now = now > least ? now : least;  // mass is never negative
                if (LANES > 1) now = moving != 0 ? now : old;  // a single one moves, or is done
                y[i] = now;
                const V z = now * size;
                moved = fma(absolute(now - old), size, moved);
                all += z;
                still += s[i] < 0 ? z : V{};
            }
            for (int t = 0; t < LANES; t++) {
                change[t] += lane(moved, t);
                total[t] += lane(all, t);
                stuck[t] += lane(still, t);
            }
        }
    }

    // How far beyond its place a node best moves, where steps that went `omega` far shrank to `rate`
    // in one sweep. `omega` itself where that is the best already, or more than it.
    static double relaxation(double omega, double rate, double a) {
        if (!(rate > omega - 1)) return omega;
        const double root = (std::min(rate, 1.0) + omega - 1) / omega;  // of rate * mode^2
        const double mode = std::min(root * root / std::min(rate, 1.0), a * a);
        return std::max(omega, 2 / (1 + std::sqrt(1 - mode)));
    }

    void solve() {
        const double a = 1 - job.restart;
        double change[LANES], total[LANES], stuck[LANES], mass[LANES], scale[LANES];
        double omega[LANES], before[LANES], best[LANES];
        int64_t best_step[LANES];
        V g = V{} + 1, beyond = V{}, moving = V{} + 1;
        int left = LANES;
        for (int t = 0; t < LANES; t++) {
            scale[t] = 1, mass[t] = 1, omega[t] = before[t] = 1;
            best[t] = HUGE_VAL, best_step[t] = 0;
            if (t >= item.lanes) lane(moving, t) = 0, left--;
        }
        for (int64_t step = 1; left && step <= job.max_steps; step++) {
            sweep(g, beyond, moving, change, total, stuck);
            for (int t = 0; t < LANES; t++) {
                if (lane(moving, t) == 0) continue;
                mass[t] = total[t];
                const double enters = (total[t] - a * (total[t] - stuck[t])) / start[t];
                const double residual =
                    std::max(change[t], std::fabs(enters - scale[t])) / total[t];
                scale[t] = enters, lane(g, t) = S(enters);
                if (residual < best[t]) best[t] = residual, best_step[t] = step;
                if (even[t]) {  // the first two sweeps shrink faster than those that follow
                    if (step > 2) omega[t] = relaxation(omega[t], change[t] / before[t], a);
                    // Single precision can go round in circles near its end: then without. It may
                    // rise for a while before that, the longer the closer omega is to 2.
                    if (double(step - best_step[t]) * (2 - omega[t]) > STUCK)
                        omega[t] = 1, even[t] = false;
                    lane(beyond, t) = S(omega[t] - 1), before[t] = change[t];
                }
                const int64_t place = question(t) * layout.graphs + item.graph;
                job.steps[place] = step, job.residual[place] = residual;
                // A question that has settled stands still, as it would without the others.
                if (residual < job.tol) lane(moving, t) = 0, left--;
            }
        }
        S *rows[LANES];
        S inverse[LANES];
        for (int t = 0; t < LANES; t++) {
            rows[t] = (S *)job.scores + question(t) * layout.nodes + first_node;
            inverse[t] = S(1 / mass[t]);
        }
        for (int64_t i = 0; i < nodes; i++) {
            V z = y[i] * absolute(s[i]);
            for (int t = 0; t < item.lanes; t++) rows[t][i] = lane(z, t) * inverse[t];
        }
    }
};

template <class S, class R, int LANES>
static bool solve_tile(const Layout &layout, const Problem &job, const Item &item,
                       Scratch &scratch) {
    Tile<S, R, LANES> tile(layout, job, item);
    if (!tile.place(scratch)) return false;
    tile.prepare();
    tile.solve();
    return true;
}

template <class S, class R>
static bool solve_as(const Layout &layout, const Problem &job) {
    const int64_t fits = MOST_BYTES / int(sizeof(S));
    const int64_t most = job.width ? std::min<int64_t>(job.width, fits) : fits;
    const int64_t needed =
        layout.graphs > 1 ? job.questions : (job.questions + job.threads - 1) / job.threads;
    std::vector<Item> items;
    for (int64_t g = 0; g < layout.graphs; g++) {
        const int64_t nodes = layout.node_ptr[g + 1] - layout.node_ptr[g];
        const int64_t arcs = layout.ptr[layout.node_ptr[g + 1]] - layout.ptr[layout.node_ptr[g]];
        if (nodes)
            for (int64_t q = 0; q < job.questions;) {
                const int64_t lanes = std::min({most, needed, job.questions - q});
                items.push_back({g, q, lanes, (arcs + nodes) * lanes});
                q += lanes;
            }
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const Item &a, const Item &b) { return a.cost > b.cost; });
    return run(int64_t(items.size()), job.threads, [&](int64_t i, Scratch &scratch) {
        const Item &item = items[i];
        if (item.lanes == 1) return solve_tile<S, R, 1>(layout, job, item, scratch);
        if (item.lanes <= 16 / int(sizeof(S)))
            return solve_tile<S, R, 16 / sizeof(S)>(layout, job, item, scratch);
#if MOST_BYTES >= 32
        if (item.lanes <= 32 / int(sizeof(S)))
            return solve_tile<S, R, 32 / sizeof(S)>(layout, job, item, scratch);
#endif
#if MOST_BYTES >= 64
        return solve_tile<S, R, 64 / sizeof(S)>(layout, job, item, scratch);
#endif
        return false;
    });
}

static bool solve(const Layout &layout, const Problem &job) {
    if (job.float64)
        return layout.wide_rel ? solve_as<double, int32_t>(layout, job)
                               : solve_as<double, uint16_t>(layout, job);
    return layout.wide_rel ? solve_as<float, int32_t>(layout, job)
                           : solve_as<float, uint16_t>(layout, job);
}

}  // namespace WALK_NUMERIC
#endif
