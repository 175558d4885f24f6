// One rank's place in the world: context, mesh and world group, through the C
// ABI.  The first thing a framework writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aliquot/aliquot.h"
#include "error.h"

namespace gpt {

// An alq_error to hand to calls, and what becomes of it.
class Status {
 public:
  Status() : error_{} { error_.struct_size = sizeof(error_); }
  operator alq_error*() { return &error_; }
  // Throws Error with the message unless status is ALQ_OK.
  void check(alq_status status) const;

 private:
  alq_error error_;
};

// A zeroed struct of the ABI with its size filled in.
template <class Desc>
Desc make_desc() {
  Desc desc{};
  desc.struct_size = sizeof(desc);
  return desc;
}

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* handle) const { release(handle); }
};
template <class T, void (*release)(T*)>
using Handle = std::unique_ptr<T, Release<T, release>>;

// Where the rank comes from: the environment, or a thread of this process.
struct Place {
  int32_t rank = 0, size = 0;  // size 0: the environment says
  std::string world_name;
};

// What the rank computes on.
struct Device {
  int32_t type = ALQ_DEVICE_CPU;
  int32_t id = -1;  // of a GPU; -1: the rank's number on its host
};

class Session {
 public:
  Session(const Place& place, const Device& device,
          const std::string& mesh_spec);

  int32_t rank() const { return alq_context_rank(context_.get()); }
  int32_t size() const { return alq_context_size(context_.get()); }
  alq_mesh* mesh() const { return mesh_.get(); }
  // What the model's work is enqueued on; null on the CPU.
  const alq_stream* stream() const {
    return stream_.handle == nullptr ? nullptr : &stream_;
  }
  void wait() const;                // until all of it is done
  std::string driver_path() const;  // of the GPU driver

  // The rank's number among the data ranks: shards run fastest.
  int32_t data_rank() const;

  // Every rank's values, in the order of data ranks.
  std::vector<double> gather(const std::vector<double>& own);

  void close();
  void abort(const std::string& reason);  // wakes all other ranks

 private:
  void open(const Place& place, const Device& device);

  Handle<alq_context, alq_release> context_;
  alq_stream stream_ = {};
  Handle<alq_mesh, alq_mesh_release> mesh_;
  Handle<alq_group, alq_group_release> world_;
};

}  // namespace gpt
