#define BOOST_TEST_MODULE engine_core
#include <boost/test/unit_test.hpp>
