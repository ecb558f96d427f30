#!/usr/bin/python3
"""Makes golden_losses.json: the losses of the first ten steps of each model, computed by PyTorch in double.

    /usr/bin/python3 tests/golden/golden_losses.py > tests/golden/golden_losses.json      (Debian 12: python3-torch 1.13.1)

Parameters, features, ids and labels are made by `uniform`, which golden_losses_test.cc has too, so that nothing has to be stored but the
losses. Weights lie as in muster: dense [inputs, outputs], convolutions [kernel, kernel, inputs, outputs], images [height, width, channels].

With --moved it prints by how much the losses of each model change, relative to themselves, where every first parameter is moved by up to
half an epsilon of float, the most of ten draws: what rounding does where a training diverges. It is what golden_losses.h has of it.
"""
import json
import sys

import numpy
import torch
from torch.nn import functional

STEPS = 10
BATCH = 16
SEED = 7  # of dropout
MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF


def uniform(stream, count):
    """`count` numbers in [0, 1), multiples of 2^-24, a function of the stream's number."""
    x = (numpy.arange(count, dtype=numpy.uint64) * 2654435761 + stream * 2246822519) & MASK32
    x ^= x >> 15
    x = (x * 3266489917) & MASK32
    x ^= x >> 13
    x = (x * 668265263) & MASK32
    x ^= x >> 16
    return torch.from_numpy((x >> 8).astype(numpy.float64) / 2**24)


def layer_seeds(seed, count):
    """What the layers draw from: muster's RandomStream(seed), a SplitMix64."""
    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
        return x ^ (x >> 31)
    state = mix(mix((seed + 0x9E3779B97F4A7C15) & MASK64) ^ mix(0xD1B54A32D192ED03))
    seeds = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        seeds.append(mix(state))
    return seeds


def dropout_factors(seed, position, samples, units, rate):
    """As kernels/dropout.h says: Philox4x32-10 of the sample's position and the unit."""
    fours = (units + 3) // 4
    c = [numpy.tile(numpy.arange(fours, dtype=numpy.uint64), samples), numpy.zeros(samples * fours, numpy.uint64),
         numpy.repeat(numpy.arange(position, position + samples, dtype=numpy.uint64), fours), numpy.zeros(samples * fours, numpy.uint64)]
    key = [seed & MASK32, seed >> 32]
    for _ in range(10):
        even, odd = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(odd >> 32) ^ c[1] ^ key[0], odd & MASK32, (even >> 32) ^ c[3] ^ key[1], even & MASK32]
        key = [(key[0] + 0x9E3779B9) & MASK32, (key[1] + 0xBB67AE85) & MASK32]
    words = numpy.stack(c, axis=1).reshape(samples, fours * 4)[:, :units]
    return torch.from_numpy(numpy.where(words < round(rate * 2**32), 0.0, 1 / (1 - rate)))


def dense(values, weights, bias):
    return values.reshape(len(values), -1) @ weights + bias


def convolution(images, weights, bias, padding):
    planes = functional.conv2d(images.permute(0, 3, 1, 2), weights.permute(3, 2, 0, 1), bias, padding=padding)
    return planes.permute(0, 2, 3, 1)


def pool(images):
    return functional.max_pool2d(images.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def softmax(p, x, _):
    return dense(x, *p)


def mlp(p, x, _):
    for i in range(0, len(p) - 2, 2):
        x = functional.relu(dense(x, p[i], p[i + 1]))
    return dense(x, p[-2], p[-1])


def lenet(p, x, _):
    x = pool(convolution(x.reshape(-1, 28, 28, 1), p[0], p[1], 0))
    x = pool(convolution(x, p[2], p[3], 0))
    return dense(functional.relu(dense(x, p[4], p[5])), p[6], p[7])


def deep(p, x, position):
    x = pool(functional.relu(convolution(x.reshape(-1, 28, 28, 1), p[0], p[1], 2)))
    x = pool(functional.relu(convolution(x, p[2], p[3], 2)))
    x = functional.relu(dense(x, p[4], p[5]))
    x = x * dropout_factors(layer_seeds(SEED, 6)[5], position, len(x), 1024, 0.5)
    return dense(x, p[6], p[7])


SOFTMAX = [(784, 10), (10,)]
MLP = [(784, 100), (100,), (100, 10), (10,)]
LARGE_MLP = [(784, 512), (512,), (512, 512), (512,), (512, 10), (10,)]
LENET = [(5, 5, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 500), (500,), (500, 10), (10,)]
DEEP = [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 1024), (1024,), (1024, 10), (10,)]

