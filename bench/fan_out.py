#!/usr/bin/env python3
"""The launcher beside pdsh, clush and ansible on the same hosts: real sshd on this machine (tests/cluster/loopback), commands in turn.

    bench/fan_out.py --muster build/release/bin/muster [--hosts 32,128,250] [--rounds 5] [--no-deploy]

For each number of hosts two tables: `true` on every host by `muster exec`, `pdsh -f 32` as it is and with the key exchange that muster
uses, `clush -f 64`, `ansible -m raw -f 32` (without connections kept open); and the same beside `muster exec` that goes through the
connections of a job which runs in the background, on every host. Wall time, processor time of the client with its children (the sshds
not included, nor the job's controller), and the most memory any of its processes had; medians, and muster's ratio to each in the same
round: median, lowest and highest.

On the first number of hosts also a job with 20 MB of data that no host has: until all its tasks run (`run -d`), and until it has run and
muster is done, beside `clush --copy` of the same file; and the same job again, which has nothing to send.

What is not installed is left out: apt-get install pdsh clustershell ansible-core
"""
import argparse
import contextlib
import itertools
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOOPBACK = ROOT / "tests/cluster/loopback"
DEPLOYED_BYTES = 20 << 20
DEADLINE_S = 300


class Hosts:
    """`count` hosts in `folder`, and what peers need to log in to them."""

    def __init__(self, folder, count):
        self.folder = folder / "hosts"
        # What clush --copy goes through. It knows nothing of HOME, and without a folder for each host all copies would be one file.
        scp = "Subsystem sftp internal-sftp -d {home}"
        subprocess.run([LOOPBACK, "up", self.folder, str(count), "--option", scp], check=True, stdout=subprocess.DEVNULL)
        self.inventory = self.folder / "inventory.yaml"
        found = re.findall(r"(\S+): \{ssh: \"([0-9.]+):(\d+)\"", self.inventory.read_text())
        self.addresses = [address for _, address, _ in found]
        self.port = found[0][2]
        keys = dict(line.split(" ", 1) for line in (self.folder / "known_hosts").read_text().splitlines())
        self.known_hosts = folder / "openssh_known_hosts"
        self.known_hosts.write_text("".join(f"[{address}]:{port} {keys[name]}\n" for name, address, port in found))
        self.ssh = (f"-F /dev/null -o Port={self.port} -i {self.folder}/id_ed25519 -o UserKnownHostsFile={self.known_hosts} "
                    "-o StrictHostKeyChecking=yes -o LogLevel=ERROR")

    def down(self):
        subprocess.run([LOOPBACK, "down", self.folder], check=True, stdout=subprocess.DEVNULL)


def run(command, environment, cwd):
    """Wall and processor seconds, and megabytes of the largest process."""
    begin = time.monotonic()
    output = tempfile.TemporaryFile()
    process = subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        output.seek(0)
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {process.returncode}\n{output.read().decode()[-2000:]}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def with_deadline(command):
    return ["timeout", "--foreground", str(DEADLINE_S), *map(str, command)]


def in_turn(commands, rounds):
    """{name: [(wall, processor, memory), ...]} of {name: function}."""
    runs = {name: [] for name in commands}
    for _ in range(rounds):
        for name, once in commands.items():
            runs[name].append(once())
    return runs


def report(title, runs, first):
    print(f"\n{title}\n| | wall, s | processor, s | memory, MB | ratio of {first}: wall | processor |\n|---|---|---|---|---|---|")
    for name, of_it in runs.items():
        ratios = [""] * 2
        for i in range(2 if name != first else 0):
            each = sorted(mine[i] / theirs[i] for mine, theirs in zip(runs[first], of_it))
            ratios[i] = f"{statistics.median(each):.2f} ({each[0]:.2f}-{each[-1]:.2f})"
        wall, processor, memory = (statistics.median(values) for values in zip(*of_it))
        print(f"| {name} | {wall:.2f} | {processor:.2f} | {memory:.0f} | {ratios[0]} | {ratios[1]} |", flush=True)


def environment_of(folder, hosts):
    return dict(os.environ, HOME=str(folder), MUSTER_HOME=str(folder / "muster"), MUSTER_KNOWN_HOSTS=str(hosts.folder / "known_hosts"),
                MUSTER_INVENTORY=str(hosts.inventory), ANSIBLE_LOCAL_TEMP=str(folder / "ansible"))


def connected_home(folder):
    """Of the muster whose job runs on every host."""
    return str(folder / "muster-connected")


