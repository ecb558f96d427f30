#!/usr/bin/env python3
"""Steps/s of muster's GPU workloads with PyTorch and CUDA graphs, for bench/gpu_bench to be held against.

    bench/peers/torch_gpu_train.py [--data FOLDER] [--json]

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
import time

import torch
from torch import nn
from torch.nn import functional

import torch_train  # the data and the model of wide_deep

BATCH = 128
WIDE_DEEP_BATCHES = (40, 2048)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/ and census/")
    parser.add_argument("--math", choices=["fp32", "tf32", "default"], action="append", help="all three without")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000, help="of a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "torch_gpu_train.py: PyTorch sees no GPU\n")
    images = [tensor.cuda() for tensor in load(arguments.data)]
    census = [tensor.cuda() for tensor in load_census(arguments.data)]
    workloads = [("mlp512", images, BATCH, True), ("deep", images, BATCH, True)]
    workloads += [("wide_deep", census, batch, captured) for captured in (False, True) for batch in WIDE_DEEP_BATCHES]
    results = []
    for name, data, batch, captured in workloads:
        for math in arguments.math or ["fp32", "tf32", "default"]:
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


if __name__ == "__main__":
    main()
