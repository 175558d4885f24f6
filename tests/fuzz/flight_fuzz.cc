// The readers of the flight recorder among hostile files.
//
// An input that begins with the recorder's magic is one file, as it is.  Any
// other is a script over files of up to four ranks that were in order: numbers
// are put anywhere in header, groups and records, files are cut, lengthened,
// copied to other names and left out.  Whatever lies in the folder is read and
// judged, and a rank that is started there records what it does.
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/flight.h"
#include "fuzz/fuzz.h"
#include "tools/blame.h"
#include "tools/flight_read.h"

namespace aliquot::fuzz {
namespace {

namespace fs = std::filesystem;

enum Step : uint8_t {
  kAnywhere,
  kInHeader,
  kInGroup,
  kInRecord,
  kCut,
  kLengthen,
  kCopy,
  kRemove,
  kFirstGone,
  kSteps
};
constexpr int kRanks = 4;
const Flight::Names kNames = {{"all_reduce", "barrier", "send", "broadcast"},
                              {"u8", "f32"}};

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/alq-fuzz-flight-XXXXXX";
    expect(mkdtemp(name) != nullptr, "a folder of the fuzz target's own");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  void clear() {
    for (const auto& entry : fs::directory_iterator(path_)) {
      fs::remove_all(entry);
    }
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string rank_file(int rank) { return fmt::format("rank-{}.flight", rank); }

// What a rank leaves after some operations; the last one did not end.
std::string good_file(const Folder& folder, int rank) {
  std::string path = folder.file(rank_file(rank));
  fs::remove(path);
  auto flight = Flight::create(folder.path(), rank, kRanks, kNames);
  expect(flight.ok(), "a recorder is made");
  const int32_t ranks[kRanks] = {0, 1, 2, 3};
  FlightCall call;
  call.group = (*flight)->add_group("world", ranks);
  call.label = "block.3";
  for (int i = 0; i < 6 - rank % 2; ++i) {
    call.kind = i % 4, call.number = static_cast<uint64_t>(i) + 1;
    call.count = 1000 * i, call.dtype = i % 2, call.root = i % kRanks;
    uint64_t order = (*flight)->begin(call);
    if (i < 4) (*flight)->set(order, kFlightDone);
  }
  if (rank == 2) {
    (*flight)->fail(make_error(ALQ_PEER_FAILED, "rank 1 left").with_rank(1));
  }
  return read_file(path);
}

using Files = std::map<std::string, std::string>;

void put(std::string* bytes, size_t at, std::string_view what) {
  if (at < bytes->size()) {
    bytes->replace(at, std::min(what.size(), bytes->size() - at), what);
  }
}

void change(Script& script, Files* files) {
  int step = script.byte() % kSteps;
  std::string name = rank_file(script.byte() % kRanks);
  std::string& bytes = (*files)[name];
  size_t in_group = offsetof(FlightFile, groups) +
                    script.byte() % kFlightGroups * sizeof(FlightGroup);
  size_t in_record = offsetof(FlightFile, records) +
                     script.byte() % kFlightRecords * sizeof(FlightRecord);
  switch (step) {
    case kAnywhere:
      return put(&bytes, script.number<uint32_t>() % sizeof(FlightFile),
                 script.short_text());
    case kInHeader: {
      size_t at = script.byte() % 128;
      return put(&bytes, at, script.short_text());
    }
    case kInGroup:
      in_group += script.byte() % sizeof(FlightGroup);
      return put(&bytes, in_group, script.short_text());
    case kInRecord:
      in_record += script.byte() % sizeof(FlightRecord);
      return put(&bytes, in_record, script.short_text());
    case kCut:
      bytes.resize(script.number<uint32_t>() % (bytes.size() + 1));
      return;
    case kLengthen: bytes.append(script.short_text()); return;
    case kCopy: (*files)[rank_file(script.number<int32_t>())] = bytes; return;
    case kRemove: files->erase(name); return;
    default: (*files)["first-gone"] = script.short_text();
  }
}

void read_all(const Folder& folder) {
  std::string why;
  auto ranks = tools::read_flights(folder.path(), &why);
  for (size_t i = 1; i < ranks.size(); ++i) {
    expect(ranks[i - 1].rank < ranks[i].rank, "each rank is read once");
  }
  for (const tools::FlightRank& rank : ranks) {
    expect(rank.ops.size() <= kFlightRecords, "as many operations as fit");
  }
  auto blamed = tools::blame(ranks, tools::read_first_gone(folder.path()));
  expect(!blamed.sentence.empty(), "blame says something");
  for (char c : blamed.sentence) {
    expect(static_cast<unsigned char>(c) >= 32,
           "nothing that steers a terminal");
  }
}

// Whatever lies there, a new rank's record can be made and read.
void record_beside(const Folder& folder) {
  std::string before = read_file(folder.file(rank_file(0)));
  auto flight = Flight::create(folder.path(), 0, kRanks, kNames);
  expect(flight.ok(), "a recorder is made: " + flight.status().message());
  uint64_t order = (*flight)->begin({});
  (*flight)->set(order, kFlightDone);
  size_t whole = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    std::string name = entry.path().filename();
    if (name != rank_file(0) && !name.starts_with("apart-")) continue;
    tools::FlightRank rank;
    std::string why, bytes = read_file(entry.path());
    if (bytes == before || !tools::read_flight(bytes, &rank, &why)) continue;
    whole += rank.pid == getpid() && rank.ops.size() == 1;
  }
  expect(whole == 1, "its record is whole");
}

}  // namespace

Target target() {
  auto step = [](Step what, int rank) {
    return Writer().byte(what).byte(rank).byte(0).byte(0);
  };
  std::vector<std::string> seeds = {
      "",
      step(kInHeader, 1).byte(8).short_text("\xff\xff\xff\xff"),
      step(kInHeader, 2).byte(48).short_text(std::string(16, '\x7f')),
      step(kInGroup, 0).byte(56).short_text("\xff\xff\xff\x7f"),
      step(kInGroup, 0).byte(64).short_text(std::string(100, '\xff')),
      step(kInRecord, 3).byte(0).short_text(std::string(16, '\xff')),
      step(kInRecord, 3).byte(40).short_text(std::string(20, '\x40')),
      step(kAnywhere, 0).number(uint32_t{20'000}).short_text("\r\n\x1b[2J"),
      step(kCut, 1).number(uint32_t{4096}),
      step(kLengthen, 1).short_text("x"),
      step(kCopy, 1).number(7),
      step(kRemove, 3),
      step(kFirstGone, 0).short_text("2\n"),
      step(kFirstGone, 0).short_text("99999999999999")};
  return {"fuzz_flight", 16 << 20, seeds};
}

}  // namespace aliquot::fuzz

int one_input(const uint8_t* data, size_t size) {
  using namespace aliquot;
  using namespace aliquot::fuzz;
  static Folder folder;
  static const Files good = [] {
    Files files;
    for (int r = 0; r < kRanks; ++r) files[rank_file(r)] = good_file(folder, r);
    return files;
  }();
  folder.clear();
  Script script(data, size);
  Files files = good;
  if (std::string_view(reinterpret_cast<const char*>(data), size)
          .starts_with(std::string_view(kFlightMagic, sizeof kFlightMagic))) {
    files = {{rank_file(0), std::string(script.all())}};
  }
  for (int i = 0; !script.empty() && i < 100; ++i) change(script, &files);
  for (const auto& [name, bytes] : files) {
    write_file(folder.file(name), bytes);
  }
  read_all(folder);
  record_beside(folder);
  return 0;
}
