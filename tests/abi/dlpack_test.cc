// alq_tensor is DLPack's DLTensor, field for field, against the header of the
// distribution: a DLTensor* may be passed as it is.
#include "dlpack/dlpack.h"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstring>

#include "aliquot/aliquot.h"

static_assert(sizeof(alq_tensor) == sizeof(DLTensor));
static_assert(alignof(alq_tensor) == alignof(DLTensor));
static_assert(offsetof(alq_tensor, data) == offsetof(DLTensor, data));
static_assert(offsetof(alq_tensor, ndim) == offsetof(DLTensor, ndim));
static_assert(offsetof(alq_tensor, shape) == offsetof(DLTensor, shape));
static_assert(offsetof(alq_tensor, strides) == offsetof(DLTensor, strides));
static_assert(offsetof(alq_tensor, byte_offset) ==
              offsetof(DLTensor, byte_offset));
static_assert(ALQ_DEVICE_CPU == kDLCPU && ALQ_DEVICE_CUDA == kDLCUDA);

// Nested members have no offset of their own in DLTensor, so values tell.
BOOST_AUTO_TEST_CASE(a_dltensor_reads_as_an_alq_tensor) {
  int64_t shape[] = {2, 3};
  int64_t strides[] = {3, 1};
  float data[6] = {};
  DLTensor theirs;
  std::memset(&theirs, 0, sizeof(theirs));
  theirs.data = data;
  theirs.device = DLDevice{kDLCUDA, 5};
  theirs.ndim = 2;
  theirs.dtype = DLDataType{kDLBfloat, 16, 7};
  theirs.shape = shape;
  theirs.strides = strides;
  theirs.byte_offset = 4096;

  alq_tensor ours;
  std::memcpy(&ours, &theirs, sizeof(ours));
  BOOST_TEST(ours.data == data);
  BOOST_TEST(ours.device_type == ALQ_DEVICE_CUDA);
  BOOST_TEST(ours.device_id == 5);
  BOOST_TEST(ours.ndim == 2);
  BOOST_TEST(ours.code == kDLBfloat);
  BOOST_TEST(ours.bits == 16);
  BOOST_TEST(ours.lanes == 7);
  BOOST_TEST(ours.shape == shape);
  BOOST_TEST(ours.strides == strides);
  BOOST_TEST(ours.byte_offset == 4096u);
}
