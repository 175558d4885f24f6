/* aliquot.h: the C ABI of libaliquot.so.1, the only header a foreign-function
 * interface needs.  C99, includes only <stddef.h> and <stdint.h>.
 *
 * Rules that hold everywhere
 *
 * Structs.  Every struct begins with struct_size and flags.  Zero the struct,
 *   set struct_size = sizeof, fill what you need: zero always means "default".
 *   A caller built against another minor version may pass a smaller or larger
 *   struct; a larger one whose unknown tail is not zero is refused, naming the
 *   offset.  In out-structs the library writes back how many bytes it filled.
 * Errors.  Every fallible function returns alq_status and takes, last, an
 *   alq_error* that may be NULL.  On failure it is filled; on success it is
 *   left alone.  No function throws, prints, exits or installs a handler.
 * Handles.  Opaque and reference counted; children keep their parents alive,
 *   so they may be released in any order.  Three exits, never mixed:
 *     alq_X_abort    any thread, never blocks: wakes everyone, poisons X.
 *     alq_X_close    collective and orderly, until the deadline.
 *     alq_X_release  local, never blocks, NULL is a no-op; safe in finalizers.
 * Threads.  Each function says "Thread: any" (thread-safe), "Thread: handle"
 *   (any thread, one at a time per handle: handles migrate freely) or "Thread:
 *   collective" (as handle, and every member of the group calls it, in the
 *   same order).  A const handle may be used concurrently.
 * Blocking.  Each function says "Blocks: never", "Blocks: until deadline" or
 *   what it waits for.  timeout_ns: 0 is the group's or context's default, a
 *   negative value is refused.  All waits are woken by abort.
 * Sizes.  Element counts, offsets and shapes are int64_t; byte lengths of host
 *   text are size_t; ranks are int32_t; times are nanoseconds unless said
 *   otherwise.  Strings are UTF-8 and, where returned, live as long as the
 *   handle they came from.
 * Text out.  (buf, cap, need): writes at most cap bytes including the final
 *   zero and stores the bytes needed in *need; cap 0 with buf NULL only asks.
 * Fork.  A child forked while contexts are open must not use them: calls with
 *   the parent's handles return FAILED_PRECONDITION and releases are no-ops.  It
 *   may open contexts of its own.
 */
#ifndef ALIQUOT_ALIQUOT_H_
#define ALIQUOT_ALIQUOT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALQ_API __attribute__((visibility("default")))

/* ------------------------------------------------------------------ version
 * The library's version is semantic; the ABI's major is the SONAME's. */
#define ALQ_VERSION_MAJOR 0
#define ALQ_VERSION_MINOR 1
#define ALQ_VERSION_PATCH 0
#define ALQ_ABI_MAJOR 1
#define ALQ_ABI_MINOR 0
#define ALQ_ABI_VERSION ((ALQ_ABI_MAJOR << 16) | ALQ_ABI_MINOR)

/* Library version as major * 1000000 + minor * 1000 + patch.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_version(void);

/* JSON about this binary: version, abi, compiler, build type, backends that
 * were compiled in, SIMD targets.  Static storage.
 * Thread: any.  Blocks: never. */
ALQ_API const char* alq_build_info(void);

/* ------------------------------------------------------------------- status */
typedef int32_t alq_status;

#define ALQ_OK 0
#define ALQ_CANCELLED 1
#define ALQ_UNKNOWN 2
#define ALQ_INVALID_ARGUMENT 3
#define ALQ_DEADLINE_EXCEEDED 4
#define ALQ_NOT_FOUND 5
#define ALQ_ALREADY_EXISTS 6
#define ALQ_PERMISSION_DENIED 7
#define ALQ_RESOURCE_EXHAUSTED 8
#define ALQ_FAILED_PRECONDITION 9
#define ALQ_ABORTED 10
#define ALQ_OUT_OF_RANGE 11
#define ALQ_UNIMPLEMENTED 12
#define ALQ_INTERNAL 13
#define ALQ_UNAVAILABLE 14
#define ALQ_DATA_LOSS 15
#define ALQ_UNAUTHENTICATED 16
/* The feature is declared but this build or placement does not have it. */
#define ALQ_UNSUPPORTED 101
/* A rank died, left or was removed; alq_error.rank names it. */
#define ALQ_PEER_FAILED 102
/* The group failed earlier; the message repeats the first cause. */
#define ALQ_GROUP_POISONED 103
/* Ranks called different operations; the message names both. */
#define ALQ_RANK_MISMATCH 104

/* Caller-owned, 1024 bytes, no allocation and nothing to free.  rank is the
 * world rank at fault or -1; native_code is an errno or a library's own code;
 * message is one or two sentences: what happened, to which object, with which
 * numbers, and what to do. */
typedef struct alq_error {
  uint32_t struct_size, flags;
  int32_t code, domain, native_code, rank;
  char message[1000];
} alq_error;

#define ALQ_DOMAIN_SELF 0
#define ALQ_DOMAIN_ERRNO 1
#define ALQ_DOMAIN_CUDA 2
#define ALQ_DOMAIN_NCCL 3
#define ALQ_DOMAIN_UCX 4

/* The constant's name ("ALQ_INVALID_ARGUMENT"); unknown codes give
 * "ALQ_UNKNOWN".  Static storage.  Thread: any.  Blocks: never. */
ALQ_API const char* alq_status_name(alq_status status);

/* -------------------------------------------------------------------- dtype */
typedef int32_t alq_dtype;

#define ALQ_DTYPE_DEFAULT 0
#define ALQ_F64 1
#define ALQ_F32 2
#define ALQ_F16 3
#define ALQ_BF16 4
#define ALQ_I8 5
#define ALQ_I16 6
#define ALQ_I32 7
#define ALQ_I64 8
#define ALQ_U8 9
#define ALQ_U16 10
#define ALQ_U32 11
#define ALQ_U64 12
/* Moved as bytes; no arithmetic, so reductions refuse them. */
#define ALQ_BOOL 13
#define ALQ_F8E4M3 14
#define ALQ_F8E5M2 15

/* Bytes of one element; 0 for an unknown dtype.
 * Thread: any.  Blocks: never. */
ALQ_API int64_t alq_dtype_size(alq_dtype dtype);

/* Short name ("f32"); "?" for an unknown dtype.  Static storage.
 * Thread: any.  Blocks: never. */
ALQ_API const char* alq_dtype_name(alq_dtype dtype);

/* The layout of DLPack's DLTensor, field for field, so that a DLTensor* may be
 * passed as it is.  Borrowed for the call.  strides are in elements; NULL means
 * compact and row-major. */
typedef struct alq_tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} alq_tensor;

/* ------------------------------------------------------------------ context
 * A context is one rank: its place in the world, its device, its groups.
 * Nothing in the library is global to the process: several ranks may live in
 * one process as threads, each with a context of its own. */
typedef struct alq_context alq_context;

#define ALQ_DEVICE_CPU 1
#define ALQ_DEVICE_CUDA 2

