// What a job makes of its ranks' flight records: a place for them, and a
// sentence at the end.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/clock.h"
#include "base/flight_file.h"
#include "tools/blame.h"
#include "tools/job.h"

namespace aliquot::tools {
namespace {

// A rank that others wait for is not just slower from then on.
constexpr int64_t kHangNs = 1'000'000'000;

}  // namespace

bool Job::make_flight_folder() {
  if (!options_.flight.empty()) {
    flight_ = options_.flight;
    std::error_code failed;
    std::filesystem::create_directories(flight_, failed);
    if (!failed) clear_flights(flight_);
    if (!failed) return true;
    merger_.say(
        fmt::format("aliquot run: --flight {}: {}", flight_, failed.message()));
    return false;
  }
  if (std::getenv("ALIQUOT_FLIGHT_DIR") != nullptr) return true;
  std::error_code failed;
  std::string path =
      (std::filesystem::temp_directory_path(failed) / "aliquot-XXXXXX")
          .string();
  // Without a place for temporary files the job runs unrecorded.
  if (failed || mkdtemp(path.data()) == nullptr) return true;
  auto space = std::filesystem::space(path, failed);
  if (failed || space.available / sizeof(FlightFile) <
                    static_cast<uintmax_t>(options_.ranks)) {
    std::filesystem::remove(path, failed);
    return true;
  }
  flight_ = path;
  own_flight_ = true;
  return true;
}

// Of a job that is ended from outside: who holds it up, if somebody does.
void Job::tell_hang() {
  if (flight_.empty()) return;
  std::string ignored;
  const Blame result = blame(read_flights(flight_, &ignored));
  if (result.culprits.empty() || result.since_ns == 0 ||
      now_ns() - result.since_ns < kHangNs) {
    return;
  }
  merger_.say("aliquot run: " + result.sentence);
}

// Of a job that failed by itself: who did it.
void Job::tell_flight() {
  if (failed_rank_ < 0 || flight_.empty()) return;
  std::string ignored;
  Blame result =
      blame(read_flights(flight_, &ignored), read_first_gone(flight_));
  if (!result.culprits.empty()) {
    merger_.say("aliquot run: " + result.sentence);
  }
}

}  // namespace aliquot::tools
