#!/usr/bin/python3
"""Data-parallel training with PyTorch's DDP over Gloo and, in turn, with muster-trainer's allreduce: samples/s, and what a process adds.

    bench/peers/torch_ddp.py --muster=build/release/bin/muster-trainer --data "$MUSTER_DATA"

All on this machine, one thread a process, the models of torch_train.py. Each process takes a batch of its own from its share of the data:
N of them make N times as many samples a step. Each round runs in turn PyTorch alone, muster alone (--job_name=local), PyTorch with N
processes and muster with N workers, in processes of their own. The table has medians over the rounds: of samples/s of all processes
together, of their efficiency (that of N divided by N times that of one in the same round) and of the ratios of muster to PyTorch, alone
and with N. More processes than cores say nothing about efficiency. Without --muster only PyTorch runs.

PyTorch gets OMP_WAIT_POLICY=PASSIVE and, with AVX-512, OPENBLAS_CORETYPE=SKYLAKEX (see torch_train.py) where the environment does not say
otherwise, Gloo the loopback interface. OpenBLAS takes no notice of torch.set_num_threads, only of OPENBLAS_NUM_THREADS.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import sys
import tempfile
import time

from torch_rpc_ps import finish, free_port, start
from torch_train import MODELS, load_mnist, make_model, require_fast_blas, train_with_torch

WARM_UP_STEPS = 5  # DDP chooses its buckets in the first


def set_environment():
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    processor = pathlib.Path("/proc/cpuinfo")
    if processor.exists() and " avx512f " in processor.read_text():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")


def train_with_ddp(name, batch, steps, rank, processes, port, folder):
    """Samples/s of this process."""
    import torch
    from torch import distributed
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    require_fast_blas()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    images, labels = load_mnist(folder)
    module, optimizer, takes_images = make_model(name)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True)
    # As a DistributedSampler does it: the same permutation everywhere, of which each takes its share.
    generator = torch.Generator().manual_seed(1)
    share, position = [], 0

    def step():
        nonlocal share, position
        if position + batch > len(share):
            share, position = torch.randperm(len(labels), generator=generator)[rank::processes], 0
        index = share[position:position + batch]
        position += batch
        features = images[index]
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(features.view(-1, 1, 28, 28) if takes_images else features), labels[index]).backward()
        optimizer.step()

    for _ in range(WARM_UP_STEPS):
        step()
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - begin
    distributed.barrier()
    distributed.destroy_process_group()
    return batch * steps / seconds


def measure_torch(name, processes, folder):
    port = free_port()
    outs = finish([start([sys.executable, __file__, "--task", str(rank), "--port", str(port), "--processes", str(processes),
                          "--models", name, "--data", str(folder)]) for rank in range(processes)])
    return processes * min(json.loads(out)["samples_per_second"] for out in outs)


def measure_muster(name, processes, command, folder):
    flags, batch, _, steps = MODELS[name]
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(processes))
    with tempfile.TemporaryDirectory() as results:
        tasks = []
        for index in range(processes):
            role = ["--job_name=local"] if processes == 1 else [
                "--strategy=allreduce", "--job_name=worker", f"--task_index={index}", f"--worker_hosts={hosts}"]
            tasks.append(start([*command, *role, *flags, f"--batch_size={batch}", f"--train_steps={steps}", "--threads=1",
                                f"--data_dir={folder}", f"--result_json={results}/{index}.json"]))
        finish(tasks)
        # Worker 0 is the chief: its record is of the job.
        return json.loads(pathlib.Path(f"{results}/0.json").read_text())["samples_per_second"]


class Series:
    """What one trainer reached in each round, alone and with all processes."""

    def __init__(self, processes):
        self.processes, self.alone, self.together = processes, [], []

    def row(self):
        efficiencies = [together / (self.processes * alone) for alone, together in zip(self.alone, self.together)]
        return f" {statistics.median(self.alone):10,.0f} {statistics.median(self.together):10,.0f} {statistics.median(efficiencies):6.2f}"


def ratios(theirs, ours):
    values = [b / a for a, b in zip(theirs, ours)]
    return f" {statistics.median(values):7.2f} {f'{min(values):.2f}..{max(values):.2f}':>10}"


def compare(name, arguments, folder):
    """One row of the table."""
    command, processes = shlex.split(arguments.muster or ""), arguments.processes
    theirs, ours = Series(processes), Series(processes)
    for _ in range(arguments.rounds):
        for count in (1, processes):
            rates = "alone" if count == 1 else "together"
            getattr(theirs, rates).append(measure_torch(name, count, folder))
            if command:
                getattr(ours, rates).append(measure_muster(name, count, command, folder))
    row = f"{name:8} {MODELS[name][1]:5}{theirs.row()}"
    if command:
        row += ours.row() + ratios(theirs.alone, ours.alone) + ratios(theirs.together, ours.together)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muster", help="command that runs muster-trainer; its flags are added")
    parser.add_argument("--data", default=os.environ.get("MUSTER_DATA"), help="folder with mnist/")
    parser.add_argument("--models", default="mlp,mlp512,deep")
    parser.add_argument("--processes", type=int, default=2, help="two or more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: which folder has the data sets?")
    folder = pathlib.Path(arguments.data)
    if arguments.task is not None:
        _, batch, steps, _ = MODELS[arguments.models]
        rate = (train_with_torch(arguments.models, batch, steps, 1, folder) if arguments.processes == 1 else
                train_with_ddp(arguments.models, batch, steps, arguments.task, arguments.processes, arguments.port, folder))
        print(json.dumps({"samples_per_second": rate}))
        return
    if arguments.processes < 2:
        parser.error("--processes: two or more")

    set_environment()
    count = arguments.processes
    columns = f"{'model':8} {'batch':>5} {'PyTorch 1':>10} {f'DDP {count}':>10} {'eff.':>6}"
    if arguments.muster:
        columns += f" {'muster 1':>10} {f'muster {count}':>10} {'eff.':>6}"
        columns += f" {'ratio 1':>7} {'min..max':>10} {f'ratio {count}':>7} {'min..max':>10}"
    print(columns)
    for name in arguments.models.split(","):
        print(compare(name, arguments, folder), flush=True)


if __name__ == "__main__":
    main()
