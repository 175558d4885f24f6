/* A forked child may live on without the library: every call there is refused,
 * every release does nothing, and the parent does not notice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aliquot/aliquot.h"

static int failures = 0;

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

static void check(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "pid %d, line %d: FAILED: %s\n", (int)getpid(), line, what);
  ++failures;
}

static int in_child(alq_context* ctx, alq_group* group, alq_buffer* buffer) {
  alq_error err;
  float x = 1;
  alq_group* world = 0;
  memset(&err, 0, sizeof(err));
  err.struct_size = sizeof(err);
  alarm(20);
  CHECK(alq_group_all_reduce(group, &x, &x, 1, ALQ_F32, ALQ_SUM, 0, 0, &err) ==
        ALQ_FAILED_PRECONDITION);
  CHECK(strstr(err.message, "fork") != 0);
  CHECK(alq_group_world(ctx, &world, 0) == ALQ_FAILED_PRECONDITION);
  CHECK(alq_close(ctx, 0, 0) == ALQ_FAILED_PRECONDITION);
  CHECK(alq_abort(ctx, "child", 0) == ALQ_FAILED_PRECONDITION);
  alq_buffer_release(buffer);
  alq_group_release(group);
  alq_release(ctx);
  return failures != 0;
}

int main(void) {
  alq_context* ctx = 0;
  alq_group* group = 0;
  alq_buffer* buffer = 0;
  alq_open_desc d;
  memset(&d, 0, sizeof(d));
  d.struct_size = sizeof(d);
  d.bootstrap = ALQ_BOOTSTRAP_SINGLE;
  CHECK(alq_open(ALQ_ABI_VERSION, &d, &ctx, 0) == ALQ_OK);
  CHECK(alq_group_world(ctx, &group, 0) == ALQ_OK);
  CHECK(alq_buffer_alloc(ctx, 4096, &buffer, 0) == ALQ_OK);
  if (failures != 0) return 1;

  const pid_t child = fork();
  if (child == 0) exit(in_child(ctx, group, buffer));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

  int64_t* x = (int64_t*)alq_buffer_data(buffer);
  CHECK(x != 0);
  x[0] = 41;
  CHECK(alq_group_all_reduce(group, x, x, 1, ALQ_I64, ALQ_SUM, 0, 0, 0) ==
        ALQ_OK);
  CHECK(x[0] == 41);
  alq_buffer_release(buffer);
  alq_group_release(group);
  CHECK(alq_close(ctx, 0, 0) == ALQ_OK);
  alq_release(ctx);
  printf("%d failures\n", failures);
  return failures != 0;
}
