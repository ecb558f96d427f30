#!/usr/bin/python3
"""A parameter server made of PyTorch's RPC and, in turn, muster's: steps/s of all workers together, and their ratio.

    OMP_WAIT_POLICY=PASSIVE bench/peers/torch_rpc_ps.py --trainer build/release/bin/muster-trainer --data "$MUSTER_DATA"

MLP 784-512-512-10, SGD, asynchronous: one server that owns all parameters, workers of one thread each, all on this machine. A worker of
PyTorch sends its whole gradient in one call, which updates the parameters under a lock and returns them, as the tutorials do it but with one
call where they make several. Once over TCP (RPC's transport `uv`; muster's --transport=tcp), once as tasks of one host (`shm`; --transport=auto).
PyTorch needs OpenBLAS (libopenblas0-pthread); see torch_train.py for what that needs on machines with AVX-512.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from torch_train import load_mnist, require_fast_blas

HIDDEN, RATE = 512, 0.01
TIMEOUT_S = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_model():
    from torch import nn

    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


class Server:
    """The parameters, in one tensor as in muster."""

    instance = None

    def __init__(self):
        import threading
        import torch
        from torch.nn.utils import parameters_to_vector

        torch.manual_seed(1)
        self.lock = threading.Lock()
        self.parameters = parameters_to_vector(make_model().parameters()).detach()

    @staticmethod
    def push_pull(gradient):
        server = Server.instance
        with server.lock:
            if gradient is not None:
                server.parameters.sub_(gradient, alpha=RATE)
            return server.parameters.clone()


def run_task(rank, workers, steps, batch, shared_memory, port, folder):
    import torch
    from torch.distributed import rpc
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    require_fast_blas()
    torch.set_num_threads(1)
    transports, channels = (["shm", "uv"], ["cma", "basic"]) if shared_memory else (["uv"], ["basic"])
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=transports, _channels=channels)
    if rank == 0:
        Server.instance = Server()
    rpc.init_rpc(f"task{rank}", rank=rank, world_size=workers + 1, rpc_backend_options=options)
    if rank > 0:
        images, labels = load_mnist(folder)
        model, loss_of = make_model(), torch.nn.functional.cross_entropy
        torch.manual_seed(rank)
        order = torch.randperm(len(labels))
        vector_to_parameters(rpc.rpc_sync("task0", Server.push_pull, args=(None,)), model.parameters())

        def step(number):
            begin = number * batch % (len(order) - batch)
            index = order[begin:begin + batch]
            model.zero_grad(set_to_none=True)
            loss_of(model(images[index]), labels[index]).backward()
            gradient = parameters_to_vector([parameter.grad for parameter in model.parameters()])
            vector_to_parameters(rpc.rpc_sync("task0", Server.push_pull, args=(gradient,)), model.parameters())

        for number in range(5):
            step(number)
        start = time.perf_counter()
        for number in range(steps):
            step(number)
        print(json.dumps({"steps_per_second": steps / (time.perf_counter() - start)}))
    rpc.shutdown()


def finish(processes):
    """Their stdout; ends all of them when one fails."""
    try:
        outs = []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            if process.returncode != 0:
                sys.exit(f"{' '.join(process.args)}: status {process.returncode}\n{err}")
            outs.append(out)
        return outs
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measure_torch(arguments, shared_memory):
    port = free_port()
    tasks = [start([sys.executable, __file__, "--task", str(rank), "--port", str(port), "--workers", str(arguments.workers),
                    "--steps", str(arguments.steps), "--batch", str(arguments.batch), "--data", arguments.data,
                    *(["--shared-memory"] if shared_memory else [])]) for rank in range(arguments.workers + 1)]
    return sum(json.loads(out)["steps_per_second"] for out in finish(tasks)[1:])


def measure_muster(arguments, transport):
    with tempfile.TemporaryDirectory() as results:
        hosts = [f"--ps_hosts=127.0.0.1:{free_port()}",
                 "--worker_hosts=" + ",".join(f"127.0.0.1:{index + 1}" for index in range(arguments.workers))]
        flags = ["--model=mnist_mlp", f"--hidden={HIDDEN},{HIDDEN}", "--optimizer=sgd", f"--learning_rate={RATE}",
                 f"--batch_size={arguments.batch}", f"--train_steps={arguments.steps * arguments.workers}", "--threads=1",
                 f"--data_dir={arguments.data}"]
        tasks = [start([arguments.trainer, "--job_name=ps", "--task_index=0", f"--transport={transport}", *hosts])]
        for index in range(arguments.workers):
            tasks.append(start([arguments.trainer, "--job_name=worker", f"--task_index={index}", f"--transport={transport}", *hosts,
                                *flags, f"--result_json={results}/{index}.json"]))
        finish(tasks)
        # Worker 0 is the chief: its record is of the job.
        return json.loads(pathlib.Path(f"{results}/0.json").read_text())["steps_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="build/release/bin/muster-trainer")
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300, help="of each worker")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shared-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: which folder has the data sets?")
    if arguments.task is not None:
        run_task(arguments.task, arguments.workers, arguments.steps, arguments.batch, arguments.shared_memory, arguments.port,
                 pathlib.Path(arguments.data))
        return

    print(f"{'':10} {'PyTorch RPC':>12} {'muster':>8} {'ratio':>6} {'min..max':>12}   steps/s of {arguments.workers} workers, batch {arguments.batch}")
    for name, shared_memory, transport in (("TCP", False, "tcp"), ("one host", True, "auto")):
        theirs, ours = [], []
        for _ in range(arguments.rounds):
            theirs.append(measure_torch(arguments, shared_memory))
            ours.append(measure_muster(arguments, transport))
        ratios = [b / a for a, b in zip(theirs, ours)]
        print(f"{name:10} {statistics.median(theirs):12,.0f} {statistics.median(ours):8,.0f} {statistics.median(ratios):6.2f} "
              f"{min(ratios):5.2f}..{max(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