/* How ranks find each other. */
#define ALQ_BOOTSTRAP_AUTO 0   /* environment if there is one, else SINGLE */
#define ALQ_BOOTSTRAP_SINGLE 1 /* a world of one rank */
#define ALQ_BOOTSTRAP_ENV 2    /* ALIQUOT_* or torchrun's variables; required */
#define ALQ_BOOTSTRAP_STORE 3  /* TCP store at store_address */
#define ALQ_BOOTSTRAP_BYTES 4  /* alq_bootstrap_blob and alq_connect */
#define ALQ_BOOTSTRAP_LOCAL 5  /* ranks are threads; they meet by world_name */

/* Progress thread: helps queued operations along while the caller computes. */
#define ALQ_PROGRESS_AUTO 0 /* only where idle cores make overlap pay */
#define ALQ_PROGRESS_OFF 1
#define ALQ_PROGRESS_ON 2

typedef struct alq_open_desc {
  uint32_t struct_size, flags;
  const void* next; /* experimental blocks only; NULL */
  int32_t bootstrap;
  int32_t rank, world_size;          /* STORE, BYTES, LOCAL */
  int32_t local_rank, local_size;    /* 0 local_size: derived */
  int32_t device_type, device_id;    /* 0: CPU; CUDA: the driver's number */
  int32_t progress;
  const char* store_address; /* "host:port"; rank 0 listens */
  const char* store_secret;  /* shared secret, 1 to 256 bytes */
  const char* world_name;    /* LOCAL: same name = same world.  Labels jobs */
  /* "key=value;..."; unknown keys are refused.  throttle_mb_per_s=N: queued
   * operations take as long as on a wire of N MB/s, to show overlap.
   * huge_pages=0: leave the pages of the caller's buffers alone; otherwise
   * private buffers of 4 MiB and more that peers read repeatedly are asked to
   * lie on huge pages.  stage_sums=BYTES, stage_copies=BYTES (on rank 0): up to
   * this many bytes that one rank has for another, private memory is copied
   * through shared memory instead of read by a system call; stage_streams=0 or
   * 1: it, and results that peers read next, are written through or past the
   * caches.  All three are measured when the world is made, and the faster way
   * is looked for now and then after that, unless they are given.
   * cuda_library=PATH, nccl_library=PATH, cublas_library=PATH: load exactly
   * this; library_dirs=PATH:PATH: look for the last two here before the
   * system's places.  cuda_image=PATH: GPU kernels of this file instead of the
   * built-in ones.  ALIQUOT_HINTS in the environment has hints too, which come
   * before these.
   * flight_dir=PATH (or ALIQUOT_FLIGHT_DIR): keep the last
   * operations in PATH/rank-N.flight, which outlives the process; the command
   * `aliquot blame PATH` reads them.  PATH exists and has no ';'. */
  const char* hints;
  int64_t timeout_ns;        /* default deadline of every call; 0: 300 s */
  double time_scale;         /* multiplies every detector constant; 0: 1 */
} alq_open_desc;

/* Opens a rank.  desc NULL means all defaults: the environment's world, CPU.
 * abi_version is ALQ_ABI_VERSION as compiled; another major is refused.
 * Before this call the library starts no thread, reads no environment and
 * loads nothing.  With BYTES the context is returned unconnected: exchange
 * blobs, then call alq_connect.
 * Errors: INVALID_ARGUMENT, UNIMPLEMENTED (abi, unknown struct tail),
 *   UNAVAILABLE (device, no route), UNAUTHENTICATED (secret),
 *   DEADLINE_EXCEEDED (names the missing ranks), RANK_MISMATCH (world sizes).
 * Thread: collective over the world.  Blocks: until deadline. */
ALQ_API alq_status alq_open(uint32_t abi_version, const alq_open_desc* desc,
                            alq_context** out, alq_error* err);

/* This rank's bytes for a BYTES bootstrap (at most 1 KiB).  The framework
 * brings every rank's bytes to every rank by any means it has.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_bootstrap_blob(alq_context* ctx, void* buf, size_t cap,
                                      size_t* need, alq_error* err);

/* Finishes a BYTES bootstrap: blobs of all ranks in rank order, each of
 * blob_bytes bytes, one after the other.
 * Thread: collective over the world.  Blocks: until deadline. */
ALQ_API alq_status alq_connect(alq_context* ctx, const void* blobs,
                               size_t blob_bytes, int64_t timeout_ns,
                               alq_error* err);

/* World rank and size of a context; -1 for NULL.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_context_rank(const alq_context* ctx);
ALQ_API int32_t alq_context_size(const alq_context* ctx);

/* Orderly end: waits for queued work, meets all ranks, then closes every group
 * and stops the context's threads.  The handle stays valid for release.
 * Thread: collective over the world.  Blocks: until deadline. */
ALQ_API alq_status alq_close(alq_context* ctx, int64_t timeout_ns,
                             alq_error* err);

/* Poisons every group of the context on every rank that can be told.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_abort(alq_context* ctx, const char* reason,
                             alq_error* err);

/* Drops the handle.  A context released without alq_close counts as a rank
 * that left: its peers' pending and later calls fail naming it.
 * Thread: any.  Blocks: never; with NCCL until it has freed its communicators,
 * at most 8 s. */
ALQ_API void alq_release(alq_context* ctx);

/* JSON: world, device, threads, transports in use and why, libraries loaded
 * (path, version) and not loaded (what was tried, why it failed).
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_runtime_info(const alq_context* ctx, char* buf,
                                    size_t cap, size_t* need, alq_error* err);

/* 1 if the feature is in this build ("backend.mem", "device.cuda",
 * "strategy.fsdp" ...), else 0.  Touches no device and loads nothing.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_has(const char* feature);

/* Takes the oldest log line of the context's ring ("level object: text"); need
 * is 0 when the ring is empty.  The library never prints.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_log_read(alq_context* ctx, char* buf, size_t cap,
                                size_t* need, alq_error* err);

/* Arms a named fault point of this rank, for tests of failure handling:
 * "point[:hit][@rank]=action", comma separated.  action: kill, stop, exit,
 * error, delay_ms/N; skip at engine.comm alone: until it is disarmed engines
 * move no data between ranks and wait for none, so that their own overhead can
 * be measured.  hit counts from 1 (the first time the point is passed).
 * ALIQUOT_FAULT does the same at alq_open.  NULL disarms all.
 * Errors: NOT_FOUND lists the known points.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_fault_set(alq_context* ctx, const char* spec,
                                 alq_error* err);

/* ------------------------------------------------- stream, event, work, buffer
 * A stream orders operations.  On CUDA it is the caller's own (handle =
 * CUstream; 0 is refused as ambiguous).  On CPU handle is a stream made here,
 * a queue run by whoever waits (and by the progress thread, if any).  A NULL
 * alq_stream* means "the calling thread, now": the call returns when the
 * operation is done. */
typedef struct alq_stream {
  int32_t device_type, device_id;
  void* handle;
} alq_stream;

typedef struct alq_event alq_event;
typedef struct alq_work alq_work;
typedef struct alq_buffer alq_buffer;

/* Creates a stream of this context: on CPU a queue, on CUDA a stream of the
 * driver that waits for no other.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_stream_create(alq_context* ctx, alq_stream* out,
                                     alq_error* err);

/* Waits until all that was enqueued so far is done, helping it along.  Returns
 * the first error of the operations waited for.
 * Thread: any.  Blocks: until deadline. */
