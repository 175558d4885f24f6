// The decoder-only transformer over bytes: embedding, blocks, final norm, head,
// cross-entropy.  It owns activations only; parameters and gradients live with
// the Host, which is told of every unit's begin, end and final gradients.
#pragma once

#include <cstdint>
#include <memory>

#include "host.h"
#include "ops.h"
#include "shape.h"

namespace gpt {

class Model {
 public:
  virtual ~Model() = default;

  // Sum of the token losses of one microbatch.  tokens: micro_batch samples of
  // seq + 1 bytes; each predicts its successor.
  virtual double forward(Host& host, const uint8_t* tokens) = 0;

  // Gradients of factor * (the last forward's sum), through the host.
  virtual void backward(Host& host, double factor) = 0;

  // The loss alone, with no backward to follow.
  virtual double evaluate(Host& host, const uint8_t* tokens) = 0;

  virtual int64_t activation_bytes() const = 0;
};

// T: double, float or Bf16.
template <class T>
std::unique_ptr<Model> make_model(const Shape& shape,
                                  std::unique_ptr<Ops<T>> ops);

// On the CPU.
template <class T>
std::unique_ptr<Model> make_model(const Shape& shape) {
  return make_model<T>(shape, make_cpu_ops<T>(shape));
}

}  // namespace gpt
