// Times MPI_Allreduce, the sum of floats, for messages of given sizes: what another implementation takes for
// what the collectives here do. Each rank is a process:
//
//   mpicxx -std=c++20 -O2 bench/peers/mpi_allreduce.cc -o mpi_allreduce
//   mpirun -np 2 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo ./mpi_allreduce 1 4096 1048576
//   mpirun -np 2 --mca pml ob1 --mca btl vader,self ./mpi_allreduce 1 4096 1048576
//
// once over TCP, once through shared memory. Rank 0 prints a line of JSON per size, the median over blocks of
// about 10 ms. Ranks wait by spinning, so that more of them than cores need --mca mpi_yield_when_idle 1.

#define OMPI_SKIP_MPICXX 1  // Open MPI's old interface for C++: full of warnings
#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace {

constexpr double kBlockSeconds = 0.01;
constexpr int64_t kMaxOperations = int64_t{1} << 24;  // of a block
constexpr size_t kMaxBlocks = 100'000;

struct Arguments {
  double seconds = 0;                // spent on each size
  std::vector<int64_t> byte_counts;  // multiples of sizeof(float)
};

template <typename Number>
bool Parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<Arguments> ParseArguments(int count, char** values) {
  Arguments arguments;
  if (count < 3 || !Parse(values[1], arguments.seconds)) return std::nullopt;
  if (!(arguments.seconds > 0 && arguments.seconds <= 600)) return std::nullopt;
  constexpr int64_t kMaxBytes = int64_t{std::numeric_limits<int>::max()} * int64_t{sizeof(float)};
  for (int index = 2; index < count; ++index) {
    int64_t bytes = 0;
    if (!Parse(values[index], bytes) || bytes <= 0 || bytes > kMaxBytes || bytes % sizeof(float) != 0) {
      return std::nullopt;
    }
    arguments.byte_counts.push_back(bytes);
  }
  return arguments;
}

// What rank 0 decided, at every rank.
int64_t FromRankZero(int64_t value) {
  MPI_Bcast(&value, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  return value;
}

// One size. All ranks call every function together; each has its own input and output.
class Measurement {
 public:
  explicit Measurement(int64_t bytes)
      : input_(bytes / sizeof(float)), output_(input_.size()), count_(static_cast<int>(input_.size())) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    for (int index = 0; index < count_; ++index) input_[index] = Value(index, rank_);
  }

  // Whether each element is the sum of all ranks', at every rank; who finds another says so.
  bool SumIsRight() {
    Reduce();
    int is_right = 1;
    for (int index = 0; index < count_ && is_right; ++index) {
      // Whole numbers far below 2^24: exact in any order of the additions.
      float sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += Value(index, rank);
      if (output_[index] == sum) continue;
      std::fprintf(stderr, "mpi_allreduce: rank %d, %d floats: element %d is %g, not %g\n", rank_, count_,
                   index, output_[index], sum);
      is_right = 0;
    }
    MPI_Allreduce(MPI_IN_PLACE, &is_right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    return is_right;
  }

  // The median over blocks of the microseconds that an operation takes, by the clock of rank 0.
  double MedianMicroseconds(double seconds) {
    const int64_t operations = OperationsOfBlock();
    std::vector<double> blocks;
    const double start = MPI_Wtime();
    do {
      blocks.push_back(SecondsOfBlock(operations) / static_cast<double>(operations));
    } while (FromRankZero(MPI_Wtime() - start < seconds && blocks.size() < kMaxBlocks));
    const auto middle = blocks.begin() + static_cast<int64_t>(blocks.size() / 2);
    std::nth_element(blocks.begin(), middle, blocks.end());
    return *middle * 1e6;
  }

 private:
  static float Value(int index, int rank) { return static_cast<float>(index % 61 + rank); }

  void Reduce() { MPI_Allreduce(input_.data(), output_.data(), count_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

  double SecondsOfBlock(int64_t operations) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int64_t operation = 0; operation < operations; ++operation) Reduce();
    return MPI_Wtime() - start;
  }

  // Doubles a block until it takes long enough, which also warms up.
  int64_t OperationsOfBlock() {
    SecondsOfBlock(2);
    int64_t operations = 1;
    while (FromRankZero(SecondsOfBlock(operations) < kBlockSeconds && operations < kMaxOperations))
      operations *= 2;
    return operations;
  }

  std::vector<float> input_;
  std::vector<float> output_;
  int count_;
  int rank_ = 0;
  int ranks_ = 0;
};

int Run(const Arguments& arguments, int rank) {
  for (const int64_t bytes : arguments.byte_counts) {
    Measurement measurement(bytes);
    if (!measurement.SumIsRight()) return 1;
    const double microseconds = measurement.MedianMicroseconds(arguments.seconds);
    if (rank != 0) continue;
    std::printf("{\"bytes\": %lld, \"microseconds\": %.3f}\n", static_cast<long long>(bytes), microseconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int status = 1;
  if (const std::optional<Arguments> arguments = ParseArguments(argc, argv)) {
    status = Run(*arguments, rank);
  } else if (rank == 0) {
    std::fprintf(stderr, "usage: mpi_allreduce SECONDS_PER_SIZE BYTES...: up to 600 s, multiples of 4\n");
  }
  MPI_Finalize();
  return status;
}
