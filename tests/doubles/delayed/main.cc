#define BOOST_TEST_MODULE async_engine
#include <boost/test/unit_test.hpp>
