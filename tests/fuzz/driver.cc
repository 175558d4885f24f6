// Runs a fuzz target: on files, and on inputs made by changing its seeds.
//
//   fuzz_NAME [--runs N] [--seed S] [FILE or FOLDER]...
//
// Every file first, as it is; then N inputs, each a seed or a file after 1 to
// 16 changes.  The same S gives the same inputs.  No coverage is looked at: for
// that, libFuzzer takes one_input through LLVMFuzzerTestOneInput (build with
// clang and ALQ_SANITIZE=fuzzer-no-link,address) and afl-fuzz takes the program
// with @@ for the file.
//
// For every input: it ends within kCpuSeconds of processor time and kSeconds in
// all; live heap memory stays below the target's limit.  Over all of them
// neither memory nor descriptors grow.  An input that ends the process is left
// in NAME.input.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>

#include "fuzz/fuzz.h"

namespace {

std::atomic<int64_t> live{0}, peak{0};

}  // namespace

#ifndef ALQ_LIBFUZZER
void* operator new(size_t bytes) {
  void* p = std::malloc(bytes);
  if (p == nullptr) std::abort();
  auto have = static_cast<int64_t>(malloc_usable_size(p));
  int64_t now = live.fetch_add(have) + have;
  for (int64_t old = peak.load(); now > old;) {
    if (peak.compare_exchange_weak(old, now)) break;
  }
  return p;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* p) noexcept {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(p)));
  std::free(p);
}
void operator delete[](void* p) noexcept { operator delete(p); }
void operator delete(void* p, size_t) noexcept { operator delete(p); }
void operator delete[](void* p, size_t) noexcept { operator delete(p); }
#endif

namespace aliquot::fuzz {

void expect(bool good, std::string_view what) {
  if (good) return;
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()),
               what.data());
  std::abort();
}

namespace {

constexpr int kSeconds = 60, kCpuSeconds = 10;
constexpr size_t kMostBytes = 16 << 10;
constexpr int kWarm = 100;  // inputs until caches are filled
constexpr int64_t kMostGrowth = 1 << 20;

using Random = std::mt19937_64;

void change_once(std::string* in, const std::vector<std::string>& pool,
                 Random& random) {
  static constexpr uint64_t kNumbers[] = {0,
                                          1,
                                          2,
                                          0x7f,
                                          0x80,
                                          0xff,
                                          0x100,
                                          0x7fff,
                                          0x8000,
                                          0xffff,
                                          0x10000,
                                          1u << 20,
                                          (1u << 20) + 1,
                                          0x7fffffff,
                                          0x80000000,
                                          0xffffffff,
                                          1ull << 32,
                                          1ull << 60,
                                          ~0ull >> 1,
                                          ~0ull};
  auto at = [&] { return in->empty() ? 0 : random() % in->size(); };
  const std::string& other = pool[random() % pool.size()];
  size_t from = other.empty() ? 0 : random() % other.size();
  size_t i = at(), n = 1 + random() % 32;
  switch (random() % 9) {
    case 0:
      if (!in->empty()) (*in)[i] ^= static_cast<char>(1 << random() % 8);
      return;
    case 1:
      if (!in->empty()) (*in)[i] = static_cast<char>(random());
      return;
    case 2: {  // a number that is at some edge
      uint64_t number = kNumbers[random() % std::size(kNumbers)];
      size_t width = std::min<size_t>(in->size() - i, 1u << random() % 4);
      std::memcpy(in->data() + i, &number, width);
      return;
    }
    case 3: in->erase(i, n); return;
    case 4: in->insert(i, in->substr(at(), n)); return;
    case 5:
      for (; n > 0; --n) in->insert(i, 1, static_cast<char>(random()));
      return;
    case 6: in->resize(i); return;
    case 7: in->insert(i, other, from, 8 * n); return;
    default: in->replace(i, std::string::npos, other, from); return;
  }
}

std::string changed(const std::vector<std::string>& pool, Random& random) {
  std::string in = pool[random() % pool.size()];
  for (uint64_t n = 1ull << random() % 5; n > 0; --n) {
    change_once(&in, pool, random);
  }
  if (in.size() > kMostBytes) in.resize(kMostBytes);
  return in;
}

int descriptors() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

void too_long(int) {
  static constexpr char kText[] = "does not end in time\n";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(1);
}

class Runner {
 public:
  explicit Runner(const Target& target)
      : target_(target), path_(std::string(target.name) + ".input") {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    expect(file_ >= 0, "a file for the input that is run");
    signal(SIGALRM, too_long);
    signal(SIGPROF, too_long);
    signal(SIGPIPE, SIG_IGN);
  }
  void run(const std::string& in) {
    expect(ftruncate(file_, 0) == 0 && pwrite(file_, in.data(), in.size(), 0) ==
                                           static_cast<ssize_t>(in.size()),
           "the input is written down");
    itimerval wall = {{}, {kSeconds, 0}}, cpu = {{}, {kCpuSeconds, 0}};
    setitimer(ITIMER_REAL, &wall, nullptr);
    setitimer(ITIMER_PROF, &cpu, nullptr);
    int64_t before = live.load();
    peak.store(before);
    one_input(reinterpret_cast<const uint8_t*>(in.data()), in.size());
    expect(peak.load() - before < target_.most_memory, "little memory");
    most_ = std::max(most_, peak.load() - before);
    if (++count_ == kWarm) live_ = live.load(), open_ = descriptors();
  }
  void finish() {
    itimerval off = {};
    setitimer(ITIMER_REAL, &off, nullptr);
    setitimer(ITIMER_PROF, &off, nullptr);
    setitimer(ITIMER_PROF, &off, nullptr);
    if (count_ > kWarm) {
      expect(live.load() - live_ < kMostGrowth, "no memory is left behind");
      expect(descriptors() == open_, "no descriptors are left behind");
    }
    close(file_);
    unlink(path_.c_str());
    std::printf("%s: %d inputs, at most %lld KiB at once\n", target_.name,
                count_, static_cast<long long>(most_ >> 10));
  }

