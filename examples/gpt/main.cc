// gpt: trains a small transformer on text, data-parallel through Aliquot.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "train.h"

namespace gpt {
namespace {

bool train_as(const Options& options, const Corpus& corpus,
              const Place& place) {
  try {
    train(options, corpus, place);
    return true;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return false;
  }
}

// All ranks in this process, one thread each.
bool train_threads(const Options& options, const Corpus& corpus) {
  std::atomic<bool> good = true;
  std::vector<std::thread> threads;
  const std::string world = fmt::format("gpt-{}", getpid());
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Place place{rank, options.ranks, world};
      if (!train_as(options, corpus, place)) good = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good;
}

int run(int argc, char** argv) {
  Options options;
  const int code = parse_options(argc, argv, &options);
  if (code >= 0) return code;
  try {
    check_options(options);
    const Corpus corpus = load_corpus(options.data, options.max_data_mib << 20,
                                      options.shape.seq);
    const bool good = options.threads ? train_threads(options, corpus)
                                      : train_as(options, corpus, {});
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) { return gpt::run(argc, argv); }
