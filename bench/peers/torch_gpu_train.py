#!/usr/bin/env python3
"""Steps/s of muster's GPU workloads with PyTorch and CUDA graphs, alone or against muster's own (gpu_bench).

    bench/peers/torch_gpu_train.py [--data FOLDER] [--json]
    bench/peers/torch_gpu_train.py --gpu_bench build/cuda/bin/gpu_bench --workloads mlp512,deep

With --gpu_bench each round runs PyTorch, then muster, in processes of their own on the first GPU; each reports the median of three runs of
--steps steps. The table shows medians over the rounds and the ratio of each round's pair.

As a user would make it fast: the training set on the device as bytes, one whole step (batch out of the bytes, forward, backward, fused
optimizer) captured as a graph and replayed, the batch's indices copied into the graph's input before each replay. --math=tf32 allows
TF32 in products and convolutions, --math=fp32 in neither; PyTorch's own default, TF32 in convolutions only, is --math=default. Without
--data the samples are random, which takes as long.

wide_deep is the tutorial's model with Adagrad throughout, twice: with sparse gradients of the tables, which no graph can hold, step by
step ("eager"), and with dense gradients and an Adagrad written out, as a graph ("graph").
"""
import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

import torch_train  # the data and the model of wide_deep

BATCH = 128
WIDE_DEEP_BATCHES = (40, 2048)
WORKLOADS = ("mlp512", "deep", "wide_deep")
MATHS = ("fp32", "tf32", "default")
RUNS_OF_PROCESS = 3
PROCESS_DEADLINE_S = 120


def load(folder):
    if folder is None:
        return torch.randint(0, 256, (60000, 784), dtype=torch.uint8), torch.randint(0, 10, (60000,))

    def read(name, header):
        path = pathlib.Path(folder) / "mnist" / name
        data = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
        return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)

    return read("train-images-idx3-ubyte", 16).reshape(-1, 784), read("train-labels-idx1-ubyte", 8).long()


def make_model(name):
    if name == "mlp512":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10))


def load_census(folder):
    """As torch_train.load_census, or as random."""
    if folder is not None:
        return torch_train.load_census(pathlib.Path(folder))
    count = 32561

    def random_ids(columns):
        begin, ids = 0, []
        for _, buckets in columns:
            ids.append(begin + torch.randint(0, buckets, (count,)))
            begin += buckets
        return torch.stack(ids, 1)

    numbers, labels = torch.randn(count, len(torch_train.NUMBERS)), torch.randint(0, 2, (count,)).float()
    return numbers, random_ids(torch_train.WIDE), random_ids(torch_train.DEEP), labels


class Adagrad:
    """torch.optim.Adagrad over dense gradients, without what a graph cannot hold."""

    def __init__(self, parameters, rate, initial):
        self.parameters, self.rate = list(parameters), rate
        self.sums = [torch.full_like(parameter, initial) for parameter in self.parameters]

    def zero_grad(self, set_to_none):
        assert set_to_none
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        gradients = [parameter.grad for parameter in self.parameters]
        torch._foreach_addcmul_(self.sums, gradients, gradients, 1.0)
        torch._foreach_addcdiv_(self.parameters, gradients, torch._foreach_sqrt(self.sums), -self.rate)


def make_step(name, data, index, captured):
    """What makes one step on the samples `index` and returns the loss."""
    if name == "wide_deep":
        numbers, wide, deep, labels = data
        model, optimizer = torch_train.make_wide_deep()
        model = model.cuda()
        if captured:
            model.wide.sparse = model.embeddings.sparse = False
            optimizer = Adagrad(model.parameters(), 0.05, 0.1)
        else:
            optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)

        def loss_of():
            return functional.binary_cross_entropy_with_logits(model(numbers[index], wide[index], deep[index]), labels[index])
    else:
        images, labels = data
        model = make_model(name).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

        def loss_of():
            return functional.cross_entropy(model(images[index].float() / 255), labels[index])

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step


