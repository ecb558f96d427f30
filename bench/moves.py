#!/usr/bin/env python3
"""How long training stands still when a host gets another address: real sshd on this machine (tests/cluster/loopback).

    bench/moves.py --muster build/release/bin/muster [--moves 9] [--strategy sync|async|allreduce] [--found-by inventory|search]

inventory: addresses of 127.0.0.0/8, and the inventory is edited right after the move; connections break at once.
search: each host is a network namespace and falls silent (needs root); its key is looked for in the /24.

One line per strategy: the longest pauses between two lines of the chief's metrics, one for each move, less the usual distance of
two lines; and what `muster run` says, from when it missed the host until all tasks run in the new cluster. Medians and maxima.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOOPBACK = ROOT / "tests/cluster/loopback"
JOBS = {
    "sync": "update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n",
    "async": "update: {mode: async}\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n",
    "allreduce": "strategy: allreduce\nreplicas: {worker: {count: 3}}\n",
}
DEADLINE_S = 60


def await_that(holds, what):
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {DEADLINE_S} s")
        time.sleep(0.02)


class Cluster:
    def __init__(self, folder, in_namespaces):
        self.folder = folder
        self.in_namespaces = in_namespaces
        self.loopback("up", 3, *(["--namespaces"] if in_namespaces else []))
        self.inventory = folder / "hosts/inventory.yaml"
        self.addresses = re.findall(r"data: ([0-9.]+)", self.inventory.read_text())
        if in_namespaces:
            network = self.addresses[0].rpartition(".")[0]
            self.inventory.write_text(self.inventory.read_text() + f"search: [{network}.0/24]\n")
        self.next_free = 150

    def loopback(self, command, *arguments):
        subprocess.run([LOOPBACK, command, self.folder / "hosts", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def move(self, host):
        before = self.addresses[host]
        after = f"{before.rpartition('.')[0]}.{self.next_free}"
        self.next_free += 1
        self.loopback("move", f"host-{host + 1}", after)
        self.addresses[host] = after
        if not self.in_namespaces:
            edited = self.folder / "edited.yaml"
            edited.write_text(re.sub(re.escape(before) + r"(?=[:,])", after, self.inventory.read_text()))
            edited.rename(self.inventory)


def measure(muster, strategy, found_by, moves):
    with tempfile.TemporaryDirectory(prefix="muster-moves-") as name:
        folder = pathlib.Path(name)
        cluster = Cluster(folder, found_by == "search")
        hosts = folder / "hosts"
        environment = dict(os.environ, HOME=str(hosts), MUSTER_HOME=str(folder / "home"), MUSTER_KNOWN_HOSTS=str(hosts / "known_hosts"))
        job = folder / "job.yaml"
        job.write_text(f"name: moves\nmodel: mnist_mlp\nhidden: [50]\n{JOBS[strategy]}"
                       "train: {steps: 100000000, batch_size: 20, seed: 3, threads: 1}\n")
        output = folder / "run"
        run = None
        try:
            with output.open("w") as file:
                run = subprocess.Popen([muster, "run", job, "-i", cluster.inventory], stdout=file, stderr=file, env=environment)
            await_that(lambda: "] step " in output.read_text(), "the first step")
            for i in range(moves):
                time.sleep(1)
                cluster.move(i % 3)
                await_that(lambda: output.read_text().count(" rejoined after ") > i, f"move {i + 1}")
            time.sleep(1)
            subprocess.run([muster, "stop", "moves"], check=True, env=environment, capture_output=True)
            run.wait(DEADLINE_S)
            text = output.read_text()
            metrics, = hosts.glob("*/home/.muster/hosts/*/jobs/*/*/metrics.jsonl")
            times = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
        finally:
            if run is not None:
                run.kill()
            cluster.loopback("down")
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    pauses = [gap - statistics.median(gaps) for gap in gaps[-moves:]]
    said = [float(seconds) for seconds in re.findall(r" rejoined after ([0-9.]+) s,", text)]
    lossless = text.count(", 0 steps lost\n")
    print(f"{strategy:9}  found by {found_by:9}  {moves} moves, {lossless} without a restart; training stands still "
          f"{statistics.median(pauses):.2f} s (at most {max(pauses):.2f}); muster: {statistics.median(said):.2f} s "
          f"(at most {max(said):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muster", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--moves", type=int, default=9)
    parser.add_argument("--strategy", choices=JOBS, action="append")
    parser.add_argument("--found-by", choices=["inventory", "search"], action="append")
    arguments = parser.parse_args()
    for found_by in arguments.found_by or ["inventory", "search"]:
        for strategy in arguments.strategy or JOBS:
            measure(arguments.muster, strategy, found_by, arguments.moves)


if __name__ == "__main__":
    main()
