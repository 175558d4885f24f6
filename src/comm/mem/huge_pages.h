// Huge pages for large private buffers that peers read.
//
// The kernel pins every page that process_vm_readv reads, which on 4 KiB pages
// costs about as much as the copy.  So a large buffer that comes a second time
// is asked to lie on huge pages (MADV_COLLAPSE, Linux 6.1): its content, its
// addresses and its size in memory stay.  Where the system can not, nothing
// changes.
//
// Cost: one system call that copies the buffer once.  It is asked again on the
// 4th, 8th, ..., then each 64th time, and where the process has had so many
// page faults since that most of the buffer may be memory mapped anew; at most
// 1/32 of the time goes into that.  To look at the faults is another system
// call.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

namespace aliquot::mem {

class HugePages {
 public:
  // Smaller buffers are left alone.
  static constexpr int64_t kLeastBytes = int64_t{4} << 20;

  // [data, data + bytes) is about to be read by peers.  Returns system calls
  // made: 2 where it asked, else 1 or, small or asked a moment ago, 0.
  int comes(const void* data, int64_t bytes);

 private:
  struct Entry {
    uint64_t begin = 0;
    int64_t bytes = 0;
    uint32_t times = 0;
    int64_t faults = 0;      // of the process, when it was last asked
    int64_t rest_until = 0;  // whatever faults there are
  };
  Entry& entry(uint64_t begin, int64_t bytes);

  std::mutex mutex_;
  std::array<Entry, 64> entries_;
  size_t next_ = 0;  // the one to give up
};

}  // namespace aliquot::mem
