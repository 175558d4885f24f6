#define BOOST_TEST_MODULE bootstrap
#include <boost/test/unit_test.hpp>
