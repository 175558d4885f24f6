// Fenced and poisoned memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aliquot::cuda_double {

struct Block {
  size_t bytes = 0;
  bool host = false;  // pinned
  int device = 0;
};

// The live block that holds this address, and its begin; null if none does.
const Block* find_block(uint64_t address, uint64_t* begin);
bool is_freed(uint64_t address);
// Reports what was written outside of blocks or after they were freed.
void check_memory();

}  // namespace aliquot::cuda_double