ALQ_API alq_status alq_stream_sync(alq_context* ctx, const alq_stream* stream,
                                   int64_t timeout_ns, alq_error* err);

/* Drops a stream made by alq_stream_create; what was enqueued is still done.
 * Thread: any.  Blocks: never. */
ALQ_API void alq_stream_release(alq_context* ctx, alq_stream* stream);

/* An event marks a place in a stream.  A new event counts as done.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_event_create(alq_context* ctx, alq_event** out,
                                    alq_error* err);
/* Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_event_record(alq_event* event, const alq_stream* stream,
                                    alq_error* err);
/* Later work of the stream starts only after the event's last record.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_event_wait(const alq_event* event,
                                  const alq_stream* stream, alq_error* err);
/* *done = 1 or 0.  Thread: any.  Blocks: never. */
ALQ_API alq_status alq_event_query(const alq_event* event, int32_t* done,
                                   alq_error* err);
/* Thread: any.  Blocks: until deadline. */
ALQ_API alq_status alq_event_sync(const alq_event* event, int64_t timeout_ns,
                                  alq_error* err);
/* Thread: any.  Blocks: never. */
ALQ_API void alq_event_release(alq_event* event);

/* A work is one enqueued operation.  wait returns its status; after its own
 * timeout, shorter than the group's, the operation simply goes on.
 * Thread: any.  Blocks: until deadline. */
ALQ_API alq_status alq_work_wait(alq_work* work, int64_t timeout_ns,
                                 alq_error* err);
/* *done = 1 once finished, well or not.  Never helps the operation along.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_work_query(const alq_work* work, int32_t* done,
                                  alq_error* err);
/* Dropping a work does not cancel it.  Thread: any.  Blocks: never. */
ALQ_API void alq_work_release(alq_work* work);

/* Lets queued operations of the context advance as far as they can without
 * waiting; *busy = 1 while some remain.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_poll(alq_context* ctx, int32_t* busy, alq_error* err);

/* Memory that the other ranks of this host can read in place: collectives on
 * it copy nothing.  64-byte aligned, zeroed, pages touched by the caller's
 * thread, huge pages where the system gives them.  bytes > 0.
 * Errors: RESOURCE_EXHAUSTED says how much was asked and how much is free.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_buffer_alloc(alq_context* ctx, int64_t bytes,
                                    alq_buffer** out, alq_error* err);
/* NULL and 0 for NULL.  Thread: any.  Blocks: never. */
ALQ_API void* alq_buffer_data(const alq_buffer* buffer);
ALQ_API int64_t alq_buffer_bytes(const alq_buffer* buffer);
/* The memory is unmapped when no operation uses it any more.
 * Thread: any.  Blocks: never. */
ALQ_API void alq_buffer_release(alq_buffer* buffer);

/* -------------------------------------------------------------------- group
 * A set of ranks that communicate.  All members issue the same operations on a
 * group in the same order, whatever stream each is enqueued on.  Every
 * operation carries a fingerprint (operation, count, dtype, root) that is
 * compared before data moves: a difference is RANK_MISMATCH on all members.
 *
 * The canonical sum: reductions add the members' contributions linearly in
 * rank order, in the accumulate dtype (f32 for f16 and bf16, else the dtype
 * itself; integers wrap), and round once.  The result depends on nothing else.
 *
 * After an error a group is poisoned: every later call returns GROUP_POISONED
 * with the first cause.  alq_group_shrink makes a new group of the survivors. */
typedef struct alq_group alq_group;

typedef int32_t alq_reduce_op;
#define ALQ_SUM 1
#define ALQ_AVG 2 /* the sum times 1/size in the accumulate dtype; no integers */
#define ALQ_MIN 3 /* a NaN of any member gives NaN */
#define ALQ_MAX 4

/* The group of all ranks.  Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_group_world(alq_context* ctx, alq_group** out,
                                   alq_error* err);

/* Splits a group as MPI_Comm_split does: equal color, one new group, ordered by
 * (key, rank in parent).  A negative color joins no group: *out is NULL.  name
 * (may be NULL) appears in errors and traces.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_group_split(alq_group* parent, int32_t color,
                                   int32_t key, const char* name,
                                   alq_group** out, alq_error* err);

/* Own rank in the group and its size; -1 for NULL.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_group_rank(const alq_group* group);
ALQ_API int32_t alq_group_size(const alq_group* group);

/* World ranks of the members in group order; cap is in elements.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_group_ranks(const alq_group* group, int32_t* out,
                                   int32_t cap, alq_error* err);

/* Default deadline of the group's operations; 0 restores the context's.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_group_set_timeout(alq_group* group, int64_t timeout_ns,
                                         alq_error* err);

/* ALQ_OK, or why the group is poisoned.
 * Thread: any.  Blocks: until whoever is writing that down has done so, and at
 * most 1 s if that rank was stopped in it. */
ALQ_API alq_status alq_group_status(const alq_group* group, alq_error* err);

/* Exact counts since the group was made, of this rank: bytes read from and
 * written to memory on behalf of data (flags and descriptors not counted),
 * system calls made, among them sleeps for a late peer. */
typedef struct alq_group_stats {
  uint32_t struct_size, flags;
  int64_t ops;
  int64_t bytes_read, bytes_written;
  int64_t peer_bytes_read; /* part of bytes_read that came from other ranks */
  int64_t syscalls, sleeps;
} alq_group_stats;

/* Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_group_get_stats(const alq_group* group,
                                       alq_group_stats* out, alq_error* err);

/* Thread: any.  Blocks: never. */
ALQ_API alq_status alq_group_abort(alq_group* group, const char* reason,
                                   alq_error* err);
/* Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_group_close(alq_group* group, int64_t timeout_ns,
                                   alq_error* err);
/* After a failure: the members that are alive and call this get a group without
 * the others, in the order of their old ranks and of the next generation: it
 * has the old name with "#generation".  Members that have not called are waited
 * for until timeout_ns is nearly over, except those that died, left or have been
 * stopped.  All who get the group have the same members, whoever dies
 * meanwhile; who can not be among them gets an error.
 *
 * The old group stays poisoned.  A member that was taken for dead and comes
 * later has been removed: all that it does on the old group, and on groups that
 * were split from it, fails and says so, and nothing that it writes reaches the
 * new group.  Groups of survivors alone stay as they are.  If the group was the
 * context's world, the new one takes its place in alq_group_world,
 * alq_mesh_create and alq_close; world ranks remain what they were.
 * Errors: FAILED_PRECONDITION (the group is well: abort it first; or was shrunk
 *   before), PEER_FAILED (this rank was removed), DEADLINE_EXCEEDED (this rank
 *   is out), RESOURCE_EXHAUSTED (on all: try again).
 * Thread: collective over the survivors.  Blocks: until deadline. */
ALQ_API alq_status alq_group_shrink(alq_group* group, int64_t timeout_ns,
                                    alq_group** out, alq_error* err);
/* Thread: any.  Blocks: never. */
ALQ_API void alq_group_release(alq_group* group);

