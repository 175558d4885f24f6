#define BOOST_TEST_MODULE gpt
#include <boost/test/unit_test.hpp>
