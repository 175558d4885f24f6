// Training text.  Files and folders are read in the order of their paths into
// one text, which is cut into chunks of 16 KiB (or a sixteenth, if it is
// smaller than 256 KiB); every sixteenth chunk is held out, the others are for
// training.
//
// Samples are windows of seq + 1 bytes.  Sample number i of a run begins at a
// place drawn from (seed, i) alone, so that every layout sees the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct Corpus {
  std::vector<uint8_t> train, held_out;
  int64_t files = 0, skipped = 0;  // skipped: not UTF-8 text
  bool cut = false;                // the limit was reached
};

// Throws Error when a path does not exist, a named file is not text, or there
// is too little of it for samples of seq + 1 bytes.
Corpus load_corpus(const std::vector<std::string>& paths, int64_t limit,
                   int64_t seq);

bool is_text(const std::string& bytes);  // UTF-8 and no zero byte

// Writes sample `index` of the training text: seq + 1 bytes.
void train_sample(const Corpus& corpus, uint64_t seed, uint64_t index,
                  int64_t seq, uint8_t* to);

// Writes held-out sample `index` of `count`, evenly spread.
void held_out_sample(const Corpus& corpus, int64_t index, int64_t count,
                     int64_t seq, uint8_t* to);

// Entropy of a byte in nats, alone and given the byte before it.
double unigram_entropy(const std::vector<uint8_t>& text);
double bigram_entropy(const std::vector<uint8_t>& text);

}  // namespace gpt
