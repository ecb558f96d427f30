#!/usr/bin/env python3
"""Steps/s of muster's two GPU workloads with PyTorch and CUDA graphs, for bench/gpu_bench to be held against.

    bench/peers/torch_gpu_train.py [--data FOLDER] [--json]

As a user would make it fast: the training set on the device as bytes, one whole step (batch out of the bytes, forward, backward, fused
optimizer) captured as a graph and replayed, the batch's indices copied into the graph's input before each replay. --math=tf32 allows
TF32 in products and convolutions, --math=fp32 in neither; PyTorch's own default, TF32 in convolutions only, is --math=default. Without
--data the samples are random bytes, which takes as long.
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

BATCH = 128


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


def measure(name, images, labels, steps, rounds):
    torch.manual_seed(1)
    model = make_model(name).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    index = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def step():
        features = images[index].float() / 255
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(features), labels[index])
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made at its first use cannot be made in a capture
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    order, position = torch.randperm(len(labels), device="cuda"), 0

    def replay():
        nonlocal order, position
        if position + BATCH > len(order):
            order, position = torch.randperm(len(labels), device="cuda"), 0
        index.copy_(order[position:position + BATCH])
        position += BATCH
        graph.replay()

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
    assert torch.isfinite(loss)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/")
    parser.add_argument("--math", choices=["fp32", "tf32", "default"], action="append", help="all three without")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000, help="of a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "torch_gpu_train.py: PyTorch sees no GPU\n")
    images, labels = (tensor.cuda() for tensor in load(arguments.data))
    results = []
    for name in ("mlp512", "deep"):
        for math in arguments.math or ["fp32", "tf32", "default"]:
            torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
            torch.backends.cudnn.allow_tf32 = math != "fp32"
            torch.backends.cudnn.benchmark = True
            rates = measure(name, images, labels, arguments.steps, arguments.rounds)
            results.append({"name": f"steps/{name}", "math": math, "batch": BATCH, "steps_per_second": statistics.median(rates),
                            "lowest": min(rates), "highest": max(rates)})
            if not arguments.json:
                print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, indent=2))


if __name__ == "__main__":
    main()
