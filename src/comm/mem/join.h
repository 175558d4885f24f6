// MemJoin: makes the world of a host from one blob per rank.
//
//   auto join = MemJoin::create(context, device);     // before the exchange
//   ... bring join->blob() of every rank to every rank ...
//   auto world = join->connect(blobs, deadline);
//
// Rank 0's segment is the control block; the others open it through /proc and
// check its nonce.  That attach is the proof that a rank is on the same host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/cpu/cpu_device.h"

namespace aliquot {

class MemJoin {
 public:
  // read_memory false: never read another process's private memory; it is
  // staged instead, as where the system forbids it.
  static Result<std::unique_ptr<MemJoin>> create(
      std::shared_ptr<Context> context, std::shared_ptr<CpuDevice> device,
      bool read_memory = true);

  // This rank's bytes, the same number on every rank, at most 1 KiB.
  const std::string& blob() const { return blob_; }

  // blobs of all ranks in rank order.  Collective; call once.
  Result<std::shared_ptr<Group>> connect(const std::vector<std::string>& blobs,
                                         Deadline deadline);

 private:
  MemJoin(std::shared_ptr<Context> context, std::shared_ptr<CpuDevice> device)
      : context_(std::move(context)), device_(std::move(device)) {}

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<CpuDevice> device_;
  std::shared_ptr<Segment> segment_;  // rank 0's control block
  std::unique_ptr<uint64_t> probe_;   // peers try to read it
  std::string blob_;
  bool read_memory_ = true;
  bool used_ = false;
};

}  // namespace aliquot
