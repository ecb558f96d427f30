"""Evaluates a saved wide & deep model on the census' test set with other people's code: evaluate_wide_deep.py MODEL DATA

Ids are made of the table here, as the file's id_columns say, with the xxhash of others. MODEL.onnx is checked by ONNX's own
checker, and its operations are carried out with numpy; of MODEL.safetensors the tensors are read, and what they mean is known
here. DATA holds census/ with the test set, packed or not. Prints a JSON object: samples, correct and the mean loss, computed in
double; close and loss_error: the samples whose answer, and by how much the loss, may differ where floats are rounded.
"""
import functools
import gzip
import json
import os
import struct
import sys

sys.dont_write_bytecode = True  # of the module beside this one

import numpy
import xxhash

from evaluate_model import read_safetensors

NUMBERS = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}
COLUMNS = ["age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
           "race", "gender", "capital_gain", "capital_loss", "hours_per_week", "native_country"]
# The columns of the deep part that are no embeddings: they have no tensor that would name them.
ONE_HOT = {"minibatch": ["workclass", "education", "marital_status", "relationship"]}


def read_census(data):
    """{column: values}, labels"""
    path = os.path.join(data, "census", "adult.test")
    with open(path) if os.path.exists(path) else gzip.open(path + ".gz", "rt") as file:
        rows = [[field.strip() for field in line.split(",")] for line in file
                if line.strip() and not line.startswith("|")]
    table = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
    for name in NUMBERS:
        table[name] = numpy.array(table[name], float)
    labels = [row[-1].rstrip(".") for row in rows]
    assert set(labels) == {">50K", "<=50K"}, set(labels)
    return table, numpy.array([label == ">50K" for label in labels])


def buckets(description, table):
    return [sum(boundary <= value for boundary in description["boundaries"]) for value in table[description["number"]]]


def hashes(part, table):
    if isinstance(part, str):
        return [xxhash.xxh64_intdigest(value, seed=0) for value in table[part]]
    return [xxhash.xxh64_intdigest(struct.pack("<Q", bucket), seed=0) for bucket in buckets(part, table)]


def make_ids(description, table):
    if "number" in description:
        ids = buckets(description, table)
    elif "words" in description:
        words = description["words"]
        ids = [words.index(value) if value in words else len(words) for value in table[description["string"]]]
    elif "string" in description:
        ids = [value % description["buckets"] for value in hashes(description["string"], table)]
    else:
        parts = zip(*[hashes(part, table) for part in description["cross"]])
        ids = [xxhash.xxh64_intdigest(struct.pack("<%dQ" % len(row), *row), seed=0) % description["buckets"]
               for row in parts]
    return numpy.array(ids, numpy.int64)


def one_hot(ids, depth, dtype):
    assert ids.min() >= 0 and ids.max() < depth
    return (numpy.arange(depth) == ids[:, None]).astype(dtype)


def gather(values, ids):
    assert ids.min() >= 0 and ids.max() < len(values)
    return values[ids]


# A model is a function of (table, ids, type to compute in) that gives the logits [N].


def onnx_model(path):
    """The model, and what it says of itself."""
    import onnx
    import onnx.numpy_helper
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    graph = model.graph
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 13)]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def one_hot_of(ids, depth, off_on):
        assert off_on.tolist() == [0, 1]
        return one_hot(ids, depth.item(), off_on.dtype)

    def gemm(values, weights, bias, transB):
        assert transB == 1
        return values @ weights.T + bias

    operations = {
        "Concat": lambda *values, axis: numpy.concatenate(values, axis),
        "Div": lambda a, b: a / b,
        "Gather": gather,
        "Gemm": gemm,
        "OneHot": one_hot_of,
        "Relu": lambda values: numpy.maximum(values, 0),
        "Sub": lambda a, b: a - b,
        "Sum": lambda *values: functools.reduce(numpy.add, values),
        "Unsqueeze": lambda values, axes: numpy.expand_dims(values, tuple(axes)),
    }

    def run(table, ids, dtype):
        values = {name: value.astype(dtype) if value.dtype == numpy.float32 else value
                  for name, value in constants.items()}
        for entry in graph.input:
            kind = entry.type.tensor_type.elem_type
            assert kind == (onnx.TensorProto.INT64 if entry.name in ids else onnx.TensorProto.FLOAT), entry
            values[entry.name] = ids[entry.name] if entry.name in ids else table[entry.name].astype(dtype)
        for node in graph.node:
            attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
            values[node.output[0]] = operations[node.op_type](*[values[name] for name in node.input], **attributes)
        return values["logits"]

    return run, {entry.key: entry.value for entry in model.metadata_props}


def safetensors_model(path):
    """The same of the other file."""
    metadata, tensors = read_safetensors(path)
    assert metadata["model"] == "wide_deep", metadata
    wide = [name for name in tensors if name.startswith("wide/") and name != "wide/bias"]
    deep = [name for name in tensors if name.startswith("deep/")]
    layers = [name[:-len("/weights")] for name in tensors if name.endswith("/weights")]
    one_hots = ONE_HOT.get(metadata["variant"], [])
    descriptions = json.loads(metadata["id_columns"])

    def run(table, ids, dtype):
        def tensor(name):
            return tensors[name].astype(dtype)

        logits = tensor("wide/bias") + sum(gather(tensor(name), ids[name[len("wide/"):]]) for name in wide)
        if not layers:
            return logits
        inputs = []
        for entry in metadata["standardization"].split(","):
            name, mean, deviation = entry.split(":")
            inputs.append(((table[name] - float(mean)) / float(deviation)).astype(dtype)[:, None])
        inputs += [one_hot(ids[name], len(descriptions[name]["words"]) + 1, dtype) for name in one_hots]
        inputs += [gather(tensor(name), ids[name[len("deep/"):]]) for name in deep]
        values = numpy.concatenate(inputs, axis=1)
        for name in layers:
            values = values @ tensor(name + "/weights") + tensor(name + "/bias")
            if name != layers[-1]:
                values = numpy.maximum(values, 0)
        return logits + values

    return run, metadata


def main():
    path, data = sys.argv[1:]
    table, labels = read_census(data)
    model, metadata = onnx_model(path) if path.endswith(".onnx") else safetensors_model(path)
    ids = {name: make_ids(description, table) for name, description in json.loads(metadata["id_columns"]).items()}
    logits, in_float = (model(table, ids, dtype) for dtype in (numpy.float64, numpy.float32))
    assert logits.shape == (len(labels), 1) and in_float.dtype == numpy.float32, (logits.shape, in_float.dtype)
    logits = logits[:, 0]
    # The trainer's sums are rounded in another order, so not to the same, but by about as much.
    error = 10 * numpy.abs(in_float[:, 0] - logits)
    # A loss changes by no more than its logit does.
    loss = numpy.logaddexp(0, logits) - logits * labels
    print(json.dumps({"samples": len(labels), "correct": int(((logits > 0) == labels).sum()), "loss": loss.mean(),
                      "loss_error": error.mean(), "close": int((numpy.abs(logits) <= error.max()).sum())}))


main()
