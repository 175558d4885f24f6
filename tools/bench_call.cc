// aliquot bench call: what one collective call costs beside its data, and the
// first call of a context against later ones.
//
//   call      a barrier of 2 ranks through the library, minus a bare barrier of
//             the same run
//   recorder  the same with the flight recorder, minus without
//   first     the first all-reduce of fresh processes, one call timed alone,
//             over the median of the next ones
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/bench_coll.h"

namespace aliquot::tools {
namespace {

constexpr int kRanks = 2, kPairs = 31, kCalls = 2000;
constexpr int kFresh = 9, kLater = 9;
constexpr int kSettled = 20;  // calls until the library has chosen its way

// What the ranks tell the process that started them.
struct Told {
  double seconds[3][kPairs];  // bare, without and with the recorder
  double first, later;
};

struct FirstResult {
  int64_t bytes;
  std::string buffers;
  Range first, later, ratio;
};

struct CallResult {
  Range call, recorder;  // seconds
  std::vector<FirstResult> first;
};

double batch(Team& team, const std::function<void()>& once, int calls) {
  team.barrier();
  double begin = now_s();
  for (int i = 0; i < calls; ++i) once();
  return team.largest((now_s() - begin) / calls);
}

class Library {
 public:
  Library(Team& team, const char* hints) : team_(team) {
    error_.struct_size = sizeof error_;
    context_ = team.open(hints);
    need(alq_group_world(context_, &group_, &error_), "alq_group_world");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    alq_buffer_release(buffer_);
    std::free(own_);
    alq_group_release(group_);
    need(alq_close(context_, 0, &error_), "alq_close");
    alq_release(context_);
  }
  void barrier() {
    need(alq_group_barrier(group_, nullptr, nullptr, &error_), "barrier");
  }
  void take_memory(bool shared, int64_t bytes) {
    bytes_ = bytes;
    if (shared) {
      need(alq_buffer_alloc(context_, bytes, &buffer_, &error_),
           "alq_buffer_alloc");
      data_ = alq_buffer_data(buffer_);
    } else {
      data_ = own_ = std::malloc(static_cast<size_t>(bytes));
      if (own_ == nullptr) team_.fail(fmt::format("no {} bytes", bytes));
    }
    // Somebody computes what is to be added.  Not zero: that may become memory
    // which is not there yet.
    std::memset(data_, 1, static_cast<size_t>(bytes));
  }
  void all_reduce() {
    need(alq_group_all_reduce(group_, data_, data_, bytes_ / 4, ALQ_F32,
                              ALQ_SUM, nullptr, nullptr, &error_),
         "all_reduce");
  }

