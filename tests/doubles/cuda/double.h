// What a test may ask of the stand-in for libcuda.so.1, beside the driver API.
//
// The stand-in runs the real CUDA path of the library on host memory, as
// hostile as the driver's contract allows.  Every stream is a thread that waits
// a random while before each item; memory is poisoned (0xff: NaN) when
// allocated and when freed, and fenced; kernels are the .cu sources compiled
// for the host.  Nothing it measures says anything about a GPU.
//
// Environment, read when the library is loaded:
//   ALIQUOT_DOUBLE_SEED      of the delays; default 1
//   ALIQUOT_DOUBLE_DELAY_US  longest delay before an item; default 200, 0: none
//   ALIQUOT_DOUBLE_DEVICES   devices; default 2
//   ALIQUOT_DOUBLE_MUTATE    as double_mutate
//   ALIQUOT_DOUBLE_KERNELS   library that adds kernels; loaded before the first
//                            module
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct CUstream_st;

// Something that no correct program does: said on stderr, counted, and the
// process ends with 97 unless forgiven.
void double_violation(const char* text);
int double_violations(void);
// Takes back those so far: for tests that provoke them.
void double_forgive(void);

// How often since the last reset: "launch", "record", "wait", "memcpy",
// "memset", "alloc", "free", "host_alloc", "stream", "event", "query",
// "sync" (explicit synchronisation), "host_sync" (the host waited for a stream,
// by whatever call), "graph_launch", "enqueue".  A call in a capture counts
// when it is captured.
int64_t double_count(const char* what);
void double_reset_counts(void);

// From now on streams draw their delays from this seed.
void double_seed(uint64_t seed);
void double_delay_us(int64_t longest);

// While on, allocating, freeing, loading and waiting on the host are
// violations: what a step call must not do.
void double_step(int on);

// Runs run(argument) on the stream's thread, in order; in a capture it becomes
// a node, and runs at every launch of the graph.  0, or a CUresult.
int double_enqueue(CUstream_st* stream, void (*run)(void*), void* argument);
// The same; drop(argument) when it can run no more: after it ran, or when its
// graph and all that were made of it are destroyed.
int double_enqueue_held(CUstream_st* stream, void (*run)(void*),
                        void (*drop)(void*), void* argument);

// While on, frees wait until no stream of the context has anything left, as the
// real driver's do in fact: for what ends by an error and knows nothing of its
// streams.
void double_free_waits(int on);

// While on, the legacy and the per-thread default stream are streams like
// others: for callers who work on them.
void double_default_streams(int on);

// A kernel by name: run(parameters, grid, block, shared bytes).  `bytes` of the
// one parameter are copied at launch.  Hides a compiled-in kernel of this name.
using DoubleKernel = void (*)(void** parameters, uint32_t grid, uint32_t block,
                              uint32_t shared);
void double_add_kernel(const char* name, DoubleKernel run, size_t bytes);

// One fault, to show that a test sees it; "" or null: none.  k counts from 1
// since this call.  Returns 0, or -1 for an unknown name.
//   drop_wait:k        the k-th stream wait is lost
//   drop_record:k      the k-th event record is lost
//   early_done:k       from the k-th on, queries of unfinished events say done
//   swap_arguments:k   the k-th launch has its first two pointers swapped
//   short_tail:k       the k-th launch does one element less
//   short_grid:k       the k-th launch lacks its last block
//   drop_launch:k      the k-th launch is lost
//   late_arguments:k   the k-th launch reads its parameter when it runs
//   short_copy:k       the k-th copy lacks its last byte
//   default_stream:k   the k-th launch is put on the legacy stream
//   other_stream:k     the k-th launch is put on another stream of its context
//   ignore_skip:k      the k-th launch of an optimizer does not see that the
//                      step is skipped
// k 0: all of them.
// With `name=NAME` before them only kernels whose name has NAME in it count:
// "name=adamw,short_tail:1".  With `site=SITE` only waits or records at
// sites that begin so count.
int double_mutate(const char* text);
// How often the fault was put in.
int64_t double_mutated(void);

// From now on every call site of waits and records is noted, "kind offset event
// stream": where in the library the call of the device comes from; and what it
// is for, if double_engine was told of the engine: "gathered", "caller"...
void double_sites(int on);
// A line per site with its number of calls; returns the bytes it takes.
size_t double_sites_text(char* text, size_t size);
// The calling thread's engine on this device has just been committed: its
// streams and events are the last ones that were made (executor.cc).
void double_engine(int device, int bundles);

// The next call (or kernel, for "kernel") fails with this CUresult; sticky: and
// all later ones of its context.  `entry` is a driver function's name.
void double_fail(const char* entry, int result, int sticky);
// The same of the n-th call from now on, counted from 1.
void double_fail_at(const char* entry, int64_t n, int result, int sticky);
// How many failures asked for have not come yet; they are forgotten.
int64_t double_unfail(void);

// Looks for what was written outside of blocks or after they were freed, as the
// end of the process does.
void double_check_memory(void);

// Bytes allocated and not freed, device and host together.
int64_t double_live_bytes(void);
// Streams, events and modules that are not destroyed, and retained contexts.
int64_t double_live_handles(void);
}
