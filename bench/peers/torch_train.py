#!/usr/bin/python3
"""Trains muster's models with PyTorch and, in turn, with muster-trainer; prints samples/s of both and their ratio.

    OMP_WAIT_POLICY=PASSIVE bench/peers/torch_train.py --trainer build/release/bin/muster-trainer --data "$MUSTER_DATA"

Each round runs PyTorch, then muster-trainer, in processes of their own on the same number of threads; the table shows medians over the
rounds and the ratio of each round's pair. PyTorch has the training set in memory as floats, takes a batch by a permutation of each
epoch and makes the steps that its tutorials make. muster-trainer reports what its own training loop reached (--result_json), which
includes taking the samples from their bytes. Peak memory is that of the whole process (ru_maxrss).

Debian's PyTorch needs OpenBLAS (libopenblas0-pthread). On machines with AVX-512 that needs OPENBLAS_CORETYPE=SKYLAKEX to know its processor;
without it PyTorch is several times slower. On others leave it to its own choice.
"""
import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# name: (muster-trainer's flags, batch, steps of PyTorch, steps of muster-trainer); about two seconds each.
MODELS = {
    "softmax": (["--model=mnist_softmax"], 100, 10000, 40000),
    "mlp": (["--model=mnist_mlp"], 100, 3000, 6000),
    "mlp512": (["--model=mnist_mlp", "--hidden=512,512", "--optimizer=momentum", "--learning_rate=0.01"], 128, 500, 800),
    "deep": (["--model=mnist_cnn", "--variant=deep", "--optimizer=momentum", "--learning_rate=0.01"], 128, 20, 40),
    "wide_deep": (["--model=wide_deep", "--variant=tutorial"], 128, 1000, 8000),
}
# The tutorial's id columns: those of the wide part with their buckets, and those of the deep part. AGE is in buckets.
AGE_BUCKETS = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
CENSUS_FIELDS = ("age workclass fnlwgt education education_num marital_status occupation relationship race gender capital_gain "
                 "capital_loss hours_per_week native_country").split()
NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
WIDE = [(["gender"], 3), (["native_country"], 1000), (["education"], 1000), (["occupation"], 1000), (["workclass"], 100),
        (["relationship"], 100), (["AGE"], 11), (["education", "occupation"], 10**4), (["AGE", "education", "occupation"], 10**6),
        (["native_country", "occupation"], 10**4)]
DEEP = [("workclass", 100), ("education", 1000), ("gender", 3), ("relationship", 100), ("native_country", 1000), ("occupation", 1000)]
EMBEDDING = 8


def read_idx(folder, name, header):
    path = folder / "mnist" / name
    data = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
    return memoryview(data)[header:]


def load_mnist(folder, part="train"):
    import torch

    images = torch.frombuffer(bytearray(read_idx(folder, f"{part}-images-idx3-ubyte", 16)), dtype=torch.uint8)
    labels = torch.frombuffer(bytearray(read_idx(folder, f"{part}-labels-idx1-ubyte", 8)), dtype=torch.uint8)
    return images.reshape(-1, 784).float() / 255, labels.long()


def load_census(folder):
    """Numbers, standardized, and the ids of WIDE and DEEP, each behind those of the columns before it in its part's one table."""
    import bisect
    import zlib

    import torch

    path = folder / "census" / "adult.data"
    text = path.read_text() if path.exists() else gzip.open(f"{path}.gz", "rt").read()
    numbers, wide, deep, labels = [], [], [], []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 15:
            continue
        row = dict(zip(CENSUS_FIELDS, fields))
        row["AGE"] = str(bisect.bisect_right(AGE_BUCKETS, float(row["age"])))
        numbers.append([float(row[name]) for name in NUMBERS])
        labels.append(float(fields[14].startswith(">50K")))

        def place(columns):
            begin, ids = 0, []
            for names, buckets in columns:
                ids.append(begin + zlib.crc32("|".join(row[name] for name in names).encode()) % buckets)
                begin += buckets
            return ids

        wide.append(place(WIDE))
        deep.append(place([([name], buckets) for name, buckets in DEEP]))
    numbers = torch.tensor(numbers)
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    return numbers, torch.tensor(wide), torch.tensor(deep), torch.tensor(labels)


