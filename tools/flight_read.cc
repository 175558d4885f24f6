#include "tools/flight_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/process.h"

namespace aliquot::tools {
namespace {

constexpr int kMostRanks = 4096;
constexpr const char* kFirstGone = "/first-gone";

bool is_record(const std::string& name) {
  return name.starts_with("rank-") && name.ends_with(".flight");
}

// One of another world than the job's.
bool is_apart(const std::string& name) {
  return name.starts_with("apart-") && name.ends_with(".flight");
}

// A text of at most N - 1 bytes; control characters become '?'.
template <size_t N>
std::string text_of(const char (&text)[N]) {
  std::string out(text, strnlen(text, N));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return out;
}

template <size_t Count, size_t N>
std::string name_of(const char (&names)[Count][N], int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= Count) return "?";
  std::string name = text_of(names[index]);
  return name.empty() ? "?" : name;
}

bool is_message(const std::string& kind) {
  return kind == "send" || kind == "recv";
}

bool has_root(const std::string& kind) {
  return kind == "broadcast" || kind == "reduce" || kind == "gather" ||
         kind == "scatter";
}

std::string op_text(const FlightFile& file, const FlightRecord& record) {
  std::string kind = name_of(file.header.kinds, record.kind);
  std::string text = fmt::format("{} #{}", kind, record.number);
  std::string label = text_of(record.label);
  std::vector<std::string> details;
  if (kind != "barrier") {
    details.push_back(fmt::format("{} x {}", record.count,
                                  name_of(file.header.dtypes, record.dtype)));
  }
  if (is_message(kind)) {
    details.push_back(
        fmt::format("{} {}", kind == "send" ? "to" : "from", record.root));
  }
  if (has_root(kind)) details.push_back(fmt::format("root {}", record.root));
  if (!label.empty()) details.push_back("\"" + label + "\"");
  if (!details.empty()) text += fmt::format(" ({})", fmt::join(details, ", "));
  return text;
}

// As many as a record has, also of a file that grows.
std::string first_bytes(const std::filesystem::path& path) {
  std::string bytes(sizeof(FlightFile), '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

FlightOp op_of(const FlightFile& file, const FlightRecord& record) {
  FlightOp op;
  op.order = record.order;
  op.number = record.number;
  op.issued_ns = record.issued_ns;
  op.ended_ns = record.ended_ns;
  op.state = record.state.load(std::memory_order_relaxed);
  op.kind = record.kind;
  op.text = op_text(file, record);
  if (record.group >= kFlightGroups) return op;
  const FlightGroup& group = file.groups[record.group];
  op.group = text_of(group.name);
  int32_t size =
      std::clamp(group.size, 0, static_cast<int32_t>(std::size(group.ranks)));
  for (int32_t i = 0; i < size; ++i) {
    op.members.push_back(group.ranks[i]);
  }
  return op;
}

}  // namespace

bool read_flight(const std::string& bytes, FlightRank* out, std::string* why) {
  if (bytes.size() != sizeof(FlightFile)) {
    *why =
        fmt::format("has {} bytes, not {}", bytes.size(), sizeof(FlightFile));
    return false;
  }
  auto file = std::make_unique<FlightFile>();
  std::memcpy(static_cast<void*>(file.get()), bytes.data(), bytes.size());
  const FlightHeader& header = file->header;
  if (std::memcmp(header.magic, kFlightMagic, sizeof header.magic) != 0) {
    *why = "was not written by this version of the flight recorder";
    return false;
  }
  if (header.rank < 0 || header.rank >= kMostRanks || header.size < 1 ||
      header.size > kMostRanks) {
    *why = fmt::format("says rank {} of {}", header.rank, header.size);
    return false;
  }
  out->rank = header.rank;
  out->size = header.size;
  out->pid = header.pid;
  out->host = text_of(header.host);
  out->ending = header.ending.load();
  out->error = text_of(header.error);
  out->error_rank = out->ending == kFlightFailed ? header.error_rank : -1;
  out->error_ns = header.error_ns;
  out->opened_ns = header.opened_ns;
  ProcessState state = process_state(header.pid, header.start_time);
  out->alive = state != ProcessState::kEnded;
  out->stopped = state == ProcessState::kStopped;
  for (const FlightRecord& record : file->records) {
    if (record.order != 0) out->ops.push_back(op_of(*file, record));
  }
  std::sort(
      out->ops.begin(), out->ops.end(),
      [](const FlightOp& a, const FlightOp& b) { return a.order < b.order; });
  return true;
}

std::vector<FlightRank> read_flights(const std::string& folder,
                                     std::string* why) {
  std::vector<FlightRank> ranks;
  std::error_code failed;
  std::filesystem::directory_iterator files(folder, failed);
  if (failed) {
    *why = fmt::format("{}: {}", folder, failed.message());
    return ranks;
  }
  for (const auto& entry : files) {
    std::string name = entry.path().filename().string();
    if (!is_record(name)) continue;
    std::string problem;
    FlightRank rank;
    if (!entry.is_regular_file(failed) ||
        entry.file_size(failed) != sizeof(FlightFile)) {
      problem = "is no file of the flight recorder's size";
    } else if (read_flight(first_bytes(entry.path()), &rank, &problem)) {
      // A copy under another name would stand for its rank twice.
      if (name == fmt::format("rank-{}.flight", rank.rank)) {
        ranks.push_back(std::move(rank));
      } else {
        problem = fmt::format("is the record of rank {}", rank.rank);
      }
    }
    if (!problem.empty()) *why += fmt::format("{} {}\n", name, problem);
  }
  std::sort(
      ranks.begin(), ranks.end(),
      [](const FlightRank& a, const FlightRank& b) { return a.rank < b.rank; });
  return ranks;
}

void write_first_gone(const std::string& folder, int rank) {
  std::ofstream(folder + kFirstGone) << rank << "\n";
}

int read_first_gone(const std::string& folder) {
  std::ifstream in(folder + kFirstGone);
  int rank = -1;
  return in >> rank && rank >= 0 && rank < kMostRanks ? rank : -1;
}

void clear_flights(const std::string& folder) {
  std::error_code failed;
  std::filesystem::remove(folder + kFirstGone, failed);
  std::vector<std::filesystem::path> old;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder, failed)) {
    std::string name = entry.path().filename().string();
    if (is_record(name) || is_apart(name)) old.push_back(entry);
  }
  for (const auto& path : old) std::filesystem::remove(path, failed);
}

}  // namespace aliquot::tools
