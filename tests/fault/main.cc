#define BOOST_TEST_MODULE fault
#include <boost/test/unit_test.hpp>