def capture(step):
    """Returns what replays the step, and where it leaves the loss."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made at its first use cannot be made in a capture
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph.replay, lambda: loss


def measure(name, data, batch, captured, steps, rounds):
    torch.manual_seed(1)
    index = torch.zeros(batch, dtype=torch.long, device="cuda")
    step, count = make_step(name, data, index, captured), len(data[-1])
    last = None

    def eager():
        nonlocal last
        last = step()

    run, loss = capture(step) if captured else (eager, lambda: last)
    order, position = torch.randperm(count, device="cuda"), 0

    def replay():
        nonlocal order, position
        if position + batch > len(order):
            order, position = torch.randperm(count, device="cuda"), 0
        index.copy_(order[position:position + batch])
        position += batch
        run()

    for _ in range(500):
        replay()
    torch.cuda.synchronize()
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            replay()
        torch.cuda.synchronize()
        rates.append(steps / (time.perf_counter() - start))
    assert torch.isfinite(loss())
    return rates


def measure_all(arguments):
    images = [tensor.cuda() for tensor in load(arguments.data)]
    workloads = [(name, images, BATCH, True) for name in ("mlp512", "deep")]
    if "wide_deep" in arguments.workloads:
        census = [tensor.cuda() for tensor in load_census(arguments.data)]
        workloads += [("wide_deep", census, batch, captured) for captured in (False, True) for batch in WIDE_DEEP_BATCHES]
    results = []
    for name, data, batch, captured in workloads:
        if name not in arguments.workloads:
            continue
        for math in arguments.math:
            torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
            torch.backends.cudnn.allow_tf32 = math != "fp32"
            torch.backends.cudnn.benchmark = True
            rates = measure(name, data, batch, captured, arguments.steps, arguments.rounds)
            results.append({"name": f"steps/{name}", "math": math, "batch": batch, "mode": "graph" if captured else "eager",
                            "steps_per_second": statistics.median(rates), "lowest": min(rates), "highest": max(rates)})
            if not arguments.json:
                print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, indent=2))


def report(command):
    """What a program prints with --json; ends this one if it fails."""
    try:
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PROCESS_DEADLINE_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(command)}: no end after {PROCESS_DEADLINE_S} s")
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {process.returncode}\n{process.stderr}")
    return json.loads(process.stdout)


def compare(torch_command, muster_command, rounds):
    """Runs both in turn and prints the table."""
    pairs = {}  # (name, math, batch, PyTorch's mode): [(PyTorch's steps/s, muster's)]
    for _ in range(rounds):
        theirs, ours = report(torch_command), report(muster_command)
        our_rates = {(r["name"], r["math"], r["batch"]): r["steps_per_second"] for r in ours["results"]}
        for r in theirs["results"]:
            pairs.setdefault((r["name"], r["math"], r["batch"], r["mode"]), []).append(
                (r["steps_per_second"], our_rates[r["name"], r["math"], r["batch"]]))
    print(f"{theirs['device']}, PyTorch {theirs['torch']}, muster on {ours['data']}; steps/s, {rounds} rounds in turn")
    print(f"{'workload':16} {'math':5} {'batch':>5} {'PyTorch by':>10} {'PyTorch':>9} {'muster':>9} {'ratio':>6} {'lowest..highest':>15}")
    for (name, math, batch, mode), rates in pairs.items():
        ratios = [ours / theirs for theirs, ours in rates]
        theirs, ours = (statistics.median(rate) for rate in zip(*rates))
        print(f"{name:16} {math:5} {batch:5} {mode:>10} {theirs:9,.0f} {ours:9,.0f} {statistics.median(ratios):6.2f} "
              f"{min(ratios):8.2f}..{max(ratios):.2f}", flush=True)


def list_of(known):
    """An argument's type: some of `known`, with commas between."""

    def parse(text):
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA") or None, help="folder with mnist/ and census/")
    parser.add_argument("--workloads", type=list_of(WORKLOADS), default=",".join(WORKLOADS), help="%(default)s without")
    parser.add_argument("--math", type=list_of(MATHS), help="all three without; with --gpu_bench fp32,tf32")
    parser.add_argument("--rounds", type=int, help="7 without; with --gpu_bench 5")
    parser.add_argument("--steps", type=int, default=2000, help="of a round")
    parser.add_argument("--gpu_bench", metavar="PROGRAM", help="runs it in turn and prints both")
    parser.add_argument("--json", action="store_true", help="all results as one JSON object")
    arguments = parser.parse_args()
    if arguments.gpu_bench is None:
        arguments.rounds, arguments.math = arguments.rounds or 7, arguments.math or list(MATHS)
        if not torch.cuda.is_available():
            parser.exit(1, "torch_gpu_train.py: PyTorch sees no GPU\n")
        measure_all(arguments)
        return
    arguments.math = arguments.math or ["fp32", "tf32"]
    if arguments.json or "default" in arguments.math:
        parser.error("--gpu_bench: not with --json, nor with --math=default, which muster does not have")
    same = ["--json", f"--rounds={RUNS_OF_PROCESS}", f"--steps={arguments.steps}", f"--math={','.join(arguments.math)}"]
    of_torch = [f"--workloads={','.join(arguments.workloads)}"]
    of_muster = ["--only=" + ",".join(f"steps/{name}" for name in arguments.workloads)]
    if arguments.data is not None:
        of_torch.append(f"--data={arguments.data}")
        of_muster.append(f"--data_dir={arguments.data}")
    compare([sys.executable, __file__, *same, *of_torch], [arguments.gpu_bench, *same, *of_muster], arguments.rounds or 5)


if __name__ == "__main__":
    main()
