// The process's allocator.
#pragma once

namespace muster {

/// From now on blocks of up to 8 MiB that are freed stay with the process, up to 256 MiB of them at the end
/// of the heap, instead of going back to the kernel one by one: whoever receives messages of megabytes, which
/// come in pieces, would get new pages, zeroed, for each of them. Larger blocks, of which most live long,
/// leave no holes in the heap. There is one for all threads, since each would keep its own. Once, at the
/// beginning of main; nothing happens where the C library is not glibc.
void KeepLargeFreeBlocks();

/// Gives the kernel what is free all the same. They get new pages when they are used again.
void ReturnFreeBlocks();

}  // namespace muster