/* Collectives.  Common to all of them:
 *   src is read, dst written; they are equal (in place) where said, else they
 *   do not overlap.  Buffers stay untouched and alive until the work is done.
 *   Counts are elements and may be 0.  Any memory may be used; that of
 *   alq_buffer_alloc moves without copies.
 *   stream NULL: done on return, deadline = the group's.  Otherwise enqueued;
 *   work (may be NULL) receives a handle to release.
 * Thread: collective.  Blocks: until deadline if stream is NULL, else never. */

/* dst[i] = op over ranks of src[i], on every rank.  In place: dst == src.
 * Source: owner-chunk reduction, cost 2(P-1)/P S read per rank, DESIGN 5. */
ALQ_API alq_status alq_group_all_reduce(alq_group* group, const void* src,
                                        void* dst, int64_t count,
                                        alq_dtype dtype, alq_reduce_op op,
                                        const alq_stream* stream,
                                        alq_work** work, alq_error* err);

/* dst = the ranks' src one after the other; count is one rank's.  In place:
 * src == dst + rank * count. */
ALQ_API alq_status alq_group_all_gather(alq_group* group, const void* src,
                                        void* dst, int64_t count,
                                        alq_dtype dtype,
                                        const alq_stream* stream,
                                        alq_work** work, alq_error* err);

/* As all_gather with counts[r] elements from rank r; counts has group size
 * entries and is equal on all ranks. */
ALQ_API alq_status alq_group_all_gather_v(alq_group* group, const void* src,
                                          void* dst, const int64_t* counts,
                                          alq_dtype dtype,
                                          const alq_stream* stream,
                                          alq_work** work, alq_error* err);

/* dst = own part of op over ranks of src; src holds size * count elements,
 * dst count.  In place: dst == src + rank * count. */
ALQ_API alq_status alq_group_reduce_scatter(alq_group* group, const void* src,
                                            void* dst, int64_t count,
                                            alq_dtype dtype, alq_reduce_op op,
                                            const alq_stream* stream,
                                            alq_work** work, alq_error* err);

/* As reduce_scatter with counts[r] elements for rank r, equal on all ranks. */
ALQ_API alq_status alq_group_reduce_scatter_v(
    alq_group* group, const void* src, void* dst, const int64_t* counts,
    alq_dtype dtype, alq_reduce_op op, const alq_stream* stream,
    alq_work** work, alq_error* err);

/* buf of root to buf of every rank. */
ALQ_API alq_status alq_group_broadcast(alq_group* group, void* buf,
                                       int64_t count, alq_dtype dtype,
                                       int32_t root, const alq_stream* stream,
                                       alq_work** work, alq_error* err);

/* Part r of src goes to rank r; part r of dst comes from rank r; count is one
 * part's.  Not in place. */
ALQ_API alq_status alq_group_all_to_all(alq_group* group, const void* src,
                                        void* dst, int64_t count,
                                        alq_dtype dtype,
                                        const alq_stream* stream,
                                        alq_work** work, alq_error* err);

/* All-to-all with counts per pair: send_counts[r] elements of src go to rank r,
 * recv_counts[r] elements of dst come from it, both one after the other in rank
 * order; group size entries each.  What r sends here and what is expected of
 * it must agree: RANK_MISMATCH names the pair.  Not in place. */
ALQ_API alq_status alq_group_all_to_all_v(
    alq_group* group, const void* src, const int64_t* send_counts, void* dst,
    const int64_t* recv_counts, alq_dtype dtype, const alq_stream* stream,
    alq_work** work, alq_error* err);

/* dst of root = op over ranks of src; the others' dst is not used.  In place on
 * root: dst == src. */
ALQ_API alq_status alq_group_reduce(alq_group* group, const void* src,
                                    void* dst, int64_t count, alq_dtype dtype,
                                    alq_reduce_op op, int32_t root,
                                    const alq_stream* stream, alq_work** work,
                                    alq_error* err);

/* dst of root = the ranks' src one after the other; the others' dst is not
 * used.  counts[r] elements from rank r, equal on all ranks; NULL: count from
 * each.  In place on root: src == dst + where its part begins. */
ALQ_API alq_status alq_group_gather(alq_group* group, const void* src,
                                    void* dst, int64_t count,
                                    const int64_t* counts, alq_dtype dtype,
                                    int32_t root, const alq_stream* stream,
                                    alq_work** work, alq_error* err);

/* dst of rank r = part r of root's src; the others' src is not used.  counts as
 * in gather.  In place on root: dst == src + where its part begins. */
ALQ_API alq_status alq_group_scatter(alq_group* group, const void* src,
                                     void* dst, int64_t count,
                                     const int64_t* counts, alq_dtype dtype,
                                     int32_t root, const alq_stream* stream,
                                     alq_work** work, alq_error* err);

/* As all_reduce, reduce_scatter and reduce with SUM, of factor * src: each rank
 * has a factor of its own.  The factor is rounded to the accumulate dtype, then
 * each product and each sum in it.  Floats only; counts as in gather. */
ALQ_API alq_status alq_group_all_reduce_premul(
    alq_group* group, const void* src, void* dst, int64_t count,
    alq_dtype dtype, double factor, const alq_stream* stream, alq_work** work,
    alq_error* err);
ALQ_API alq_status alq_group_reduce_scatter_premul(
    alq_group* group, const void* src, void* dst, int64_t count,
    const int64_t* counts, alq_dtype dtype, double factor,
    const alq_stream* stream, alq_work** work, alq_error* err);
ALQ_API alq_status alq_group_reduce_premul(
    alq_group* group, const void* src, void* dst, int64_t count,
    alq_dtype dtype, double factor, int32_t root, const alq_stream* stream,
    alq_work** work, alq_error* err);

/* Returns when every member has called it. */
ALQ_API alq_status alq_group_barrier(alq_group* group, const alq_stream* stream,
                                     alq_work** work, alq_error* err);

/* Point to point: the n-th send from a to b pairs with the n-th recv at b from
 * a; count and dtype must agree.  A send is done when its data was taken.
 * Independent of the group's collective order.
 * Thread: handle.  Blocks: as the collectives. */
ALQ_API alq_status alq_group_send(alq_group* group, const void* src,
                                  int64_t count, alq_dtype dtype, int32_t peer,
                                  const alq_stream* stream, alq_work** work,
                                  alq_error* err);
ALQ_API alq_status alq_group_recv(alq_group* group, void* dst, int64_t count,
                                  alq_dtype dtype, int32_t peer,
                                  const alq_stream* stream, alq_work** work,
                                  alq_error* err);

/* --------------------------------------------------------------------- mesh
 * Named axes over the world's ranks, first axis slowest: "dp_replicate=2,
 * dp_shard=4" puts ranks 0-3 into the first shard group.  Known axes: pp,
 * dp_replicate, dp_shard, cp, tp, ep; other names are allowed and have no
 * meaning of their own.  One axis may be -1: the rest of the world. */
typedef struct alq_mesh alq_mesh;

/* spec "" is one axis dp_shard over the world.
 * Errors: INVALID_ARGUMENT when the sizes do not multiply to the world.
 * Thread: collective over the world.  Blocks: until deadline. */
ALQ_API alq_status alq_mesh_create(alq_context* ctx, const char* spec,
                                   alq_mesh** out, alq_error* err);
/* Size of an axis; 1 for an axis the mesh does not have; -1 for NULL.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_mesh_axis_size(const alq_mesh* mesh, const char* axis);
/* Own coordinate on an axis; 0 for an axis the mesh does not have; -1 for NULL.
 * Thread: any.  Blocks: never. */
