#define BOOST_TEST_MODULE comm_pages
#include <boost/test/unit_test.hpp>
