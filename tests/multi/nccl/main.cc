#define BOOST_TEST_MODULE nccl
#include <boost/test/unit_test.hpp>