ALQ_API int32_t alq_mesh_coordinate(const alq_mesh* mesh, const char* axis);
/* The group over one axis or over several flattened ("dp_replicate,dp_shard",
 * in the mesh's own order).  Made on first use and kept: the same axes give
 * the same group.
 * Thread: collective over the world, first use; then handle.
 * Blocks: until deadline. */
ALQ_API alq_status alq_mesh_group(alq_mesh* mesh, const char* axes,
                                  alq_group** out, alq_error* err);
/* World ranks of the group over the axes that holds world rank `rank`, without
 * making a group.  cap in elements; *count receives how many there are.
 * Thread: any.  Blocks: never. */
ALQ_API alq_status alq_mesh_ranks(const alq_mesh* mesh, const char* axes,
                                  int32_t rank, int32_t* out, int32_t cap,
                                  int32_t* count, alq_error* err);
/* Thread: any.  Blocks: never. */
ALQ_API void alq_mesh_release(alq_mesh* mesh);

/* ------------------------------------------------------------------- engine
 * One engine for DDP, ZeRO-1, ZeRO-2, ZeRO-3/FSDP and HSDP.  A unit is the set
 * of parameters gathered and freed together (one transformer block).  For each
 * unit the placement says where parameters, gradients and optimizer states
 * live on the data axes dp_replicate and dp_shard of the mesh.
 *
 * Life: create; param_add and unit_add; optimizer_set; plan; commit;
 * param_write; then steps:
 *
 *   for each microbatch of the step
 *     microbatch_begin(TRAIN, weight, last)          -> grad_scale
 *     for each block:  unit_begin(F), compute, unit_end(F)
 *     for each block, last first:
 *       unit_begin(B), compute gradients into the lent views, grad_ready for
 *       each parameter, unit_end(B)
 *     microbatch_end
 *   step(lr, weight decay, clip)                     -> norm, skipped
 *
 * All ranks make the same calls with the same units in the same order; what is
 * communicated, and when, is a function of that sequence and the plan alone.
 *
 * Gradients are weighted sums.  microbatch_begin returns grad_scale = weight *
 * loss scale; the gradient of microbatch_mean_loss * grad_scale is what the
 * engine expects.  step divides by the sum of all weights of all ranks, so the
 * mean is by weight.
 *
 * The sum of gradients is canonical: linear in index order at each level of the
 * plan's nesting, in the accumulate dtype, rounded once. */
typedef struct alq_engine alq_engine;

/* Placement presets. */
#define ALQ_STRATEGY_DEFAULT 0 /* FSDP; SINGLE in a world of one */
#define ALQ_STRATEGY_SINGLE 1  /* no data axes: a world of one rank */
#define ALQ_STRATEGY_DDP 2     /* everything replicated */
#define ALQ_STRATEGY_ZERO1 3   /* optimizer states sharded */
#define ALQ_STRATEGY_ZERO2 4   /* and gradients */
#define ALQ_STRATEGY_FSDP 5    /* and parameters (ZeRO-3) */
#define ALQ_STRATEGY_HSDP 6    /* FSDP on dp_shard, replicas on dp_replicate */
#define ALQ_STRATEGY_CUSTOM 7  /* the three axis masks of alq_plan_desc */

/* Axis masks: over which axes a state is sharded; see alq_unit_place. */
#define ALQ_AXIS_NONE 0
#define ALQ_AXIS_DP_SHARD 1
#define ALQ_AXIS_DP_REPLICATE 2

/* Passes. */
#define ALQ_PASS_F 1        /* forward that a backward will follow */
#define ALQ_PASS_F_NOGRAD 2 /* forward that never counts towards a backward */
#define ALQ_PASS_R 3        /* recompute inside backward */
#define ALQ_PASS_B 4        /* backward */

#define ALQ_TRAIN 1
#define ALQ_EVAL 2

#define ALQ_DETERMINISM_DEFAULT 0 /* CANONICAL on CPU, FAST on CUDA */
#define ALQ_DETERMINISM_CANONICAL 1
#define ALQ_DETERMINISM_FAST 2 /* run-to-run only */

#define ALQ_ACCUMULATE_DEFAULT 0 /* EXACT */
#define ALQ_ACCUMULATE_EXACT 1   /* beta is 0 in every microbatch; engine adds */
#define ALQ_ACCUMULATE_FAST 2    /* beta is 1 where the caller's GEMM may add */

typedef struct alq_engine_desc {
  uint32_t struct_size, flags;
  const void* next; /* experimental blocks only; NULL */
  const char* name; /* appears in errors and traces */
  int32_t determinism;
  int32_t accumulate;
  alq_dtype grad_dtype;       /* of lent views; 0: the parameter's */
  alq_dtype accumulate_dtype; /* 0: f32 for f16 and bf16, else the dtype */
  alq_dtype master_dtype;     /* 0: f32 for f16 and bf16, else the dtype */
  uint32_t poison;            /* 1: fill freed memory with NaN (tests) */
  double loss_scale;          /* 0: 1 */
  const char* hints;          /* "key=value;..."; unknown keys are refused */
} alq_engine_desc;

/* The mesh's axes dp_replicate and dp_shard are the data axes; ranks that
 * differ in another axis have engines of their own.
 * Thread: collective over the data axes.  Blocks: until deadline. */
ALQ_API alq_status alq_engine_create(alq_mesh* mesh,
                                     const alq_engine_desc* desc,
                                     alq_engine** out, alq_error* err);

#define ALQ_PARAM_TRAINABLE 1u
/* Rows (dim 0) are never split between ranks. */
#define ALQ_PARAM_WHOLE_ROWS 2u

typedef struct alq_param_desc {
  uint32_t struct_size, flags; /* ALQ_PARAM_* */
  const char* name;            /* unique in the engine; copied */
  const int64_t* shape;        /* ndim entries, any may be 0 */
  int32_t ndim;
  alq_dtype dtype;     /* compute dtype: f64 f32 f16 bf16; frozen: any */
  int32_t optim_group; /* index of alq_optimizer_set; 0 by default */
  uint32_t reserved;
} alq_param_desc;

/* Adds a parameter; *id counts from 0.
 * Errors: ALREADY_EXISTS (name), INVALID_ARGUMENT, FAILED_PRECONDITION (after
 *   plan).
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_param_add(alq_engine* engine, const alq_param_desc* desc,
                                 int64_t* id, alq_error* err);

/* A unit that stays open over the others (embedding, final norm and head of a
 * model): its memory is its own and is declared resident. */
#define ALQ_UNIT_ROOT 1u