@contextlib.contextmanager
def job_on_every_host(muster, folder, hosts):
    environment = dict(environment_of(folder, hosts), MUSTER_HOME=connected_home(folder))
    job = folder / "connected.yaml"
    job.write_text(f"name: connected\nprogram: [sleep, \"3600\"]\nreplicas: {{worker: {{count: {len(hosts.addresses)}}}}}\n")
    # The hosts share their processors with this client: so many agents at once would come too late for a job's first start.
    run(with_deadline([muster, "check", "--connect-timeout", str(DEADLINE_S)]), environment, folder)
    run(with_deadline([muster, "run", "-d", job]), environment, folder)
    try:
        yield
    finally:
        run(with_deadline([muster, "stop", "connected"]), environment, folder)


def exec_commands(muster, folder, hosts):
    environment = environment_of(folder, hosts)
    all_hosts = ",".join(hosts.addresses)

    def client(command, **variables):
        return lambda: run(with_deadline(command), dict(environment, **variables), folder)

    commands = {"muster exec": client([muster, "exec", "--", "true"]),
                "muster exec, connected": client([muster, "exec", "--", "true"], MUSTER_HOME=connected_home(folder))}
    if shutil.which("pdsh"):
        pdsh = ["pdsh", "-S", "-R", "ssh", "-f", "32", "-l", "root", "-w", all_hosts, "true"]
        commands["pdsh -f 32"] = client(pdsh, PDSH_SSH_ARGS_APPEND=hosts.ssh)
        commands["pdsh -f 32, curve25519"] = client(pdsh, PDSH_SSH_ARGS_APPEND=f"{hosts.ssh} -o KexAlgorithms=curve25519-sha256")
    if shutil.which("clush"):
        commands["clush -f 64"] = client(["clush", "-S", "-f", "64", "-o", hosts.ssh, "-w", all_hosts, "true"])
    if shutil.which("ansible"):
        inventory = folder / "ansible.ini"
        inventory.write_text("\n".join(hosts.addresses) + "\n")
        commands["ansible -m raw -f 32"] = client(
            ["ansible", "all", "-i", inventory, "-f", "32", "-m", "raw", "-a", "true", f"--ssh-common-args={hosts.ssh}"],
            ANSIBLE_SSH_ARGS="-o ControlMaster=no")
    return commands


def deploy_commands(muster, folder, hosts):
    environment = environment_of(folder, hosts)
    deployed = folder / "data" / "bytes"
    deployed.parent.mkdir()
    job = folder / "job.yaml"
    job.write_text(f"name: deploy\nprogram: [\"true\"]\ndata: {deployed.parent}\nreplicas: {{worker: {{count: {len(hosts.addresses)}}}}}\n")

    def with_new_data(*flags):
        deployed.write_bytes(os.urandom(DEPLOYED_BYTES))
        return run(with_deadline([muster, "run", *flags, job]), environment, folder)

    def until_it_runs():
        deployed_and_running = with_new_data("-d")
        run(with_deadline([muster, "wait", "deploy"]), environment, folder)
        return deployed_and_running

    commands = {
        "muster run -d, 20 MB": until_it_runs,
        "muster run, 20 MB": lambda: with_new_data("-q"),
        "muster run again": lambda: run(with_deadline([muster, "run", "-q", job]), environment, folder),
    }
    # A new file each time, as it is for muster.
    names = (f"copy-{i}" for i in itertools.count())

    def clush_copy():
        copied = run(with_deadline(["clush", "-S", "-f", "64", "-o", hosts.ssh, "-w", ",".join(hosts.addresses), "--copy", deployed,
                                    "--dest", name := next(names)]), environment, folder)
        if len(list(hosts.folder.glob(f"*/home/{name}"))) != len(hosts.addresses):
            raise SystemExit("clush --copy: not every host has a file of its own")
        return copied

    if shutil.which("clush"):
        commands["clush --copy, 20 MB"] = clush_copy
    return commands


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muster", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--hosts", type=lambda text: [int(n) for n in text.split(",")], default=[32, 128, 250])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-deploy", action="store_true")
    arguments = parser.parse_args()
    for count in arguments.hosts:
        with tempfile.TemporaryDirectory(prefix="muster-fan-out-") as name:
            folder = pathlib.Path(name)
            hosts = Hosts(folder, count)
            try:
                with job_on_every_host(arguments.muster, folder, hosts):
                    runs = in_turn(exec_commands(arguments.muster, folder, hosts), arguments.rounds)
                for first in ("muster exec", "muster exec, connected"):
                    report(f"{count} hosts, `true`", runs, first)
                if count == arguments.hosts[0] and not arguments.no_deploy:
                    runs = in_turn(deploy_commands(arguments.muster, folder, hosts), arguments.rounds)
                    for first in ("muster run -d, 20 MB", "muster run, 20 MB"):
                        report(f"{count} hosts, 20 MB", runs, first)
            finally:
                hosts.down()


if __name__ == "__main__":
    main()
