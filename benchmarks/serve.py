"""A server under load: many clients at once against one at a time, in the same run, with the shipped translator.

    python benchmarks/serve.py                       # 64 clients for 60 seconds, on 2 cores
    python benchmarks/serve.py --seconds 20 --clients 16
    python benchmarks/serve.py --requests 10000      # memory instead: requests of every sort, a line for each thousand
    python benchmarks/serve.py --requests 10000 --writer runs/shakespeare    # streams among them

One at a time: the same server, asked by one client that waits for each answer before it asks again. Answers are
compared with the offline ones (`model.translate`), errors are counted, and so are answers by their latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

SENTENCES = [
    "A dog runs through the deep snow behind the old house.",
    "How much does this cost?",
    "My sister lives in Berlin, and my brother works in a small town near the sea.",
    "The committee has not yet decided whether the proposal should be put to the vote tomorrow.",
    "Please close the window.",
    "In 1992 the agreement on the European Economic Area was signed, and it entered into force two years later.",
    "We are going to the beach tomorrow if the weather is fine.",
    "I do not know.",
    "The book that you gave me last week is the best I have read for a long time.",
    "Three children play football in the park while their parents talk to each other.",
    "He asked her where the nearest station was, but she did not understand him.",
]


def sources(n: int) -> list[str]:
    """Sentences that differ from each other, of many lengths."""
    numbers = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen")
    made = []
    for i in range(n):
        first = SENTENCES[i % len(SENTENCES)]
        made.append(first if i < len(SENTENCES) else f"{first[:-1]} and {numbers[i // len(SENTENCES) % 12]} more.")
    return made


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> tuple[int, dict]:
    """One request on a connection that stays open."""
    writer.write(post("/translate", json.dumps({"texts": [text]}).encode()))
    told = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(re.search(r"content-length: (\d+)", told, re.IGNORECASE)[1])  # type: ignore[index]
    return int(told.split()[1]), json.loads(await reader.readexactly(length))


async def load(port: int, clients: int, seconds: float, texts: list[str]) -> tuple[list[float], list, int]:
    """So many clients for so long: how long each answer took, the answers, and how many went wrong."""
    took, answers, errors, end = [], [], 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = number
        while time.perf_counter() < end:
            begun, text = time.perf_counter(), texts[at % len(texts)]
            status, answer = await ask(reader, writer, text)
            took.append(time.perf_counter() - begun)
            if status == 200:
                answers.append((text, answer["answers"][0]))
            else:
                errors += 1
            at += clients
        writer.close()

    await asyncio.gather(*(client(i) for i in range(clients)))
    return took, answers, errors


def memory_of(pid: int) -> float:
    """Resident MiB of a process."""
    told = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", told)[1]) / 1024  # type: ignore[index]


def sorts(model: str, writer: str | None, text: str, seed: int) -> list[tuple[str, bytes, bool]]:
    """Requests of every sort: where, what, and whether the client stays for the answer."""
    asked: list[tuple[str, dict | bytes, bool]] = [
        ("/translate", {"texts": text}, True),
        ("/translate", {"texts": [text, text[: len(text) // 2]], "align": True, "beam": 2, "n_best": 2}, True),
        ("/translate", {"texts": text, "temperature": 0.9, "seed": seed}, True),
        ("/translate", {"texts": text}, False),
        ("/look/tokens", {"text": text}, True),
        ("/look/attention", {"text": text}, True),
        ("/look/trace", {"text": text, "beam": 2}, True),
        ("/translate", {"texts": text, "beam": 0}, True),
        ("/generate", {"prompts": text}, True),
        (f"/nowhere/{seed}", {"texts": text}, True),
        ("/translate", b"{" + text.encode(), True),
        ("/translate", b"x" * 1_100_000, True),
    ]
    if writer is not None:
        stream = {"prompt": text, "max_tokens": 13, "seed": seed, "stream": True}
        asked += [("/v1/completions", stream, True), ("/v1/completions", stream, False)]
    named = []
    for path, body, stays in asked:
        name = writer if path.startswith("/v1") else model
        named.append((path, body if isinstance(body, bytes) else json.dumps({"model": name, **body}).encode(), stays))
    return named


async def mixed(port: int, pid: int, n: int, clients: int, model: str, writer: str | None, texts: list[str]) -> None:
    """So many requests of every sort, a connection each; a line of memory for each thousand."""
    numbers, statuses = iter(range(n)), Counter()
    print(f"{0:6,} requests: {memory_of(pid):5.0f} MiB", flush=True)

    async def client() -> None:
        for i in numbers:
            every = sorts(model, writer, texts[i % len(texts)], i)
            path, body, stays = every[i % len(every)]
            reader, out = await asyncio.open_connection("127.0.0.1", port)
            out.write(post(path, body).replace(b"Host: x", b"Host: x\r\nConnection: close", 1))
            with contextlib.suppress(ConnectionError):  # of what is too large, not all is read
                told = await reader.read() if stays else b"HTTP/1.1 gone"
                statuses[told.split(maxsplit=2)[1].decode() if told else "closed"] += 1
            out.close()
            if (i + 1) % 1_000 == 0:
                print(f"{i + 1:6,} requests: {memory_of(pid):5.0f} MiB", flush=True)

    await asyncio.gather(*(client() for _ in range(clients)))
    print("answers:", ", ".join(f"{n:,} x {status}" for status, n in sorted(statuses.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, help="measure memory over so many requests of every sort")
    parser.add_argument("--writer", help="with --requests: a language model whose streams are asked for, too")
    options = parser.parse_args()

    texts = sources(127)
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    command = [sys.executable, "-m", "regard", "serve", options.model, "--port", "0", "--device", "cpu"]
    command += [options.writer] if options.writer else []
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])  # type: ignore[union-attr]
        if options.requests is not None:
            names = [path and Path(path).name for path in (options.model, options.writer)]
            asyncio.run(mixed(port, server.pid, options.requests, options.clients, *names, texts))  # type: ignore[arg-type]
            return
        asyncio.run(load(port, 4, 2, texts))  # warm
        rates, all_answers = [], []
        for clients in (1, options.clients):
            begun, before = time.perf_counter(), memory_of(server.pid)
            took, answers, errors = asyncio.run(load(port, clients, options.seconds, texts))
            rates.append(len(answers) / (time.perf_counter() - begun))
            all_answers += answers
            took.sort()
            p50, p99 = took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000
            print(
                f"{clients:3} clients: {rates[-1]:6.1f} answers/s, p50 {p50:6.0f} ms, p99 {p99:6.0f} ms,"
                f" {errors} errors, memory {before:.0f} -> {memory_of(server.pid):.0f} MiB",
                flush=True,
            )
        print(f"together over one at a time: {rates[1] / rates[0]:.2f}")
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"server ended with {server.wait()}")

    import torch

    import regard

    torch.set_num_threads(options.threads)
    offline = dict(zip(texts, regard.load(options.model, device="cpu").translate(texts), strict=True))
    same = sum(got["text"] == offline[text].text for text, got in all_answers)
    apart = max(abs(got["score"] - offline[text].score) for text, got in all_answers)
    print(f"answers that are the offline ones: {same} of {len(all_answers)}; scores at most {apart:.1e} apart")


if __name__ == "__main__":
    main()
