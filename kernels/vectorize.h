// MUSTER_VECTORIZE: one loop, compiled for several instruction sets and chosen when the program starts.
#pragma once

/// Before the definition of a free function whose loop is elementwise: without contraction all versions give
/// the same bits. Such a function costs a call through a pointer, so it should do a whole range. Nothing is
/// chosen where the compiler or the machine has no such thing, nor under the thread sanitizer: the choice is
/// made before the sanitizer's runtime can be called.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define MUSTER_VECTORIZE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MUSTER_VECTORIZE
#endif
