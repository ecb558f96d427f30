// Vectors of kLanes floats, for files like narrow_product_inl.h that are compiled once for each instruction
// set: as they, without an include guard and without includes.

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
using UnalignedVector =
    float __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));

inline Vector Load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
inline void Store(Vector vector, float* to) { *reinterpret_cast<UnalignedVector*>(to) = vector; }
