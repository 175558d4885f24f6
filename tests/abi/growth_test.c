/* Callers compiled against another minor version: structs that are larger or
 * smaller than the library's own. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "abi/layout_asserts.h"
#include "aliquot/aliquot.h"

static int checks = 0, failures = 0;

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

static void check(int holds, const char* what, int line) {
  ++checks;
  if (holds) return;
  fprintf(stderr, "line %d: FAILED: %s\n", line, what);
  ++failures;
}

/* A caller from the future: 24 bytes more than this release knows. */
typedef struct larger_desc {
  alq_open_desc known;
  uint64_t tail[3];
} larger_desc;

static alq_error new_error(void) {
  alq_error err;
  memset(&err, 0, sizeof(err));
  err.struct_size = sizeof(err);
  return err;
}

static alq_status try_open(const void* desc, alq_error* err) {
  alq_context* ctx = 0;
  const alq_status status =
      alq_open(ALQ_ABI_VERSION, (const alq_open_desc*)desc, &ctx, err);
  CHECK((status == ALQ_OK) == (ctx != 0));
  if (ctx != 0) CHECK(alq_close(ctx, 0, 0) == ALQ_OK);
  alq_release(ctx);
  return status;
}

static larger_desc single(uint32_t struct_size) {
  larger_desc d;
  memset(&d, 0, sizeof(d));
  d.known.struct_size = struct_size;
  d.known.bootstrap = ALQ_BOOTSTRAP_SINGLE;
  return d;
}

static void oversized(void) {
  alq_error err = new_error();
  larger_desc d = single(sizeof(d));
  CHECK(try_open(&d, &err) == ALQ_OK);
  CHECK(err.message[0] == 0); /* success leaves the error alone */

  for (int i = 0; i < 3; ++i) {
    char offset[24];
    d = single(sizeof(d));
    d.tail[i] = 1;
    err = new_error();
    CHECK(try_open(&d, &err) == ALQ_UNIMPLEMENTED);
    CHECK(err.code == ALQ_UNIMPLEMENTED);
    snprintf(offset, sizeof(offset), "%zu",
             sizeof(alq_open_desc) + 8 * (size_t)i);
    CHECK(strstr(err.message, offset) != 0);
    CHECK(strstr(err.message, "alq_open_desc") != 0);
  }

  /* A tail that lies past struct_size is not the library's business. */
  d = single(sizeof(alq_open_desc));
  d.tail[0] = ~(uint64_t)0;
  CHECK(try_open(&d, &err) == ALQ_OK);
}

/* An older caller's struct: what it lacks is zero, and zero is the default. */
static void undersized(void) {
  const uint32_t sizes[] = {8, offsetof(alq_open_desc, rank),
                            offsetof(alq_open_desc, hints),
                            sizeof(alq_open_desc) - 8};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    larger_desc d = single(sizes[i]);
    alq_error err = new_error();
    /* Past struct_size: must not be read. */
    memset((char*)&d + sizes[i], 0xee, sizeof(d) - sizes[i]);
    CHECK(try_open(&d, &err) == ALQ_OK);
    if (err.message[0] != 0) fprintf(stderr, "%u: %s\n", sizes[i], err.message);
  }
}

/* Not even a head, or more than any release will have. */
static void impossible_sizes(void) {
  const uint32_t sizes[] = {0, 1, 4, 7, 1u << 20, 0x7fffffff, 0xffffffff};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    larger_desc d = single(sizes[i]);
    alq_error err = new_error();
    CHECK(try_open(&d, &err) == ALQ_INVALID_ARGUMENT);
    CHECK(strstr(err.message, "struct_size") != 0);
  }
}

static void unknown_flags(void) {
  larger_desc d = single(sizeof(alq_open_desc));
  alq_error err = new_error();
  d.known.flags = 0x80000000u;
  CHECK(try_open(&d, &err) != ALQ_OK);
  CHECK(strstr(err.message, "flags") != 0);
}

