// What a run shows: a progress bar on a terminal, plain lines elsewhere, and a
// JSON file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "options.h"

namespace gpt {

struct StepRecord {
  int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0, exposed_comm_s = 0;
  int64_t peak_bytes = 0;
  bool skipped = false;  // a gradient was not finite
  bool has_held_out = false;
  double held_out = 0;
};

struct Summary {
  double unigram = 0, bigram = 0;
  double loss = 0;  // mean of the last steps
  double held_out = 0, seconds = 0;
  int32_t ranks = 1;
  int64_t params = 0;
  bool hashed = false;
  uint64_t hash = 0;
};

class Reporter {
 public:
  explicit Reporter(const Options& options);  // throws if the file cannot be
  ~Reporter();

  void note(const std::string& line);  // a line above the bar
  void step(const StepRecord& record, double elapsed);
  void finish(const Summary& summary);

 private:
  void draw_bar(const StepRecord& record, double elapsed);
  void write_json(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Options options_;
  bool bar_, lines_;
  bool drawn_ = false;
  double last_drawn_ = -1, held_out_ = 0;
  std::unique_ptr<std::FILE, Close> json_;
};

}  // namespace gpt
