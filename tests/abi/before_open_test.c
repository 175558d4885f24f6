/* Before alq_open the library starts no thread, reads no environment variable,
 * loads nothing, opens no file and installs no signal handler.
 *
 * Usage: before_open_test LIBRARY
 *
 * The environment is replaced by a string on a page that cannot be read: any
 * read of a variable, by whatever function, ends the test with SIGSEGV. */
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/aliquot_api.h"

static int failures = 0;

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

static int entries(const char* folder) {
  DIR* dir = opendir(folder);
  int n = 0;
  if (dir == 0) return -1;
  while (readdir(dir) != 0) ++n;
  closedir(dir);
  return n;
}

static int count_object(struct dl_phdr_info* info, size_t size, void* n) {
  (void)info;
  (void)size;
  ++*(int*)n;
  return 0;
}

static int objects(void) {
  int n = 0;
  dl_iterate_phdr(count_object, &n);
  return n;
}

static int handlers(void) {
  int n = 0;
  for (int s = 1; s < NSIG; ++s) {
    struct sigaction action;
    if (sigaction(s, 0, &action) != 0) continue;
    n += action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
  }
  return n;
}

static void poison_environment(void) {
  static char* poisoned[2];
  poisoned[0] = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  environ = poisoned;
}

static void use_without_open(const alq_api* api) {
  alq_error err = {.struct_size = sizeof(err)};
  check(api->alq_version() > 0, "alq_version");
  check(strstr(api->alq_build_info(), "compiler") != 0, "alq_build_info");
  check(strstr(api->alq_layout(), "alq_open_desc") != 0, "alq_layout");
  check(api->alq_has("backend.mem") == 1, "alq_has mem");
  check(api->alq_has("no.such.feature") == 0, "alq_has unknown");
  check(api->alq_has(0) == 0, "alq_has NULL");
  check(strcmp(api->alq_status_name(ALQ_OK), "ALQ_OK") == 0, "status_name");
  check(api->alq_dtype_size(ALQ_F64) == 8, "dtype_size");
  check(api->alq_context_rank(0) == -1, "context_rank of NULL");
  check(api->alq_close(0, 0, &err) != ALQ_OK, "close of NULL");
  api->alq_release(0);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int tasks = entries("/proc/self/task");
  const int files = entries("/proc/self/fd");
  const int signals = handlers();
  poison_environment();

  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == 0) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const int loaded = objects();
  const alq_api* (*get_api)(uint32_t, uint32_t);
  *(void**)&get_api = dlsym(library, "alq_get_api");
  check(get_api != 0, "alq_get_api");
  if (get_api == 0) return 1;
  use_without_open(get_api(ALQ_ABI_MAJOR, ALQ_ABI_MINOR));

  check(entries("/proc/self/task") == tasks, "a thread was started");
  check(entries("/proc/self/fd") == files, "a file was opened");
  check(objects() == loaded, "a library was loaded");
  check(handlers() == signals, "a signal handler was installed");
  check(dlclose(library) == 0, "dlclose");
  check(strstr(get_api(1, 0)->alq_build_info(), "compiler") != 0,
        "code stays mapped after dlclose");
  printf("%d failures\n", failures);
  return failures != 0;
}