 private:
  void need(alq_status status, const char* what) {
    team_.check(status, error_, what);
  }
  Team& team_;
  alq_error error_ = {};
  alq_context* context_ = nullptr;
  alq_group* group_ = nullptr;
  alq_buffer* buffer_ = nullptr;
  void* own_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

int time_calls(Team& team, const std::string& dir, Told* told) {
  Library plain(team, nullptr);
  Library recorded(team, ("flight_dir=" + dir).c_str());
  const std::function<void()> runs[] = {[&] { team.barrier(); },
                                        [&] { plain.barrier(); },
                                        [&] { recorded.barrier(); }};
  for (const auto& run : runs) batch(team, run, kCalls);
  for (int i = 0; i < kPairs; ++i) {
    for (int k = 0; k < 3; ++k) {
      double seconds = batch(team, runs[k], kCalls);
      if (team.rank() == 0) told->seconds[k][i] = seconds;
    }
  }
  return 0;
}

int time_first(Team& team, bool shared, int64_t bytes, Told* told) {
  Library library(team, nullptr);
  library.take_memory(shared, bytes);
  auto once = [&] { library.all_reduce(); };
  batch(
      team, [] {}, 1);  // the clock's and the barrier's own first time
  double first = batch(team, once, 1);
  std::vector<double> later;
  batch(team, once, kSettled);
  for (int i = 0; i < kLater; ++i) later.push_back(batch(team, once, 1));
  if (team.rank() == 0) {
    told->first = first;
    told->later = range_of(later).median;
  }
  return 0;
}

Range differences(const double (&more)[kPairs], const double (&less)[kPairs]) {
  std::vector<double> out;
  for (int i = 0; i < kPairs; ++i) out.push_back(more[i] - less[i]);
  return range_of(out);
}

bool measure_first(Told* told, CallResult* result) {
  for (bool shared : {true, false}) {
    for (int64_t bytes : {4 << 10, 1 << 20, 64 << 20}) {
      std::vector<double> first, later, ratios;
      for (int i = 0; i < kFresh; ++i) {
        int code = run_team(kRanks, 0, [&](Team& team) {
          return time_first(team, shared, bytes, told);
        });
        if (code != 0) return false;
        first.push_back(told->first);
        later.push_back(told->later);
        ratios.push_back(told->first / told->later);
      }
      result->first.push_back({bytes, shared ? "shared" : "private",
                               range_of(first), range_of(later),
                               range_of(ratios)});
    }
  }
  return true;
}

bool measure_all(CallResult* result) {
  void* page = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  auto* told = static_cast<Told*>(page);
  std::string dir = std::filesystem::temp_directory_path() / "alq-call-XXXXXX";
  bool good = mkdtemp(dir.data()) != nullptr;
  good = good && run_team(kRanks, 0, [&](Team& team) {
                   return time_calls(team, dir, told);
                 }) == 0;
  std::error_code ignored;
  if (good) std::filesystem::remove_all(dir, ignored);
  if (good) {
    result->call = differences(told->seconds[1], told->seconds[0]);
    result->recorder = differences(told->seconds[2], told->seconds[1]);
    good = measure_first(told, result);
  }
  munmap(page, sizeof(Told));
  return good;
}

std::string text_of(const Range& r, double unit, int digits) {
  return fmt::format("{:.{}f} [{:.{}f}-{:.{}f}]", r.median * unit, digits,
                     r.low * unit, digits, r.high * unit, digits);
}

void print(const CallResult& result) {
  fmt::print("a collective call of {} ranks beside its flags: {} ns\n", kRanks,
             text_of(result.call, 1e9, 0));
  fmt::print("the flight recorder's part of it: {} ns\n",
             text_of(result.recorder, 1e9, 0));
  for (const FirstResult& f : result.first) {
    fmt::print(
        "first all-reduce of {} KiB, {} buffers: {} us, later {} us, ratio "
        "{}\n",
        f.bytes >> 10, f.buffers, text_of(f.first, 1e6, 1),
        text_of(f.later, 1e6, 1), text_of(f.ratio, 1, 2));
  }
}

nlohmann::ordered_json json_of(const Range& r) {
  return {{"p10", r.low}, {"median", r.median}, {"p90", r.high}};
}

bool write_json(const CallResult& result, const std::string& path) {
  nlohmann::ordered_json j;
  j["call_ns"] = result.call.median * 1e9;
  j["recorder_ns"] = result.recorder.median * 1e9;
  j["call"] = json_of(result.call);
  j["recorder"] = json_of(result.recorder);
  j["first"] = nlohmann::ordered_json::array();
  for (const FirstResult& f : result.first) {
    j["first"].push_back({{"bytes", f.bytes},
                          {"buffers", f.buffers},
                          {"first", json_of(f.first)},
                          {"later", json_of(f.later)},
                          {"ratio", json_of(f.ratio)}});
  }
  std::ofstream file(path);
  file << j.dump(2) << "\n";
  file.close();
  return file.good();
}

}  // namespace

int bench_call(const std::string& json) {
  CallResult result;
  if (!measure_all(&result)) return 1;
  print(result);
  if (json.empty() || write_json(result, json)) return 0;
  fmt::print(stderr, "aliquot bench: cannot write {}\n", json);
  return 1;
}

}  // namespace aliquot::tools
