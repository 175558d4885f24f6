// Reading, splitting and sampling text, and its entropies.
#include "data.h"

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "error.h"
#include "rng.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = int64_t{1} << 40;

// A folder that goes with the test.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / name()) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string write(const std::string& file, const std::string& bytes) const {
    const fs::path at = path_ / file;
    fs::create_directories(at.parent_path());
    std::ofstream(at, std::ios::binary) << bytes;
    return at.string();
  }
  std::string path() const { return path_.string(); }

 private:
  static std::string name() {
    static int count = 0;
    return "gpt-data-" + std::to_string(getpid()) + "-" +
           std::to_string(count++);
  }
  fs::path path_;
};

std::string error_of(const std::vector<std::string>& paths, int64_t seq) {
  try {
    load_corpus(paths, kNoLimit, seq);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

BOOST_AUTO_TEST_CASE(text_is_utf8_without_zeros) {
  BOOST_TEST(is_text("plain"));
  BOOST_TEST(is_text("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"));
  BOOST_TEST(is_text(""));
  BOOST_TEST(!is_text(std::string("a\0b", 3)));
  BOOST_TEST(!is_text("\xff\xfe"));
  BOOST_TEST(!is_text("\xc3"));      // cut short
  BOOST_TEST(!is_text("\xc0\xaf"));  // overlong
  BOOST_TEST(!is_text("\x80"));
}

BOOST_AUTO_TEST_CASE(folders_are_read_in_order) {
  const Folder folder;
  folder.write("b/two.txt", std::string(2000, 'b'));
  folder.write("a.md", std::string(2000, 'a'));
  folder.write("c", std::string(2000, 'c'));
  folder.write("image.bin", std::string("\xff\x00\x01", 3));
  const Corpus c = load_corpus({folder.path()}, kNoLimit, 64);
  BOOST_TEST(c.files == 3);
  BOOST_TEST(c.skipped == 1);
  BOOST_TEST(!c.cut);
  BOOST_TEST(c.train.size() + c.held_out.size() == 6000u);
  BOOST_TEST(std::is_sorted(c.train.begin(), c.train.end()));
  BOOST_TEST(c.train.front() == 'a');
  BOOST_TEST(c.train.back() == 'c');
}

BOOST_AUTO_TEST_CASE(a_sixteenth_is_held_out) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 16; ++i)
    text += std::string(100, static_cast<char>('a' + i));
  const std::string file = folder.write("t", text);
  const Corpus c = load_corpus({file}, kNoLimit, 32);
  BOOST_TEST(c.train.size() == 1500u);
  BOOST_TEST(std::count(c.held_out.begin(), c.held_out.end(), 'p') == 100);
  const Corpus cut = load_corpus({file}, 800, 32);
  BOOST_TEST(cut.cut);
  BOOST_TEST(cut.train.size() + cut.held_out.size() == 800u);
}

BOOST_AUTO_TEST_CASE(bad_data_is_explained) {
  const Folder folder;
  const std::string small = folder.write("small", "only a few words");
  const std::string binary = folder.write("bin", std::string(9000, '\xff'));
  BOOST_TEST(says(error_of({"/no/such/place"}, 8), "no such file or folder"));
  BOOST_TEST(says(error_of({binary}, 8), "not UTF-8 text"));
  BOOST_TEST(says(error_of({small}, 64), "too little text: 16 bytes"));
}

BOOST_AUTO_TEST_CASE(samples_depend_on_seed_and_index) {
  Corpus c;
  for (int i = 0; i < 5000; ++i) {
    c.train.push_back(static_cast<uint8_t>(mix(static_cast<uint64_t>(i))));
  }
  c.held_out = c.train;
  std::vector<uint8_t> a(33), b(33);
  train_sample(c, 1, 7, 32, a.data());
  train_sample(c, 1, 7, 32, b.data());
  BOOST_TEST(a == b);
  train_sample(c, 1, 8, 32, b.data());
  BOOST_TEST(a != b);
  train_sample(c, 2, 7, 32, b.data());
  BOOST_TEST(a != b);
  BOOST_TEST((std::search(c.train.begin(), c.train.end(), a.begin(), a.end()) !=
              c.train.end()));
  held_out_sample(c, 0, 4, 32, a.data());
  BOOST_TEST(std::equal(a.begin(), a.end(), c.held_out.begin()));
  held_out_sample(c, 3, 4, 32, b.data());
  BOOST_TEST(std::equal(b.begin(), b.end(), c.held_out.begin() + 3726));
}

// The whole text can be drawn and nothing past its end.
BOOST_AUTO_TEST_CASE(samples_cover_the_text) {
  Corpus c;
  for (uint8_t i = 0; i < 12; ++i) c.train.push_back(i);
  std::vector<bool> seen(12);
  for (uint64_t i = 0; i < 200; ++i) {
    std::vector<uint8_t> sample(9);
    train_sample(c, 3, i, 8, sample.data());
    for (const uint8_t byte : sample) seen.at(byte) = true;
  }
  BOOST_TEST(std::count(seen.begin(), seen.end(), true) == 12);
}

BOOST_AUTO_TEST_CASE(entropies_of_known_texts) {
  std::vector<uint8_t> text;
  for (int i = 0; i < 1000; ++i) text.push_back(i % 2 == 0 ? 'x' : 'y');
  BOOST_TEST(std::abs(unigram_entropy(text) - std::log(2.0)) < 1e-12);
  BOOST_TEST(std::abs(bigram_entropy(text)) < 1e-12);
  std::vector<uint8_t> noise;
  for (uint64_t i = 0; i < 200000; ++i) {
    noise.push_back(static_cast<uint8_t>(random_below(mix(i), 4)));
  }
  BOOST_TEST(std::abs(unigram_entropy(noise) - std::log(4.0)) < 1e-3);
  BOOST_TEST(std::abs(bigram_entropy(noise) - std::log(4.0)) < 1e-3);
}

BOOST_AUTO_TEST_CASE(normals_are_normal) {
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = random_normal(random_bits(1, 2, static_cast<uint64_t>(i)));
    sum += x;
    squares += x * x;
  }
  BOOST_TEST(std::abs(sum / n) < 0.02);
  BOOST_TEST(std::abs(squares / n - 1) < 0.02);
}

}  // namespace
}  // namespace gpt