/* Adds a unit of n parameters; *id counts from 0.  Units are added in forward
 * order.  A parameter in two units is tied: it is stored and reduced once, and
 * is resident while either unit is open.  n may be 0.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_unit_add(alq_engine* engine, const char* name,
                                const int64_t* params, int64_t n,
                                uint32_t flags, int64_t* id, alq_error* err);

/* Places one unit by axis masks (ALQ_AXIS_*) of its own instead of the plan's
 * strategy: a small unit may stay replicated among sharded ones.
 *   A mask names the mesh's axes over which the state is sharded; each contains
 *   the one before (parameters, gradients, states).  An axis of one rank does
 *   not matter.  dp_shard with dp_replicate: each replica keeps its part of the
 *   shard; dp_replicate alone needs a mesh whose dp_shard is 1.
 *   HSDP and CUSTOM sum over dp_shard first, then over dp_replicate.  The other
 *   strategies use both axes as one: name all those of more than one rank or
 *   none.  The sum has the plan's nesting wherever the states are.
 *   ALQ_DEFER_DEFAULT is decided for each unit: where some units have sharded
 *   gradients and others not, EACH or LAST gives all sums one nesting.
 *   A tied parameter needs equal placements in its units: plan refuses others.
 * The last call counts.  Errors: OUT_OF_RANGE, INVALID_ARGUMENT (unknown axis),
 *   UNSUPPORTED (masks that do not contain each other), FAILED_PRECONDITION
 *   (after plan).
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_unit_place(alq_engine* engine, int64_t unit,
                                  uint32_t param_axes, uint32_t grad_axes,
                                  uint32_t state_axes, alq_error* err);

#define ALQ_OPTIM_NONE 0 /* the caller updates the shards */
#define ALQ_OPTIM_ADAMW 1
#define ALQ_OPTIM_SGD 2

/* Zero is the usual default only where noted: set what the optimizer uses. */
typedef struct alq_optimizer_desc {
  uint32_t struct_size, flags;
  int32_t kind;
  int32_t nesterov;        /* SGD */
  double beta1, beta2;     /* ADAMW */
  double eps;              /* ADAMW */
  double momentum;         /* SGD */
  double dampening;        /* SGD */
  alq_dtype state_dtype;   /* 0: master dtype */
  uint32_t reserved;
} alq_optimizer_desc;

/* Optimizer of group `group` (0, 1, ...).  Learning rate and weight decay are
 * given at each step.  ADAMW is decoupled decay: w -= lr * wd * w, then w -= lr
 * * mhat / (sqrt(vhat) + eps), with 1 - beta^t formed in f64.
 * Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_optimizer_set(alq_engine* engine, int32_t group,
                                     const alq_optimizer_desc* desc,
                                     alq_error* err);

/* Phases the plan must cover. */
#define ALQ_PHASE_TRAIN 1u
#define ALQ_PHASE_EVAL 2u
#define ALQ_PHASE_HOLD_ALL 4u /* unit_hold(ALQ_UNIT_ALL) */

#define ALQ_MEMORY_LEND 0 /* the library's arena */
#define ALQ_MEMORY_SLAB 1 /* one block handed to alq_engine_commit */
#define ALQ_MEMORY_INTO 2 /* destinations handed to alq_unit_begin */

#define ALQ_GATHER_AUTO 0
/* No rank reads or writes memory of another.  Otherwise ranks of one host also
 * update together what each has whole: a part each, in all ranks' copies, with
 * one set of optimizer states. */
#define ALQ_GATHER_COPY 1
/* Shards of a unit share one mapping of the host; a gather copies nothing (but
 * once per step the parts that replicas updated).  Asked for, it needs a unit
 * with sharded parameters, and all such units sharded over dp_shard alone. */
#define ALQ_GATHER_MAP 2

#define ALQ_DEFER_DEFAULT 0 /* by unit: EACH if its gradients are sharded */
#define ALQ_DEFER_EACH 1    /* reduce in every microbatch */
#define ALQ_DEFER_LAST 2    /* accumulate locally, reduce in the last one */

typedef struct alq_plan_desc {
  uint32_t struct_size, flags;
  const void* next;   /* experimental blocks only; NULL */
  int32_t strategy;   /* ALQ_STRATEGY_* */
  uint32_t param_axes, grad_axes, state_axes; /* CUSTOM: axis masks */
  uint32_t phases;    /* 0: TRAIN | EVAL */
  int32_t microbatches; /* most per step and rank; 0: 1 */
  int32_t prefetch;   /* units ahead; 0: default 1, negative: none */
  /* Neighbouring non-root units, in the order of unit_add, that may be open or
   * collecting gradients at once; 0: 1.  Units that are prefetch + max_open
   * apart share a slot.  A checkpoint over k units needs k - 1. */
  int32_t max_open;
  int32_t reshard;    /* free after forward: 0 by strategy, 1 yes, 2 no */
  int32_t defer;      /* ALQ_DEFER_* */
  int32_t memory;     /* ALQ_MEMORY_* */
  int32_t gather;     /* ALQ_GATHER_* */
  /* ALQ_PROGRESS_*: whether a thread runs gathers and reductions while the
   * caller computes.  AUTO decides at commit: off where every core has a rank,
   * else by measuring whether it pays (about 30 ms, once per context);
   * alq_engine_report says what was decided and why.  The thread is the
   * context's: the last engine committed decides, unless the context was opened
   * with ON or OFF; the contrary then is FAILED_PRECONDITION. */
  int32_t progress;
  uint32_t reserved;
  int64_t cap_bytes;  /* refuse a plan above; 0: no cap */
  /* Nesting of the microbatch sum, outermost level first: "4x2" means 8
   * microbatches, summed in 4 groups of 2; "3+2+2" sums 7 in groups of 3, 2
   * and 2; terms may stand in parentheses.  NULL: flat.  It lets one rank
   * repeat the sum of any layout bit for bit. */
  const char* nesting;
} alq_plan_desc;

/* Bytes of one rank by owner; their sum is the peak. */
typedef struct alq_plan_report {
  uint32_t struct_size, flags;
  int64_t total_bytes;
  int64_t param_bytes;  /* shards at rest, in compute dtype */
  int64_t master_bytes; /* master copies, where the dtype differs */
  int64_t slot_bytes;   /* gathered units */
  int64_t grad_bytes;   /* lent gradient views */
  int64_t accum_bytes;  /* accumulated gradients */
  int64_t state_bytes;  /* optimizer states */
  int64_t staging_bytes;
  int64_t gather_bytes_per_step; /* received, by this rank */
  int64_t reduce_bytes_per_step; /* received, by this rank */
  int64_t units, params;
} alq_plan_report;

/* Decides placements and memory; allocates nothing.  May be called again with
 * another desc until commit.  After commit, between steps and with nothing held,
 * it plans a change: the engine goes on as it is until the next commit, which
 * moves all values and optimizer states over.  report may be NULL.
 * Errors: RESOURCE_EXHAUSTED (over the cap: names the cheapest ways to fit),
 *   INVALID_ARGUMENT (mesh and strategy do not match), UNSUPPORTED.
 * Thread: collective.  Blocks: until deadline (plans are compared). */
ALQ_API alq_status alq_engine_plan(alq_engine* engine,
                                   const alq_plan_desc* desc,
                                   alq_plan_report* report, alq_error* err);

/* The plan as text or JSON.  Thread: any.  Blocks: never. */
#define ALQ_FORMAT_TEXT 0
#define ALQ_FORMAT_JSON 1
ALQ_API alq_status alq_engine_plan_text(const alq_engine* engine,
                                        int32_t format, char* buf, size_t cap,
                                        size_t* need, alq_error* err);

