#include "tools/flight_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/process.h"
#include "base/text.h"

namespace aliquot::tools {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostHow = 100;  // characters
constexpr const char* kFirstGone = "/first-gone";

bool is_record(const std::string& name) {
  return name.starts_with("rank-") && name.ends_with(".flight");
}

// One of another world than the job's.
bool is_apart(const std::string& name) {
  return name.starts_with("apart-") && name.ends_with(".flight");
}

// Bytes of the UTF-8 character that text begins with; 0: it begins with none.
size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues_character(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool longer_than_needed =
      (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool no_character =
      (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return longer_than_needed || no_character ? 0 : bytes;
}

// What is no character, or a control character, becomes '?'.
std::string printable(std::string_view left) {
  std::string out;
  while (!left.empty()) {
    const size_t bytes = character_bytes(left);
    const auto first = static_cast<unsigned char>(left[0]);
    if (bytes == 0 || first < 32 || first == 127) {
      out += '?';
    } else {
      out.append(left, 0, bytes);
    }
    left.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

// A text of at most N bytes.
template <size_t N>
std::string text_of(const char (&text)[N]) {
  return printable(std::string_view(text, strnlen(text, N)));
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
  const std::string kind = name_of(file.header.kinds, record.kind);
  if (is_message(kind) && record.root >= 0 && record.root < size) {
    op.peer = group.ranks[record.root];
    op.sends = kind == "send";
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

void write_first_gone(const std::string& folder, const FirstGone& gone) {
  std::ofstream(folder + kFirstGone) << gone.rank << " " << gone.how << "\n";
}

FirstGone read_first_gone(const std::string& folder) {
  std::error_code failed;
  // To open anything else may wait for somebody.
  if (!std::filesystem::is_regular_file(folder + kFirstGone, failed)) return {};
  std::ifstream in(folder + kFirstGone);
  int rank = -1;
  if (!(in >> rank) || rank < 0 || rank >= kMostRanks) return {};
  std::string how(kMostHow, '\0');
  in.ignore(1);
  in.read(how.data(), kMostHow);
  how.resize(static_cast<size_t>(in.gcount()));
  how.resize(std::min(how.size(), how.find('\n')));
  return {rank, printable(how)};
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
