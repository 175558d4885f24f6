// Tests and measures the library on a GPU, without a test framework:
//
//   gpu_test parity | streams | nccl RANKS | bandwidth
//
// One JSON object per line (bench_gpu.h); exit status 1 if a check failed, 2 if
// there is no device.  scripts/gpu_check runs it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench_gpu.h"

int main(int argc, char** argv) {
  using namespace aliquot::gpu;  // NOLINT
  const std::string what = argc > 1 ? argv[1] : "";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  if ((what != "parity" && what != "streams" && what != "nccl" &&
       what != "bandwidth") ||
      ranks < 1 || ranks > 64) {
    std::fprintf(stderr,
                 "usage: gpu_test parity | streams | nccl RANKS | bandwidth\n");
    return 2;
  }
  Machine machine = open_machine();
  if (what == "parity") {
    check_moves(machine);
    check_optimizers(machine);
    check_sums(machine);
    check_step(machine);
  } else if (what == "streams") {
    check_streams(machine);
  } else if (what == "nccl") {
    check_nccl(machine, ranks);
  } else {
    measure(machine);
  }
  return machine.report.failures() == 0 ? 0 : 1;
}