 private:
  const Target& target_;
  const std::string path_;
  int file_ = -1, count_ = 0, open_ = 0;
  int64_t live_ = 0, most_ = 0;
};

void read_files(const std::string& path, std::vector<std::string>* out) {
  namespace fs = std::filesystem;
  expect(fs::exists(path), "the file or folder is there: " + path);
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path)) {
    files.assign(fs::directory_iterator(path), {});
    std::sort(files.begin(), files.end());
  }
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    out->emplace_back(std::istreambuf_iterator<char>(in),
                      std::istreambuf_iterator<char>());
  }
}

}  // namespace

int run(int argc, char** argv) {
  Target what = target();
  uint64_t runs = 0, seed = 1;
  std::vector<std::string> pool;
  for (int i = 1; i < argc; ++i) {
    std::string_view name = argv[i];
    uint64_t* number = name == "--runs"   ? &runs
                       : name == "--seed" ? &seed
                                          : nullptr;
    if (number == nullptr) {
      read_files(argv[i], &pool);
      continue;
    }
    std::string_view text = ++i < argc ? argv[i] : "";
    auto [end, ec] = std::from_chars(text.begin(), text.end(), *number);
    expect(ec == std::errc() && end == text.end() && !text.empty(),
           "--runs and --seed take a number");
  }
  Runner runner(what);
  for (const std::string& in : pool) runner.run(in);
  pool.insert(pool.end(), what.seeds.begin(), what.seeds.end());
  Random random(seed);
  if (runs > 0) {
    for (const std::string& in : what.seeds) runner.run(in);
  }
  for (uint64_t i = 0; i < runs; ++i) runner.run(changed(pool, random));
  runner.finish();
  return 0;
}

}  // namespace aliquot::fuzz

#ifdef ALQ_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return one_input(data, size);
}
#else
int main(int argc, char** argv) { return aliquot::fuzz::run(argc, argv); }
#endif
