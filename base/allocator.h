// The process's allocator.
#pragma once

namespace muster {

/// From now on blocks of up to 32 MiB that are freed stay with the process, up to 256 MiB of them at the end
/// of a heap, instead of going back to the kernel one by one: whoever receives messages of megabytes would
/// get new pages, zeroed, for each of them. Once, at the beginning of main; nothing happens where the C
/// library is not glibc.
void KeepLargeFreeBlocks();

}  // namespace muster
