#include "engine/step_memory.h"

#include "engine/arena.h"

namespace aliquot::engine {

Result<std::unique_ptr<StepMemory>> StepMemory::create(
    Device* device, const Sizes& sizes, std::span<const int32_t> reduce_ranks,
    const std::vector<Optimizer>& optimizers) {
  std::unique_ptr<StepMemory> m(new StepMemory);
  m->device_ = device;
  m->microbatches_ = sizes.microbatches;
  std::byte* base = nullptr;
  int64_t bytes = 0;
  auto take = [&](auto** where, size_t count) {
    using T = std::remove_pointer_t<std::remove_pointer_t<decltype(where)>>;
    if (base != nullptr) *where = reinterpret_cast<T*>(base + bytes);
    bytes += round_up(static_cast<int64_t>(count * sizeof(T)), kAlign);
  };
  auto take_all = [&] {
    bytes = 0;
    take(&m->scalars, 1);
    take(&m->counters, 1);
    take(&m->counted, 1);
    take(&m->bad, static_cast<size_t>(sizes.microbatches));
    take(&m->factors, optimizers.size());
    take(&m->reduce_ranks, reduce_ranks.size());
    take(&m->mine, 1);
    take(&m->all, static_cast<size_t>(sizes.ranks));
  };
  take_all();  // how much, then where
  ALQ_ASSIGN(m->memory_, device->allocate(bytes, "step"));
  base = m->memory_->data();
  take_all();
  const int64_t results = round_up(2 * sizeof(kernels::StepResult), kAlign);
  ALQ_ASSIGN(m->host_, device->allocate_host(results + kAlign, "step results"));
  m->results = reinterpret_cast<kernels::StepResult*>(m->host_->data());
  m->failed = new (m->host_->data() + results) std::atomic<uint32_t>(0);

  std::vector<kernels::StepFactors> factors;
  for (const Optimizer& o : optimizers) {
    bool adamw = o.desc.kind == ALQ_OPTIM_ADAMW;
    factors.push_back(
        {adamw ? o.desc.beta1 : 0, adamw ? o.desc.beta2 : 0, 0, 0, 0, 0, 0, 0});
  }
  ALQ_TRY(
      m->launch(kernels::OpCode::kCopy,
                kernels::CopyArgs{
                    m->factors, factors.data(),
                    static_cast<int64_t>(factors.size() * sizeof factors[0])}));
  ALQ_TRY(m->launch(
      kernels::OpCode::kCopy,
      kernels::CopyArgs{m->reduce_ranks, reduce_ranks.data(),
                        static_cast<int64_t>(reduce_ranks.size_bytes())}));
  ALQ_TRY(m->reset());
  return m;
}

StepMemory::~StepMemory() {
  if (fail_word_ != nullptr) fail_word_->take_back();
}

// Failures of groups that served before mean nothing from here on.
void StepMemory::lend_fail_word() {
  if (fail_word_ != nullptr) fail_word_->take_back();
  failed->store(0);
  fail_word_ = std::make_shared<FailWord>(failed);
}

Status StepMemory::reset() {
  results[0] = results[1] = {};
  lend_fail_word();
  auto fill = [&](void* dst, size_t bytes, uint64_t value) {
    return launch(
        kernels::OpCode::kFill,
        kernels::FillArgs{dst, static_cast<int64_t>(bytes), value, 1});
  };
  // Shares that lie here must not look new ever again.
  constexpr int kEpochShift = 32;
  ALQ_TRY(launch(
      kernels::OpCode::kFill,
      kernels::FillArgs{&counters->serial, 1, epoch_++ << kEpochShift, 8}));
  ALQ_TRY(fill(counted, sizeof *counted, 0));
  // All bits: element and rank -1.
  return fill(bad, static_cast<size_t>(microbatches_) * sizeof *bad, 0xff);
}

}  // namespace aliquot::engine
