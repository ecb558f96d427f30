"""Evaluates a saved model on MNIST's test images with other people's code: evaluate_model.py MODEL DATA

MODEL.onnx runs in OpenCV; MODEL.safetensors is read here and multiplied with numpy. DATA holds mnist/ with the test
set, packed or not. Prints a JSON object: samples, correct, and close: the samples whose two largest logits differ so
little that another order of the same sums may swap them.
"""
import gzip
import json
import os
import struct
import sys

import numpy

BATCH = 1000


def read_idx(data, name):
    path = os.path.join(data, "mnist", name)
    opener = open if os.path.exists(path) else gzip.open
    with opener(path if opener is open else path + ".gz", "rb") as file:
        data = file.read()
    dimensions = data[3]
    shape = struct.unpack_from(">%dI" % dimensions, data, 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def onnx_model(path):
    import cv2
    import onnx
    onnx.checker.check_model(path, full_check=True)
    net = cv2.dnn.readNetFromONNX(path)

    def run(images):
        net.setInput(images)
        return net.forward("logits")

    return run


def read_safetensors(path):
    """Metadata, and {name: tensor} in the order of the file."""
    with open(path, "rb") as file:
        data = file.read()
    header_size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + header_size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        values = numpy.frombuffer(data[8 + header_size + begin:8 + header_size + end], "<f4")
        tensors[name] = values.reshape(entry["shape"])
    return metadata, tensors


def convolved(images, weights, bias):
    """images: [N, height, width, channels], of which no side is padded; weights: [kernel, kernel, channels, outputs]."""
    kernel, outputs = len(weights), len(bias)
    windows = numpy.lib.stride_tricks.sliding_window_view(images, (kernel, kernel), axis=(1, 2))
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], -1)
    return patches @ weights.reshape(-1, outputs) + bias


def pooled(images):
    samples, height, width, channels = images.shape
    return images.reshape(samples, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def lenet(layers):
    def run(images):
        values = images.transpose(0, 2, 3, 1)
        for weights, bias in layers[:2]:
            values = pooled(convolved(values, weights, bias))
        values = values.reshape(len(values), -1)
        values = numpy.maximum(values @ layers[2][0] + layers[2][1], 0)
        return values @ layers[3][0] + layers[3][1]

    return run


def safetensors_model(path):
    metadata, tensors = read_safetensors(path)
    tensors = list(tensors.values())
    layers = list(zip(tensors[::2], tensors[1::2]))
    if metadata["model"] == "mnist_cnn":
        assert metadata["variant"] == "lenet", metadata
        return lenet(layers)
    assert metadata["model"] in ("mnist_softmax", "mnist_mlp"), metadata
    hidden = [int(size) for size in metadata["hidden"].split(",") if size]
    assert [bias.size for _, bias in layers[:-1]] == hidden, metadata

    def run(images):
        values = images.reshape(len(images), -1)
        for index, (weights, bias) in enumerate(layers):
            values = values @ weights + bias
            if index + 1 < len(layers):
                values = numpy.maximum(values, 0)
        return values

    return run


def main():
    path, data = sys.argv[1:]
    images = read_idx(data, "t10k-images-idx3-ubyte")
    labels = read_idx(data, "t10k-labels-idx1-ubyte")
    model = onnx_model(path) if path.endswith(".onnx") else safetensors_model(path)
    correct = close = 0
    for begin in range(0, len(images), BATCH):
        # [N, channels, height, width] in [0, 1]
        batch = images[begin:begin + BATCH, None].astype(numpy.float32) * numpy.float32(1 / 255)
        logits = model(batch)
        assert logits.shape == (len(batch), 10), logits.shape
        correct += int((logits.argmax(axis=1) == labels[begin:begin + BATCH]).sum())
        largest = numpy.sort(logits, axis=1)
        # Each layer adds at most 784 products, rounded to half an epsilon each, of values no larger than its logits
        # by much; three layers, two logits. The four layers of a CNN add up to 3136, of which random roundings leave the
        # square root: less.
        bound = 3 * 2 * 784 * numpy.finfo(numpy.float32).eps / 2 * numpy.abs(logits).max(axis=1)
        close += int((largest[:, -1] - largest[:, -2] < bound).sum())
    print(json.dumps({"samples": len(images), "correct": correct, "close": close}))


if __name__ == "__main__":
    main()
