// Our contestant, through the public C ABI: `peer_ours DIR`, with ALIQUOT_* in
// the environment.  Memory is "shared" (alq_buffer_alloc) or "private"
// (malloc).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "aliquot/aliquot.h"
#include "serve.h"

namespace aliquot::peers {
namespace {

alq_error fresh_error() {
  alq_error error = {};
  error.struct_size = sizeof error;
  return error;
}

void need(alq_status status, const alq_error& error, const char* what) {
  if (status == ALQ_OK) return;
  std::fprintf(stderr, "peer_ours: %s: %s\n", what, error.message);
  std::exit(1);
}

class Ours : public Contestant {
 public:
  Ours() {
    alq_error error = fresh_error();
    alq_open_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.bootstrap = ALQ_BOOTSTRAP_ENV;
    need(alq_open(ALQ_ABI_VERSION, &desc, &context_, &error), error, "open");
    need(alq_group_world(context_, &group_, &error), error, "world");
  }
  Ours(const Ours&) = delete;
  Ours& operator=(const Ours&) = delete;
  ~Ours() override {
    alq_error error = fresh_error();
    for (auto& [bytes, buffer] : shared_) alq_buffer_release(buffer);
    for (auto& [bytes, data] : private_) std::free(data);
    alq_group_release(group_);
    need(alq_close(context_, 0, &error), error, "close");
    alq_release(context_);
  }
  int rank() const override { return alq_context_rank(context_); }
  int size() const override { return alq_context_size(context_); }

  float* memory(const std::string& kind, int64_t bytes) override {
    if (kind == "shared") {
      alq_buffer*& buffer = shared_[bytes];
      if (buffer == nullptr) {
        alq_error error = fresh_error();
        need(alq_buffer_alloc(context_, bytes, &buffer, &error), error,
             "buffer");
      }
      return static_cast<float*>(alq_buffer_data(buffer));
    }
    if (kind != "private") return nullptr;
    void*& data = private_[bytes];
    if (data == nullptr) {
      data = std::malloc(static_cast<size_t>(bytes));
      if (data != nullptr) std::memset(data, 0, static_cast<size_t>(bytes));
    }
    return static_cast<float*>(data);
  }

  void run(Op op, const Buffers& b) override {
    alq_error error = fresh_error();
    alq_status status = ALQ_OK;
    switch (op) {
      case Op::kAllReduce:
        status = alq_group_all_reduce(group_, b.src, b.dst, b.elements, ALQ_F32,
                                      ALQ_SUM, nullptr, nullptr, &error);
        break;
      case Op::kReduceScatter:
        status = alq_group_reduce_scatter(group_, b.src, b.dst, b.part, ALQ_F32,
                                          ALQ_SUM, nullptr, nullptr, &error);
        break;
      case Op::kAllGather:
        status = alq_group_all_gather(group_, b.src, b.dst, b.part, ALQ_F32,
                                      nullptr, nullptr, &error);
        break;
      case Op::kGather:
        status = alq_group_gather(group_, b.src, b.dst, b.part, nullptr,
                                  ALQ_F32, 0, nullptr, nullptr, &error);
        break;
      case Op::kScatter:
        status = alq_group_scatter(group_, b.src, b.dst, b.part, nullptr,
                                   ALQ_F32, 0, nullptr, nullptr, &error);
        break;
    }
    need(status, error, "collective");
  }

  void barrier() override {
    alq_error error = fresh_error();
    need(alq_group_barrier(group_, nullptr, nullptr, &error), error, "barrier");
  }

 private:
  alq_context* context_ = nullptr;
  alq_group* group_ = nullptr;
  std::map<int64_t, alq_buffer*> shared_;
  std::map<int64_t, void*> private_;
};

}  // namespace
}  // namespace aliquot::peers

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: peer_ours DIR\n");
    return 2;
  }
  aliquot::peers::Ours contestant;
  return aliquot::peers::serve(contestant, argv[1]);
}
