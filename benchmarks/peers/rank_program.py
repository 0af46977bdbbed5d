"""What the peers that train a GPT have in common: its sizes, options, rows, and how steps are timed."""
import argparse
import time

import torch

HEADS, POSITIONS, VOCABULARY = 4, 64, 512


def add_numbers(parser: argparse.ArgumentParser, **defaults: int):
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)


def rows(batch: int, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and what is to follow each."""
    place = torch.arange(batch * POSITIONS) * 7 + shift
    tokens = place.remainder(VOCABULARY).view(batch, POSITIONS)
    return tokens, (place + 3).remainder(VOCABULARY)


def timed_steps(steps: int, step, barrier=lambda: None) -> list[float]:
    """Milliseconds of each step, which begins behind the barrier."""
    milliseconds = []
    for _ in range(steps):
        barrier()
        start = time.perf_counter()
        step()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    return milliseconds