/* Allocates what the plan says, once.  slab: total_bytes bytes, 4096-byte
 * aligned, for MEMORY_SLAB; else NULL.  Parameters start uninitialised.
 *
 * After a change was planned: the same, then every value and optimizer state is
 * gathered once into its new place (both plans' memory exists meanwhile) and the
 * old memory is given back, a slab to the caller.  Steps go on with the same
 * numbers; all addresses and views are new; gradients and traces of earlier
 * steps are gone.  If a rank's slab is refused, all ranks keep the old plan.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_engine_commit(alq_engine* engine, void* slab,
                                     alq_error* err);

/* What of a parameter. */
#define ALQ_VALUE 1   /* master copy if there is one, else the parameter */
#define ALQ_GRAD 2    /* gradient of the last step, before 1/sum of weights */
#define ALQ_STATE_0 3 /* ADAMW: first moment.  SGD: momentum */
#define ALQ_STATE_1 4 /* ADAMW: second moment */

/* Writes elements [begin, begin + count) of a full parameter from data, in
 * dtype (0: the parameter's own).  Each rank keeps the part it owns and reads
 * nothing else, so a rank may pass only its own range (see alq_shard_view): a
 * large model is initialised shard by shard.  Between microbatches only.
 * Replicas must be given equal data.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_param_write(alq_engine* engine, int64_t param,
                                   int32_t what, const void* data,
                                   int64_t begin, int64_t count,
                                   alq_dtype dtype, alq_error* err);

/* Reads elements [begin, begin + count) of the full tensor into data, in dtype
 * (0: as stored).  Between microbatches only.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_param_read(alq_engine* engine, int64_t param,
                                  int32_t what, void* data, int64_t begin,
                                  int64_t count, alq_dtype dtype,
                                  alq_error* err);

/* Own part of a parameter as it lies in memory: elements [begin, begin +
 * count) of the flattened full tensor, at data.  count may be 0.  flags has
 * SHARD_COMMON where ranks of one host have this memory in common (optimizer
 * states that each has whole): all write the same values, or one does. */
#define ALQ_SHARD_COMMON 1u

typedef struct alq_shard {
  uint32_t struct_size, flags;
  void* data;
  int64_t begin, count;
  alq_dtype dtype;
  uint32_t reserved;
} alq_shard;

/* After commit.  The pointer is valid until the engine's end; on CUDA it is one
 * of the device, to be read and written by the caller's kernels.  Writing
 * through it is allowed between steps, followed by alq_param_touch.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_shard_view(alq_engine* engine, int64_t param,
                                  int32_t what, alq_shard* out,
                                  alq_error* err);

/* Says that values were written through shard views: the next gathers see
 * them.  Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_param_touch(alq_engine* engine, alq_error* err);

/* Begins a microbatch.  weight: its share in the mean (its tokens), > 0 or 0
 * for one that must not count; EVAL ignores it.  last = 1 in the step's last
 * microbatch (deferred gradients are reduced in it).  *grad_scale: see above.
 * Thread: collective.  Blocks: never. */
ALQ_API alq_status alq_microbatch_begin(alq_engine* engine, int32_t mode,
                                        double weight, int32_t last,
                                        double* grad_scale, alq_error* err);

/* Flag of alq_unit_view: gradients of this unit come by alq_grad_push, so pass
 * B lends no views. */
#define ALQ_VIEW_PUSH 1u

/* What unit_begin lends.  Arrays have n entries, in the order of unit_add, and
 * live as long as the engine; a parameter has the same address every time.
 * grads[i]: where to write the gradient (NULL: frozen, not lent, or a pass
 * other than B); betas[i]: 0 write, 1 add to what is there.  A view once lent
 * counts as written: a host that has nothing to write there writes zeros. */
typedef struct alq_unit_view {
  uint32_t struct_size, flags; /* ALQ_VIEW_* */
  void* const* into; /* in: MEMORY_INTO destinations, else NULL */
  int64_t n;
  void* const* params;
  void* const* grads;
  const int32_t* betas;
} alq_unit_view;

/* Makes a unit's parameters readable at the view's addresses: work enqueued on
 * the stream afterwards may read them.  Gathers them if they are not there and
 * starts the gathers that the plan prefetches.  Passes nest; a begin without an
 * end is closed by microbatch_end.  Pass B also lends gradient views.
 * Errors: RESOURCE_EXHAUSTED: its slot holds another open unit; plan with a
 *   larger max_open.  FAILED_PRECONDITION: outside a microbatch.
 * Thread: collective.  Blocks: until deadline (CPU). */
ALQ_API alq_status alq_unit_begin(alq_engine* engine, int64_t unit,
                                  int32_t pass, const alq_stream* stream,
                                  alq_unit_view* view, alq_error* err);

/* Ends the innermost open pass of that kind.  Its parameters may go away;
 * gradients are not concerned.
 * Thread: collective.  Blocks: never. */
ALQ_API alq_status alq_unit_end(alq_engine* engine, int64_t unit, int32_t pass,
                                const alq_stream* stream, alq_error* err);

/* The gradient of this parameter is final for this microbatch and lies in the
 * lent view.  When all trainable parameters of a unit are ready its reduction
 * starts; those never made ready count as zero at microbatch_end.
 * Thread: collective.  Blocks: never. */
ALQ_API alq_status alq_grad_ready(alq_engine* engine, int64_t param,
                                  const alq_stream* stream, alq_error* err);

/* As grad_ready, with the gradient in the caller's own tensor (any float dtype,
 * contiguous, the parameter's element count): it is cast into the lent view.
 * Thread: collective.  Blocks: never. */
ALQ_API alq_status alq_grad_push(alq_engine* engine, int64_t param,
                                 const alq_tensor* grad,
                                 const alq_stream* stream, alq_error* err);

/* Closes everything still open, supplies zeros for gradients that never came,
 * starts every reduction still due.  Mandatory; calling it twice is harmless.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_microbatch_end(alq_engine* engine,
                                      const alq_stream* stream,
                                      alq_error* err);

typedef struct alq_step_desc {
  uint32_t struct_size, flags;
  const double* lr;           /* n_groups entries */
  const double* weight_decay; /* n_groups entries; NULL: 0 */
  int32_t n_groups;
  uint32_t reserved;
  double clip_norm; /* clip the global L2 norm to this; 0: no clipping */
} alq_step_desc;

typedef struct alq_step_report {
  uint32_t struct_size, flags;
  double grad_norm;  /* global, of the mean gradient, before clipping */
  double weight_sum; /* over all ranks and microbatches */
  int64_t step;      /* counts steps that were not skipped, from 1 */
  int64_t bad_param; /* first parameter with a non-finite gradient or -1 */
  int32_t bad_rank, bad_microbatch;
  int32_t skipped; /* 1: non-finite; no rank changed anything */
  uint32_t reserved;
} alq_step_report;