static void versions(void) {
  alq_context* ctx = 0;
  alq_error err = new_error();
  const uint32_t other_major = (ALQ_ABI_MAJOR + 1) << 16;
  CHECK(alq_open(other_major, 0, &ctx, &err) == ALQ_UNIMPLEMENTED);
  CHECK(ctx == 0 && err.message[0] != 0);
}

/* Out-structs: the library writes what both know and says how much. */
static void out_structs(alq_group* group) {
  struct {
    alq_group_stats known;
    unsigned char more[16];  /* of a later release: zeroed, as all structs */
    unsigned char guard[16]; /* not the struct's */
  } larger;
  memset(&larger, 0, sizeof(larger));
  memset(larger.guard, 0xee, sizeof(larger.guard));
  larger.known.struct_size = sizeof(alq_group_stats) + 16;
  CHECK(alq_group_get_stats(group, &larger.known, 0) == ALQ_OK);
  CHECK(larger.known.struct_size == sizeof(alq_group_stats));
  CHECK(larger.known.ops == 1);
  for (size_t i = 0; i < 16; ++i) {
    CHECK(larger.more[i] == 0);
    CHECK(larger.guard[i] == 0xee);
  }

  alq_group_stats same;
  memset(&same, 0, sizeof(same));
  same.struct_size = sizeof(same);
  CHECK(alq_group_get_stats(group, &same, 0) == ALQ_OK);
  CHECK(same.struct_size == sizeof(same));

  struct {
    unsigned char bytes[sizeof(alq_group_stats)];
  } smaller;
  memset(&smaller, 0xee, sizeof(smaller));
  alq_group_stats* old = (alq_group_stats*)(void*)&smaller;
  old->struct_size = 16; /* up to ops */
  old->flags = 0;
  CHECK(alq_group_get_stats(group, old, 0) == ALQ_OK);
  CHECK(old->struct_size == 16);
  CHECK(old->ops == 1);
  for (size_t i = 16; i < sizeof(smaller); ++i) {
    CHECK(smaller.bytes[i] == 0xee);
  }

  alq_group_stats unset;
  memset(&unset, 0, sizeof(unset));
  alq_error err = new_error();
  CHECK(alq_group_get_stats(group, &unset, &err) == ALQ_INVALID_ARGUMENT);
  CHECK(strstr(err.message, "struct_size") != 0);
}

/* An error is 1024 bytes, whatever its struct_size says before the call. */
static void errors(alq_context* ctx) {
  struct {
    alq_error known;
    unsigned char tail[8];
  } larger;
  const uint32_t sizes[] = {0, 48, sizeof(alq_error), 0xffffffff};
  for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); ++n) {
    memset(&larger, 0xee, sizeof(larger));
    larger.known.struct_size = sizes[n];
    CHECK(alq_fault_set(ctx, "no.such.point=kill", &larger.known) ==
          ALQ_NOT_FOUND);
    CHECK(larger.known.code == ALQ_NOT_FOUND);
    CHECK(larger.known.rank == -1);
    CHECK(larger.known.domain == ALQ_DOMAIN_SELF);
    CHECK(memchr(larger.known.message, 0, 1000) != 0);
    CHECK(strstr(larger.known.message, "no.such.point") != 0);
    for (int i = 0; i < 8; ++i) CHECK(larger.tail[i] == 0xee);
  }
}

int main(void) {
  oversized();
  undersized();
  impossible_sizes();
  unknown_flags();
  versions();

  larger_desc d = single(sizeof(alq_open_desc));
  alq_context* ctx = 0;
  alq_group* group = 0;
  CHECK(alq_open(ALQ_ABI_VERSION, &d.known, &ctx, 0) == ALQ_OK);
  CHECK(alq_group_world(ctx, &group, 0) == ALQ_OK);
  CHECK(alq_group_barrier(group, 0, 0, 0) == ALQ_OK);
  out_structs(group);
  errors(ctx);
  alq_group_release(group);
  CHECK(alq_close(ctx, 0, 0) == ALQ_OK);
  alq_release(ctx);
  printf("%d checks, %d failures\n", checks, failures);
  return failures != 0;
}
