#include "data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "error.h"
#include "rng.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSampleStream = 1;
constexpr int64_t kChunk = 16384;
constexpr int64_t kParts = 16;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(fmt::format("cannot read {}", path.string()));
  return bytes;
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(
      folder, fs::directory_options::skip_permission_denied, error);
  if (error) {
    throw Error(fmt::format("--data {}: {}", folder.string(), error.message()));
  }
  for (const fs::recursive_directory_iterator end; it != end;) {
    std::error_code unreadable;
    if (it->is_regular_file(unreadable)) files.push_back(it->path());
    it.increment(error);
    if (error) {
      throw Error(
          fmt::format("--data {}: {}", folder.string(), error.message()));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The length of the UTF-8 sequence that begins with this byte; 0 if none does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

class Reader {
 public:
  explicit Reader(int64_t limit) : limit_(static_cast<size_t>(limit)) {}

  void add(const std::string& name) {
    std::error_code error;
    const fs::path path(name);
    if (!fs::exists(path, error)) {
      throw Error(
          fmt::format("--data {}: there is no such file or folder", name));
    }
    if (!fs::is_directory(path, error)) {
      if (!take(path)) {
        throw Error(fmt::format(
            "--data {}: not UTF-8 text; the model reads text files", name));
      }
      return;
    }
    for (const fs::path& file : files_of(path)) {
      if (text.size() == limit_) break;
      if (!take(file)) ++corpus.skipped;
    }
  }

  std::string text;
  Corpus corpus;

 private:
  bool take(const fs::path& path) {
    std::string bytes = read_file(path);
    if (!is_text(bytes)) return false;
    corpus.cut |= text.size() + bytes.size() > limit_;
    text.append(bytes, 0, limit_ - text.size());
    ++corpus.files;
    return true;
  }

  size_t limit_;
};

void split(const std::string& text, Corpus* corpus) {
  const auto size = static_cast<int64_t>(text.size());
  const int64_t chunk = std::max<int64_t>(1, std::min(kChunk, size / kParts));
  for (int64_t begin = 0; begin < size; begin += chunk) {
    auto& part =
        begin / chunk % kParts == kParts - 1 ? corpus->held_out : corpus->train;
    const int64_t end = std::min(begin + chunk, size);
    part.insert(part.end(), text.begin() + begin, text.begin() + end);
  }
}

}  // namespace

bool is_text(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t n = sequence_length(static_cast<unsigned char>(bytes[i]));
    if (n == 0 || bytes[i] == '\0' || i + n > bytes.size()) return false;
    for (size_t j = 1; j < n; ++j) {
      if ((static_cast<unsigned char>(bytes[i + j]) & 0xc0) != 0x80) {
        return false;
      }
    }
    i += n;
  }
  return true;
}

Corpus load_corpus(const std::vector<std::string>& paths, int64_t limit,
                   int64_t seq) {
  Reader reader(limit);
  for (const std::string& path : paths) reader.add(path);
  split(reader.text, &reader.corpus);
  const auto need = static_cast<size_t>(seq + 1);
  const Corpus& c = reader.corpus;
  if (c.train.size() < need || c.held_out.size() < need) {
    throw Error(fmt::format(
        "too little text: {} bytes in {} files leave {} for training and {} "
        "held out, and one sample of --seq {} needs {} of each; give more "
        "--data or a smaller --seq",
        reader.text.size(), c.files, c.train.size(), c.held_out.size(), seq,
        need));
  }
  return std::move(reader.corpus);
}

void train_sample(const Corpus& corpus, uint64_t seed, uint64_t index,
                  int64_t seq, uint8_t* to) {
  const uint64_t places = corpus.train.size() - static_cast<uint64_t>(seq);
  const uint64_t at =
      random_below(random_bits(seed, kSampleStream, index), places);
  std::copy_n(corpus.train.data() + at, seq + 1, to);
}

void held_out_sample(const Corpus& corpus, int64_t index, int64_t count,
                     int64_t seq, uint8_t* to) {
  const auto places = static_cast<int64_t>(corpus.held_out.size()) - seq;
  std::copy_n(corpus.held_out.data() + places * index / count, seq + 1, to);
}

double unigram_entropy(const std::vector<uint8_t>& text) {
  std::array<int64_t, 256> counts{};
  for (const uint8_t byte : text) ++counts[byte];
  double nats = 0;
  for (const int64_t n : counts) {
    if (n == 0) continue;
    const double p = static_cast<double>(n) / static_cast<double>(text.size());
    nats -= p * std::log(p);
  }
  return nats;
}

double bigram_entropy(const std::vector<uint8_t>& text) {
  std::vector<int64_t> pairs(65536), firsts(256);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    ++pairs[text[i] * 256u + text[i + 1]];
    ++firsts[text[i]];
  }
  const auto total = static_cast<double>(text.size() - 1);
  double nats = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i] == 0) continue;
    const auto n = static_cast<double>(pairs[i]);
    nats -= n / total * std::log(n / static_cast<double>(firsts[i / 256]));
  }
  return nats;
}

}  // namespace gpt
