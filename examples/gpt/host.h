// What the model asks of whoever owns its parameters: the unit calls of a
// sharded engine, and nothing else.  engine.h answers them through the C ABI;
// the gradient tests answer them from plain arrays.
#pragma once

#include <cstdint>

#include "number.h"

namespace gpt {

enum class Pass { kForward, kForwardNoGrad, kRecompute, kBackward };

// Addresses of a unit's parameters, in the order in which the unit lists them,
// and in pass kBackward where their gradients go: grads[i] is null for a
// parameter that needs none; betas[i] is 0 to write and 1 to add.
struct UnitView {
  void* const* params = nullptr;
  void* const* grads = nullptr;
  const int32_t* betas = nullptr;
};

class Host {
 public:
  virtual ~Host() = default;
  virtual UnitView begin(int64_t unit, Pass pass) = 0;
  virtual void end(int64_t unit, Pass pass) = 0;
  // The gradient of the unit's index-th parameter is final.
  virtual void ready(int64_t unit, int64_t index) = 0;
};

// A unit opened for backward, typed: where gradients are written.
template <class T>
class Grads {
 public:
  using C = Compute<T>;
  Grads(Host& host, int64_t unit, UnitView view)
      : host_(host), unit_(unit), view_(view) {}

  const T* param(int64_t i) const {
    return static_cast<const T*>(view_.params[i]);
  }
  bool wanted(int64_t i) const { return view_.grads[i] != nullptr; }
  T* grad(int64_t i) const { return static_cast<T*>(view_.grads[i]); }
  C beta(int64_t i) const { return view_.betas[i] == 0 ? C{0} : C{1}; }
  void ready(int64_t i) const { host_.ready(unit_, i); }

 private:
  Host& host_;
  int64_t unit_;
  UnitView view_;
};

}  // namespace gpt
