// Starts the library's threads.  Signals are blocked in them: handlers are the
// host's.  The system may have no thread to give; std::thread throws then, and
// that ends here.
#pragma once

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "device/cpu/fork.h"

namespace aliquot {

// False: there is none to be had, and *out is as it was.
template <typename Body>
bool start_thread(std::thread* out, Body body) {
  BlockSignals block;
  try {
    *out = std::thread(std::move(body));
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace aliquot
