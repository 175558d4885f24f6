// The contestant Open MPI: `mpirun ... peer_open_mpi DIR`.  Memory is the
// process's own, from malloc.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "serve.h"

namespace aliquot::peers {
namespace {

class OpenMpi : public Contestant {
 public:
  OpenMpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  float* memory(const std::string& kind, int64_t bytes) override {
    if (kind != "private") return nullptr;
    void*& data = memory_[bytes];
    if (data == nullptr) {
      data = std::malloc(static_cast<size_t>(bytes));
      if (data != nullptr) std::memset(data, 0, static_cast<size_t>(bytes));
    }
    return static_cast<float*>(data);
  }

  void run(Op op, const Buffers& b) override {
    const int all = static_cast<int>(b.elements);
    const int part = static_cast<int>(b.part);
    int code = MPI_SUCCESS;
    switch (op) {
      case Op::kAllReduce:
        code = MPI_Allreduce(MPI_IN_PLACE, b.dst, all, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
        break;
      case Op::kReduceScatter:
        code = MPI_Reduce_scatter_block(b.src, b.dst, part, MPI_FLOAT, MPI_SUM,
                                        MPI_COMM_WORLD);
        break;
      case Op::kAllGather:
        code = MPI_Allgather(b.src, part, MPI_FLOAT, b.dst, part, MPI_FLOAT,
                             MPI_COMM_WORLD);
        break;
      case Op::kGather:
        code = MPI_Gather(b.src, part, MPI_FLOAT, b.dst, part, MPI_FLOAT, 0,
                          MPI_COMM_WORLD);
        break;
      case Op::kScatter:
        code = MPI_Scatter(b.src, part, MPI_FLOAT, b.dst, part, MPI_FLOAT, 0,
                           MPI_COMM_WORLD);
        break;
    }
    if (code != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 1);
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0, size_ = 1;
  std::map<int64_t, void*> memory_;
};

}  // namespace
}  // namespace aliquot::peers

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int code = 2;
  if (argc == 2) {
    aliquot::peers::OpenMpi contestant;
    code = aliquot::peers::serve(contestant, argv[1]);
  }
  MPI_Finalize();
  return code;
}
