// Kernels from a file instead of those built in: the hint cuda_image.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace aliquot::cuda {

// The bytes, ended by a zero, for PTX is text.  NOT_FOUND: no readable file;
// INVALID_ARGUMENT: the driver would read beyond it, or it is no image.
Result<std::vector<char>> read_image(const std::string& path);

}  // namespace aliquot::cuda
