#include "multi/nccl/gpu_ranks.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>

namespace aliquot::test {
namespace {

constexpr const char* kDoubles = ALQ_DOUBLES;

struct Outcome {
  int done;
  char text[8000];
};

void judge_violations(Rank& rank, const GpuOptions& options) {
  auto count = ALQ_DOUBLE("libcuda.so.1", double_violations);
  if (count == nullptr || options.violations_are_fine) return;
  rank.check(count() == 0, fmt::format("{} violations, see stderr", count()));
}

void with_gpu(Rank& rank, const GpuOptions& options,
              const std::function<void(Rank&, Gpu&)>& body) {
  {
    Gpu gpu;
    Status opened = open_gpu(rank, gpu);
    if (options.ranks.faults.empty()) {
      rank.check_ok(opened, "open");
      // Nobody aborts what another rank is still opening.
      Coll barrier;
      barrier.label = "opened";
      rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "meet");
    }
    if (opened.ok()) body(rank, gpu);
  }
  // The peers may need this one to end their communicators.
  judge_violations(rank, options);
}

void run_child(const GpuOptions& options,
               const std::function<void(Rank&, Gpu&)>& body, Outcome* outcome) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("ALIQUOT_DOUBLE_DELAY_US", std::to_string(options.delay_us).c_str(),
         1);
  for (const auto& [name, value] : options.environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  RanksResult result = run_ranks(
      options.ranks, [&](Rank& rank) { with_gpu(rank, options, body); });
  std::string text;
  for (size_t q = 0; q < result.ranks.size(); ++q) {
    text += result.ranks[q].failures;
  }
  if (!options.ends_badly && !result.ok() && text.empty()) text = result.text();
  if (result.timed_out) text += "timed out\n";
  text.copy(outcome->text, sizeof outcome->text - 1);
  outcome->done = 1;
}

}  // namespace

void* double_symbol(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

std::shared_ptr<Stream> Gpu::make_stream(Rank& rank) {
  auto made = device->create_stream("test");
  rank.check_ok(made.status(), "create_stream");
  return made.ok() ? *made : nullptr;
}

Status open_gpu(Rank& rank, Gpu& gpu, bool group) {
  Context& context = *rank.context;
  context.library_paths["cuda"] = fmt::format("{}/libcuda.so.1", kDoubles);
  context.library_paths["cublas"] = fmt::format("{}/libcublas.so.13", kDoubles);
  if (context.library_paths["nccl"].empty()) {
    context.library_paths["nccl"] = fmt::format("{}/libnccl.so.2", kDoubles);
  }
  // The stand-in has its kernels; it only wants some image.
  context.cuda_image = fmt::format("{}/image.txt", kDoubles);
  ALQ_ASSIGN(gpu.device, CudaDevice::open(rank.context, rank.rank % 2));
  gpu.stream = gpu.make_stream(rank);
  if (!group) return {};
  ALQ_ASSIGN(gpu.group,
             nccl::NcclGroup::create(rank.context, gpu.device, rank.group,
                                     "world", context.deadline(0)));
  return {};
}

GpuBytes::GpuBytes(Rank& rank, Gpu& gpu, int64_t bytes)
    : rank_(rank), gpu_(gpu) {
  if (bytes == 0) return;
  auto made = gpu.device->allocate(bytes, "test");
  rank.check_ok(made.status(), "allocate");
  if (made.ok()) memory_ = std::move(*made);
}

void GpuBytes::set(const Buffer& from, int64_t at) {
  if (from.empty()) return;
  kernels::CopyArgs args{data() + at, from.data(),
                         static_cast<int64_t>(from.size())};
  rank_.check_ok(
      gpu_.device->launch(nullptr, kernels::OpCode::kCopy, &args, sizeof args),
      "copy to the device");
}

Buffer GpuBytes::get(Stream* stream, int64_t at, int64_t bytes) {
  Buffer out(static_cast<size_t>(bytes));
  if (stream != nullptr) {
    rank_.check_ok(
        gpu_.device->synchronize(*stream, rank_.context->deadline(0)),
        "synchronize");
  }
  if (bytes == 0) return out;
  kernels::CopyArgs args{out.data(), data() + at, bytes};
  rank_.check_ok(
      gpu_.device->launch(nullptr, kernels::OpCode::kCopy, &args, sizeof args),
      "copy from the device");
  return out;
}

std::string run_gpu(const GpuOptions& options,
                    const std::function<void(Rank&, Gpu&)>& body) {
  {
    std::ofstream image(fmt::format("{}/image.txt", kDoubles));
    image << "aliquot double\n";
  }
  void* page = mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return "no memory";
  auto* outcome = new (page) Outcome();
  pid_t pid = fork();
  if (pid == 0) {
    run_child(options, body, outcome);
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::string text = outcome->text;
  if (outcome->done == 0) {
    text += fmt::format("the ranks' process ended with status {}\n", status);
  }
  munmap(page, sizeof(Outcome));
  return text;
}

void gpu_everywhere(const std::vector<int32_t>& sizes,
                    const std::function<void(Rank&, Gpu&)>& body,
                    GpuOptions options) {
  for (RankKind kind : kinds()) {
    for (int32_t size : sizes) {
      options.ranks.kind = kind;
      options.ranks.size = size;
      std::string text = run_gpu(options, body);
      BOOST_TEST(text.empty(), size << " " << kind_name(kind) << ": " << text);
    }
  }
}

}  // namespace aliquot::test
