"""How closely ``forerun serve`` holds its schedule: many streams at once, read by a client that does next to nothing.

``python benchmarks/streams.py examples/chat-h100.yaml --streams 200`` starts a server, opens the streams one after
another, lets them run and prints by how much tokens left too early or too late (the server's own histogram over the
time measured), the gaps that the client saw, the server's CPU time a token and what else the machine did. Server and
client have a core each; where others want them too, ``chrt -f 1 python benchmarks/streams.py ...`` puts both before
them. Linux only.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

TOKEN = b'"finish_reason":null'
COMMAND = [sys.executable, "-c", "import sys; from simulator.cli import main; sys.exit(main(sys.argv[1:]))", "serve"]


@contextmanager
def served(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, and its host and port."""
    process = subprocess.Popen([*COMMAND, *words, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    os.sched_setaffinity(process.pid, {0})  # else the scheduler puts the client beside the server that wakes it
    os.sched_setaffinity(0, {1})
    try:
        yield process, next(line for line in process.stderr if "/v1 " in line).split("http://")[1].split("/")[0]
    finally:
        process.terminate()
        process.wait()


def lateness(address: str) -> dict[float, float]:
    """Tokens that left within so many seconds of their moment, since the server began."""
    text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("forerun:stream_lateness_seconds_bucket")]
    return {float(line.split('le="')[1].split('"')[0]): float(line.rsplit(" ", 1)[1]) for line in lines}


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        words = file.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """CPU time that anyone has had, or that the machine has lost to others on its host."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class Streams:
    """Streams under way, and when each token of them came in."""

    def __init__(self, address: str, prompt: int, tokens: int) -> None:
        self.address, self.prompt, self.tokens = address, prompt, tokens
        self.poll = select.epoll()
        self.open: dict[int, socket.socket] = {}
        self.came: dict[int, list[float]] = {}
        self.draws = np.random.default_rng(1)

    def begin(self) -> None:
        """Ask for one more."""
        words = ",".join(map(str, self.draws.integers(0, 100_000, self.prompt)))
        body = f'{{"prompt":[{words}],"max_tokens":{self.tokens},"ignore_eos":true,"stream":true}}'
        host, port = self.address.split(":")
        one = socket.create_connection((host, int(port)))
        one.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        self.open[one.fileno()], self.came[one.fileno()] = one, []
        self.poll.register(one.fileno(), select.EPOLLIN)

    def read(self, until_s: float) -> list[float]:
        """Take what comes until then; gaps between the tokens of streams. A stream that ends is begun anew."""
        gaps = []
        while (left_s := until_s - time.monotonic()) > 0:
            for number, _ in self.poll.poll(left_s):
                data, now = self.open[number].recv(1 << 16), time.monotonic()
                if TOKEN in data:
                    gaps += [now - self.came[number][-1]] if self.came[number] else []
                    self.came[number] = [now]
                if not data or data.endswith(b"0\r\n\r\n"):
                    self.open.pop(number).close()
                    self.begin()
        return gaps


def measure(options: argparse.Namespace) -> None:
    """One server, and what it did."""
    with served([options.scenario, "--speed", str(options.speed)]) as (process, address):
        streams = Streams(address, options.prompt, options.tokens)
        for _ in range(options.streams):
            streams.begin()
            streams.read(time.monotonic() + 0.02)
        streams.read(time.monotonic() + 1)
        before, used_s, all_s = lateness(address), cpu_s(process.pid), busy_s() - time.process_time()
        gaps = np.array(streams.read(time.monotonic() + options.seconds)) * 1e3
        used_s, all_s = cpu_s(process.pid) - used_s, busy_s() - time.process_time() - all_s
        after = lateness(address)
    result = {bound: after[bound] - before[bound] for bound in after}
    total, others = result[float("inf")], (all_s - used_s) / options.seconds
    print(f"{options.streams} streams, {total:.0f} tokens in {options.seconds:g} s")
    print(f"{used_s / total * 1e6:.1f} us CPU a token; other work {others:.0%} of a core")
    print("gaps at the client, ms: median {:.2f}, p99 {:.2f}".format(*np.percentile(gaps, [50, 99])))
    print("of their moment within: " + ", ".join(f"{b * 1e3:g} ms {n / total:.2%}" for b, n in result.items()))


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--speed", type=float, default=1.0)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
