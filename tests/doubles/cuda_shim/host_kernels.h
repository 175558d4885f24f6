// The kernels of kernels/cuda compiled for the host by the C++ compiler, by
// name: what the stand-in for the driver launches.
#pragma once

#include <cstdint>

extern "C" {

// void(*)(void** params, uint32_t grid, uint32_t block, uint32_t shared_bytes)
// of kernels/cuda/kernels.h's `name`; null if there is none.  params is as in
// cuLaunchKernel.  Returns when the whole grid has run, blocks and the threads
// of a block in an order drawn from the seed.
void* cuda_host_kernel(const char* name);

// Orders of later launches; 0 (the default): ascending.  Any thread.
void cuda_host_seed(uint64_t seed);

// Threads that share the blocks of later launches; 1 (the default): the caller.
void cuda_host_workers(int count);

}  // extern "C"

using CudaHostKernel = void (*)(void** params, uint32_t grid, uint32_t block,
                                uint32_t shared_bytes);
