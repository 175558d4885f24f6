#include <string>

#include "support.h"

namespace aliquot::kernels {
namespace {

BOOST_AUTO_TEST_CASE(chosen_target_is_compiled_and_usable) {
  BOOST_TEST(target_usable(chosen_target()));
  const std::string all = simd_targets();
  BOOST_TEST(all.find(simd_chosen()) != std::string::npos, all);
  BOOST_TEST(target_compiled(kBaseline));
#if defined(__x86_64__)
  BOOST_TEST(target_compiled(kAvx2));
#ifndef ALQ_ONE_SIMD_TARGET
  BOOST_TEST(target_compiled(kAvx3));
#endif
#endif
}

BOOST_AUTO_TEST_CASE(no_better_target_was_passed_over) {
  for (size_t t = 0; t < chosen_target(); ++t) BOOST_TEST(!target_usable(t));
}

BOOST_AUTO_TEST_CASE(forcing_an_unknown_target_changes_nothing) {
  const size_t before = chosen_target();
  BOOST_TEST(!force_target(kTargets));
  BOOST_TEST(chosen_target() == before);
}

}  // namespace
}  // namespace aliquot::kernels