SGD, ADAM, ADAGRAD = torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad
CASES = {
    "softmax": (softmax, SOFTMAX, SGD, {"lr": 0.5}, None),
    "softmax_adagrad": (softmax, SOFTMAX, ADAGRAD, {"lr": 0.05, "initial_accumulator_value": 0.1, "eps": 0}, None),
    "mlp": (mlp, MLP, ADAM, {"lr": 0.001}, None),
    "mlp_nesterov_decay": (mlp, MLP, SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, None),
    "mlp_large_momentum": (mlp, LARGE_MLP, SGD, {"lr": 0.01, "momentum": 0.9}, None),
    "lenet": (lenet, LENET, SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}, lambda step: (1 + 1e-4 * step) ** -0.75),
    "deep": (deep, DEEP, ADAM, {"lr": 1e-4}, None),
}


def losses_of(model, shapes, optimizer, settings, schedule, move=None):
    """move: the number of a draw that moves every first parameter by up to half an epsilon of float."""
    parameters = []
    for number, shape in enumerate(shapes):
        scale = 0.1 if len(shape) == 1 else numpy.prod(shape[:-1]) ** -0.5
        values = (2 * uniform(number, int(numpy.prod(shape))) - 1) * scale
        values = values.float().double()  # as muster keeps them
        if move is not None:
            values *= 1 + (2 * uniform(5000 + 100 * move + number, len(values)) - 1) * 2**-24
        parameters.append(values.reshape(shape).requires_grad_())
    update = optimizer(parameters, **settings)
    rates = torch.optim.lr_scheduler.LambdaLR(update, schedule) if schedule else None
    losses = []
    for step in range(STEPS):
        features = uniform(1000 + step, BATCH * 784).reshape(BATCH, 784)
        labels = (uniform(2000 + step, BATCH) * 10).long()
        update.zero_grad()
        loss = functional.cross_entropy(model(parameters, features, step * BATCH), labels)
        loss.backward()
        update.step()
        if rates:
            rates.step()
        losses.append(loss.item())
    return losses


# Of the id columns: the buckets of the wide ones, and of the others with the width of the embedding, 0 for zeros and a one.
TUTORIAL_WIDE = [3, 1000, 1000, 1000, 100, 100, 11, 10000, 1000000, 10000]
TUTORIAL_DEEP = [(100, 8), (1000, 8), (3, 8), (100, 8), (1000, 8), (1000, 8)]
DIST_TEST_WIDE = [3, 1000, 1000, 1000, 100, 100, 100, 11, 10000, 10000, 1000000]
DIST_TEST_DEEP = [(100, 8), (1000, 8), (100, 8), (3, 8), (100, 8), (6, 8), (1000, 8), (1000, 8)]
MINIBATCH_WIDE = [17, 8, 7, 10, 1000, 11, 1000, 1000]
MINIBATCH_DEEP = [(10, 0), (17, 0), (8, 0), (7, 0), (1000, 8)]
# name: (wide columns, other columns, layers, rate of Adagrad)
CENSUS_CASES = {
    "wide_deep_tutorial": (TUTORIAL_WIDE, TUTORIAL_DEEP, [100, 50, 1], 0.05),
    "wide_deep_dist_test": (DIST_TEST_WIDE, DIST_TEST_DEEP, [5, 1], 0.05),
    "wide_deep_minibatch": (MINIBATCH_WIDE, MINIBATCH_DEEP, [100, 75, 50, 25, 1], 0.01),
    "wide_deep_wide_only": (TUTORIAL_WIDE, [], [], None),
}
NUMBERS = 5  # of a sample, where there are layers


