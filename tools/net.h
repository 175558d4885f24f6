// Ports and secrets for jobs on this host.
#pragma once

#include <string>

namespace aliquot::tools {

// A loopback port that was free a moment ago; 0 when there is none.
int free_loopback_port();

// 64 hexadecimal digits from the kernel's generator.
std::string random_secret();

}  // namespace aliquot::tools
