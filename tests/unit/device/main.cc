#define BOOST_TEST_MODULE device
#include <boost/test/unit_test.hpp>
