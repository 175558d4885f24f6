// The same through the C++ face.
#include <aliquot/aliquot.hpp>
#include <cstdio>
#include <vector>

int main() {
  try {
    auto desc = alq::desc<alq_open_desc>();
    desc.bootstrap = ALQ_BOOTSTRAP_SINGLE;
    alq::context ctx = alq::context::open(desc);
    std::vector<int64_t> x = {7, 8};
    ctx.world().all_reduce(std::span(x), ALQ_MAX);
    ctx.close();
    std::printf("version %d\n", static_cast<int>(alq_version()));
    return x == std::vector<int64_t>({7, 8}) ? 0 : 1;
  } catch (const alq::error& e) {
    std::fprintf(stderr, "%s: %s\n", e.name(), e.what());
    return 1;
  }
}
