// A rank as a user writes it: the environment's world, one all-reduce.  Exit
// code 0 if the sum is right, else 1 with the error on stderr.  Argument: the
// most milliseconds that anything may take.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "aliquot/aliquot.h"

namespace {

int failed(const char* what, const alq_error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.message);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_context* context = nullptr;
  alq_open_desc desc = {};
  desc.struct_size = sizeof desc;
  if (argc > 1) desc.timeout_ns = std::atoll(argv[1]) * 1'000'000;
  if (alq_open(ALQ_ABI_VERSION, &desc, &context, &error) != ALQ_OK) {
    return failed("alq_open", error);
  }
  alq_group* group = nullptr;
  if (alq_group_world(context, &group, &error) != ALQ_OK) {
    return failed("alq_group_world", error);
  }
  int rank = alq_context_rank(context), size = alq_context_size(context);
  std::vector<double> x(1000, rank + 1);
  if (alq_group_all_reduce(group, x.data(), x.data(), 1000, ALQ_F64, ALQ_SUM,
                           nullptr, nullptr, &error) != ALQ_OK) {
    return failed("alq_group_all_reduce", error);
  }
  alq_group_release(group);
  if (alq_close(context, 0, &error) != ALQ_OK) return failed("close", error);
  alq_release(context);
  std::printf("rank %d of %d: %g\n", rank, size, x[999]);
  return x[0] == size * (size + 1) / 2 && x[999] == x[0] ? 0 : 1;
}