class Ftrl:
    """FTRL-Proximal (McMahan et al., KDD 2013, algorithm 1) without penalties, with TensorFlow's constants."""

    def __init__(self, parameters, rate=0.2, initial_accumulator=0.1):
        self.parameters, self.rate = parameters, rate
        self.n = [torch.full_like(p, initial_accumulator) for p in parameters]
        self.z = [torch.zeros_like(p) for p in parameters]
        self.touched = [torch.zeros_like(p, dtype=torch.bool) for p in parameters]

    @torch.no_grad()
    def step(self):
        for p, n, z, touched in zip(self.parameters, self.n, self.z, self.touched):
            touched |= p.grad != 0
            grown = n + p.grad**2
            z += p.grad - (grown.sqrt() - n.sqrt()) / self.rate * p
            n.copy_(grown)
            p.copy_(torch.where(touched, -z * self.rate / n.sqrt(), p))


def parameter(stream, shape, scale):
    values = (2 * uniform(stream, int(numpy.prod(shape))) - 1) * scale
    return values.float().double().reshape(shape).requires_grad_()


def census_losses(wide_columns, deep_columns, layers, rate):
    columns = wide_columns + [buckets for buckets, _ in deep_columns]
    wide = [torch.zeros(buckets, 1, dtype=torch.float64).requires_grad_() for buckets in wide_columns]
    # Tables are numbered in the order of their columns, from stream 100 on.
    embeddings, stream = [], 100 + len(wide)
    for buckets, width in deep_columns:
        embeddings.append(parameter(stream, (buckets, width), 0.1) if width else None)
        stream += width > 0
    dense_layers = []
    inputs = (NUMBERS if layers else 0) + sum(width or buckets for buckets, width in deep_columns)
    for number, outputs in enumerate(layers):
        dense_layers.append((parameter(2 * number, (inputs, outputs), inputs**-0.5), parameter(2 * number + 1, (outputs,), 0.1)))
        inputs = outputs
    bias = parameter(2 * len(layers), (1,), 0.1)
    optimizers = [Ftrl(wide + [bias])]
    if layers:
        deep = [e for e in embeddings if e is not None] + [tensor for layer in dense_layers for tensor in layer]
        optimizers.append(torch.optim.Adagrad(deep, lr=rate, initial_accumulator_value=0.1, eps=0))
    everything = wide + [bias] + (deep if layers else [])
    losses = []
    for step in range(STEPS):
        numbers = uniform(1000 + step, BATCH * NUMBERS).reshape(BATCH, NUMBERS)
        labels = (uniform(2000 + step, BATCH) * 2).long().double()
        ids = (uniform(3000 + step, BATCH * len(columns)).reshape(BATCH, -1) * torch.tensor(columns)).long()
        logits = bias + sum(table[ids[:, c]] for c, table in enumerate(wide)).squeeze(1)
        if layers:
            parts = [numbers]
            for c, (embedding, (buckets, _)) in enumerate(zip(embeddings, deep_columns), start=len(wide)):
                parts.append(functional.one_hot(ids[:, c], buckets).double() if embedding is None else embedding[ids[:, c]])
            x = torch.cat(parts, 1)
            for weights, offsets in dense_layers[:-1]:
                x = functional.relu(dense(x, weights, offsets))
            logits = logits + dense(x, *dense_layers[-1]).squeeze(1)
        for tensor in everything:
            tensor.grad = None
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


if sys.argv[1:] == ["--moved"]:
    for name, case in CASES.items():
        losses = numpy.array(losses_of(*case))
        changes = [numpy.abs(losses_of(*case, move) / losses - 1).max() for move in range(10)]
        print("%s %.1e" % (name, max(changes)))
    sys.exit()
golden = {name: losses_of(*case) for name, case in CASES.items()}
golden.update({name: census_losses(*case) for name, case in CENSUS_CASES.items()})
json.dump(golden, sys.stdout, indent=1)
print()
