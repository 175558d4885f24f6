// The example's one exception: a message for the person at the terminal.
#pragma once

#include <stdexcept>

namespace gpt {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpt
