// The command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shape.h"

namespace gpt {

enum class Progress { kAuto, kBar, kLines, kNone };

struct Options {
  Shape shape;

  std::vector<std::string> data;
  int64_t max_data_mib = 32;
  int64_t steps = 700;
  int64_t global_batch = 16;
  double lr = 3e-3;
  int64_t warmup = 50;
  double weight_decay = 0.1;
  double clip = 1.0;
  uint64_t seed = 1;
  int64_t eval_every = 0;
  int64_t eval_batches = 16;

  // Constants of aliquot.h.
  int32_t dtype, strategy, gather, accumulate, defer;
  std::string mesh;
  std::string nesting;
  int32_t prefetch = 0;
  bool replicate_root = false;

  int32_t device;          // ALQ_DEVICE_*
  int32_t device_id = -1;  // -1: the rank's number on its host
  int32_t ranks = 0;       // with threads
  bool threads = false;

  std::string json;
  std::string trace;  // folder; empty: none
  bool hash = false;
  bool poison = false;
  Progress progress = Progress::kAuto;

  Options();
};

// Returns -1 to go on, else the exit code (0 after --help).
int parse_options(int argc, char** argv, Options* options);

}  // namespace gpt
