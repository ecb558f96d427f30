#!/usr/bin/python3
"""Trains mnist_cnn's variant deep in PyTorch as muster does, and prints its accuracy on the test set every 1,000 steps.

    bench/peers/torch_accuracy.py --data "$MUSTER_DATA" --seed 1

The same layers, initial values (truncated normal of 0.1, biases 0.1), batches of 50 from all 60,000 samples in a new order each epoch,
Adam 1e-4, dropout 0.5; only the random numbers are PyTorch's. It shows how far such accuracies lie apart, from seed to seed and from one
evaluation to the next; `muster-trainer --eval_every=1000` prints muster's. 20,000 steps take about half an hour on one core.
"""
import argparse
import os
import pathlib

import torch
from torch.nn import functional

from torch_train import load_mnist, make_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: which folder has the data set?")
    folder = pathlib.Path(arguments.data)

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    images, labels = load_mnist(folder)
    test_images, test_labels = load_mnist(folder, "t10k")
    model, _, _ = make_model("deep")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.constant_(parameter, 0.1)
        else:
            torch.nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def accuracy():
        model.eval()
        with torch.no_grad():
            right = sum(int((model(part.view(-1, 1, 28, 28)).argmax(1) == answers).sum())
                        for part, answers in zip(test_images.split(500), test_labels.split(500)))
        model.train()
        return right / len(test_labels)

    batch, order = 50, torch.empty(0)
    for step in range(1, arguments.steps + 1):
        if len(order) < batch:
            order = torch.randperm(len(labels))
        index, order = order[:batch], order[batch:]
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images[index].view(-1, 1, 28, 28)), labels[index]).backward()
        optimizer.step()
        if step % 1000 == 0 or step == arguments.steps:
            print(f"step {step}: {accuracy():.4f}", flush=True)


if __name__ == "__main__":
    main()
