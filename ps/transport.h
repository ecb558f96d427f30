// Transport: how tasks that talk to a parameter server reach it.
#pragma once

namespace muster {

enum class Transport {
  kAuto,  // tasks on its host past the network, through a unix socket and shared memory; others by gRPC
  kTcp,   // all by gRPC, as if each were on a host of its own
};

inline constexpr char kExchangeMethod[] = "/muster.ps.ParameterServer/Exchange";
inline constexpr char kSameHostMethod[] = "/muster.ps.ParameterServer/SameHost";

}  // namespace muster