def make_wide_deep():
    """The tutorial's model and its optimizers: Adagrad throughout, since PyTorch has no FTRL, on sparse gradients of the tables."""
    import torch
    from torch import nn

    class WideDeep(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.EmbeddingBag(sum(buckets for _, buckets in WIDE), 1, mode="sum", sparse=True)
            self.embeddings = nn.Embedding(sum(buckets for _, buckets in DEEP), EMBEDDING, sparse=True)
            self.bias = nn.Parameter(torch.zeros(1))
            inputs = len(NUMBERS) + EMBEDDING * len(DEEP)
            self.layers = nn.Sequential(nn.Linear(inputs, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))
            nn.init.zeros_(self.wide.weight)

        def forward(self, numbers, wide, deep):
            embedded = self.embeddings(deep).flatten(1)
            return (self.layers(torch.cat([numbers, embedded], 1)) + self.wide(wide) + self.bias).squeeze(1)

    model = WideDeep()
    return model, torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)


def make_model(name):
    """The module, its optimizer, and whether it takes images."""
    import torch
    from torch import nn

    if name == "softmax":
        model = nn.Linear(784, 10)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model, torch.optim.SGD(model.parameters(), lr=0.5), False
    if name == "mlp":
        model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
        return model, torch.optim.Adam(model.parameters(), lr=0.001), False
    if name == "mlp512":
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), False
    if name == "deep":
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), True
    raise ValueError(name)


def make_training(name, folder):
    """The number of samples, and what computes the loss of some of them; the optimizer."""
    from torch.nn import functional

    if name == "wide_deep":
        numbers, wide, deep, labels = load_census(folder)
        model, optimizer = make_wide_deep()

        def loss_of(index):
            return functional.binary_cross_entropy_with_logits(model(numbers[index], wide[index], deep[index]), labels[index])
    else:
        images, labels = load_mnist(folder)
        model, optimizer, takes_images = make_model(name)

        def loss_of(index):
            features = images[index]
            return functional.cross_entropy(model(features.view(-1, 1, 28, 28) if takes_images else features), labels[index])
    return len(labels), loss_of, optimizer


def require_fast_blas():
    """After `import torch`: Debian's multiplies with whichever BLAS is installed, ten times slower with the reference one."""
    if "/blas/libblas.so" in pathlib.Path("/proc/self/maps").read_text():
        sys.exit("PyTorch uses the reference BLAS, with which no comparison means anything: apt-get install libopenblas0-pthread")


def train_with_torch(name, batch, steps, threads, folder):
    import torch

    require_fast_blas()
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    count, loss_of, optimizer = make_training(name, folder)
    order, position = torch.randperm(count), 0

    def step():
        nonlocal order, position
        if position + batch > len(order):
            order, position = torch.randperm(count), 0
        index = order[position:position + batch]
        position += batch
        optimizer.zero_grad(set_to_none=True)
        loss_of(index).backward()
        optimizer.step()

    for _ in range(max(steps // 20, 2)):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return batch * steps / (time.perf_counter() - start)


def run(command):
    """Runs it and returns its stdout and its peak memory in MB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}\n{err}")
    return out, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="build/release/bin/muster-trainer")
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/ and census/")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--torch-only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: which folder has the data sets?")
    folder = pathlib.Path(arguments.data)
    if arguments.torch_only:
        _, batch, steps, _ = MODELS[arguments.torch_only]
        rate = train_with_torch(arguments.torch_only, batch, steps, arguments.threads, folder)
        print(json.dumps({"samples_per_second": rate}))
        return

    print(f"{'model':10} {'batch':>5} {'PyTorch':>10} {'muster':>10} {'ratio':>6} {'min..max':>12}   peak MB: PyTorch, muster")
    for name in arguments.models.split(","):
        flags, batch, _, steps = MODELS[name]
        theirs, ours, memory = [], [], []
        for _ in range(arguments.rounds):
            out, their_memory = run([sys.executable, __file__, "--torch-only", name, "--threads", str(arguments.threads), "--data", str(folder)])
            theirs.append(json.loads(out)["samples_per_second"])
            with tempfile.NamedTemporaryFile() as result:
                _, our_memory = run([arguments.trainer, "--job_name=local", *flags, f"--batch_size={batch}", f"--train_steps={steps}",
                                     f"--threads={arguments.threads}", f"--data_dir={folder}", f"--result_json={result.name}"])
                ours.append(json.load(open(result.name))["samples_per_second"])
            memory.append((their_memory, our_memory))
        ratios = [b / a for a, b in zip(theirs, ours)]
        print(f"{name:10} {batch:5} {statistics.median(theirs):10,.0f} {statistics.median(ours):10,.0f} {statistics.median(ratios):6.2f} "
              f"{min(ratios):5.2f}..{max(ratios):.2f}   {max(m[0] for m in memory):.0f}, {max(m[1] for m in memory):.0f}", flush=True)


if __name__ == "__main__":
    main()