/* Ends a step: global norm (independent of the placement), clipping, the
 * optimizer, and new parameters for the next gathers.  lr is per group.
 * report may be NULL.  If ranks are lost while others update (the error says
 * so), parameters may be of two steps, also where every rank has them whole.
 *   On CUDA a step without report only enqueues: it allocates nothing and waits
 *   for nothing, so that it can be captured in a CUDA graph (with a report it
 *   can not).  A replay repeats the step with the weights, rates and clip norm
 *   that were captured, gathers what the graph uses, and counts itself: capture
 *   whole steps, and destroy the graph before the context, whose communicators
 *   it holds.  Whether such a step is taken, skipped or refused
 *   (RANK_MISMATCH; FAILED_PRECONDITION for the sum of weights; where a rank's
 *   communication failed its group's error, ABORTED on ranks of other groups;
 *   nothing was changed then) is decided on the device: the first refusal is
 *   returned, once, by the next call that waits: alq_step with a report,
 *   alq_param_read, _write or _touch, a new plan's commit, close.
 * Thread: collective.  Blocks: until deadline; on CUDA without report, never. */
ALQ_API alq_status alq_step(alq_engine* engine, const alq_step_desc* desc,
                            const alq_stream* stream, alq_step_report* report,
                            alq_error* err);

/* Says how many steps were taken before, for optimizer states that were written
 * with alq_param_write: AdamW's bias correction and SGD's first step follow it.
 * Between steps, the same on all ranks (the next step compares).
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_step_set(alq_engine* engine, int64_t steps,
                                alq_error* err);

/* Keeps a unit (or all: ALQ_UNIT_ALL) gathered until unhold, whatever passes
 * begin and end, so that ranks may run different numbers of passes meanwhile
 * (generation).  ALL needs the phase HOLD_ALL in a plan whose gathers copy;
 * unhold of ALL ends every hold there is.
 * Thread: collective.  Blocks: until deadline. */
#define ALQ_UNIT_ALL (-1)
ALQ_API alq_status alq_unit_hold(alq_engine* engine, int64_t unit,
                                 alq_error* err);
ALQ_API alq_status alq_unit_unhold(alq_engine* engine, int64_t unit,
                                   alq_error* err);

/* Leaves the current step after an exception on this rank.  The other ranks'
 * calls that need this one return ABORTED, naming it, and later ones
 * GROUP_POISONED; they call abandon too.  It returns when all have: gradients,
 * weights and holds are dropped, and the next step starts clean, as if the
 * batch had never been seen.  Parameters and optimizer states are those of the
 * last step that was taken: a step is taken by all ranks or by none (one that
 * returned an error on a rank may have been taken: see "steps" of the report).
 * Also gets an engine going again whose ranks disagreed or were late, but not
 * one that lost a rank.  Engines of one mesh share communicators: all of them
 * must be left, in the same order.  timeout_ns 0: the context's deadline.
 * Errors: DEADLINE_EXCEEDED, PEER_FAILED (names who did not come).
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_engine_abandon(alq_engine* engine, int64_t timeout_ns,
                                      alq_error* err);

/* What a rank served in join. */
typedef struct alq_join_report {
  uint32_t struct_size, flags;
  int64_t microbatches; /* TRAIN */
  int64_t evals;        /* EVAL, where passes need other ranks */
  int64_t steps;        /* calls of alq_step, taken, skipped or refused */
  int32_t left; /* 1: ended by join_leave, 0: all ranks have entered */
  /* Where all are now: TRAIN microbatches of the step that is not taken yet,
   * and whether its last one is among them. */
  int32_t begun, last;
  uint32_t reserved;
} alq_join_report;

/* A rank that has run out of data enters join, so that ranks may have different
 * numbers of microbatches in a step, or of steps.  It serves what the others
 * call: gathers, reductions, steps (with their arguments), parameter reads; to
 * a microbatch it contributes gradients of zero and weight 0.  It returns when
 * every rank has entered, or has called join_leave; all go on from the same
 * place, between the same microbatches or steps.
 *   join_leave is for ranks that still have data: it ends join for those that
 *   are in it.  All ranks that have not entered call it at the same place; it
 *   waits for those that are not there yet.
 *   A step still needs a last microbatch: pass last = 1 in what is the last one
 *   of all ranks.  Where none can know it, all enter, and then end the step with
 *   a microbatch of weight 0 without passes.
 *   Sums keep their order, with nothing where a rank had nothing.  One rank
 *   repeats the bits with the nesting "3+2+2" if three ranks had 3, 2 and 2
 *   microbatches and gradients are reduced in the last one (DEFER_LAST), in the
 *   order of ranks; with "3+3+1" if they are reduced in each, in the order of
 *   microbatches; with replicas, "(2+1)+(2+2)" sums two of them.
 *   Ranks in join cannot serve param_write, unit_hold, engine_plan, trace_write
 *   and close: called meanwhile, these end as errors on all ranks, as does any
 *   disagreement of those that have data, naming the ranks, the calls and the
 *   unit.  abandon then goes on as always; it also ends join.
 * report may be NULL.  Costs nothing while no rank is in join.  A rank that is
 * thousands of calls ahead of another waits for it (any call may).
 * Errors: UNSUPPORTED (ranks of several hosts, CUDA), FAILED_PRECONDITION (inside
 *   a microbatch, or while units are held), RANK_MISMATCH, ABORTED, PEER_FAILED,
 *   DEADLINE_EXCEEDED (no rank called anything for so long).
 * Thread: collective.  Blocks: until all ranks have come here; the deadline is
 *   of each wait for the others' next call. */
ALQ_API alq_status alq_join_enter(alq_engine* engine, alq_join_report* report,
                                  alq_error* err);
ALQ_API alq_status alq_join_leave(alq_engine* engine, alq_join_report* report,
                                  alq_error* err);

/* JSON about the last step: gathers and reductions with bytes, exposed
 * communication and why, repairs of the recorded order, peak bytes, and whether
 * a progress thread runs and why.
 * Thread: handle.  Blocks: never. */
ALQ_API alq_status alq_engine_report(const alq_engine* engine, char* buf,
                                     size_t cap, size_t* need, alq_error* err);

/* Writes what the always-on recorder kept of the last steps, of all ranks, into
 * an existing directory: trace.json (Perfetto) and timeline.svg (one step; step
 * -1: the last whole one; steps count from 0), by the first rank, and
 * rank-N.json by each.  Ranks of one host share a clock, so no offset applies.
 * Errors: NOT_FOUND, PERMISSION_DENIED and others of the file system, on the
 *   rank that met them.
 * Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_engine_trace_write(alq_engine* engine, const char* dir,
                                          int32_t step, alq_error* err);

/* Thread: collective.  Blocks: until deadline. */
ALQ_API alq_status alq_engine_close(alq_engine* engine, int64_t timeout_ns,
                                    alq_error* err);
/* Thread: any.  Blocks: never. */
ALQ_API void alq_engine_release(alq_engine* engine);

/* ---------------------------------------------------------- table and layout
 * The same functions as one append-only table, for run-time loading with one
 * dlsym.  struct_size first, then a pointer per function in header order; see
 * abi/aliquot_api.h, which is generated.  NULL if this library is older than
 * (major, minor).  Static storage.  Thread: any.  Blocks: never. */
typedef struct alq_api alq_api;
ALQ_API const alq_api* alq_get_api(uint32_t major, uint32_t minor);

/* JSON: size of every struct and offset and size of every field, as compiled
 * into the library; bindings check themselves against it.  Static storage.
 * Thread: any.  Blocks: never. */
ALQ_API const char* alq_layout(void);

#ifdef __cplusplus
}
#endif

#endif /* ALIQUOT_ALIQUOT_H_ */
