"""How long a sequence takes to its first batch and how much memory it holds: `python -m benchmarks.loading --data DIR`.

Each measurement is a process of its own, since memory that was once held is seldom given back. With `--generated`, sets
with the numbers of TinyImageNet, CelebA's persons and ImageNet at 32x32 pixels (1.28 million images of noise, 4 GB,
and as much again for the cache) are written to a temporary folder, read, and removed. Bars: first batch within 2 s once
decoded, C-10 below 1.5 GB resident, I-100 below 6 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .timing import machine

RESULTS = Path(__file__).parent / "results" / "loading.json"
FIRST_BATCH_BAR = 2.0
MEMORY_BARS = {"C-10": 1.5, "C-20": 1.5, "I-100": 6.0}
# As in the real set: ten files, 1,281,167 images for training in classes of 732 to 1300, 50 a class for the test.
CLASSES, TRAINING, PER_CLASS_TEST = 1000, 1_281_167, 50
FREE_BYTES_NEEDED = 9 * 10**9
GIB = 2**30


def measure(name: str, root: Path | None, *, whole_epoch: bool) -> dict[str, Any]:
    """In this very process: from the call that loads to the first batch, and the memory then."""
    from softmask.experiments.sequences import load_sequence
    from softmask.learning.seeds import Seeds

    warnings.simplefilter("ignore")
    start, processor = time.perf_counter(), time.process_time()
    sequence = load_sequence(name, root, Seeds())
    next(iter(sequence.tasks[0].train))
    found = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - processor}
    if whole_epoch:
        start = time.perf_counter()
        pictures = sum(len(y) for task in sequence.tasks for _, y in task.train)
        found["epoch_seconds"] = time.perf_counter() - start
        found["pictures"] = pictures
    found["resident_gib"] = _resident() / GIB
    found["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return found


def _resident() -> int:
    """Mapped pages of the cache that have been looked at count, though the system may take them back at any time."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_own_process(name: str, root: Path | None, cache: Path, *, whole_epoch: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.loading", "--measure", name]
    command += ["--data", str(root)] if root else []
    command += ["--whole-epoch"] if whole_epoch else []
    environment = {**os.environ, "SOFTMASK_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def cold_and_warm(name: str, root: Path | None, cache: Path) -> dict[str, Any]:
    """The first start decodes, the next ones map; the best of three, because others use the machine too."""
    cold = in_own_process(name, root, cache)
    warm = min((in_own_process(name, root, cache) for _ in range(3)), key=lambda found: found["seconds"])
    epoch = in_own_process(name, root, cache, whole_epoch=True)
    found = {"cold": cold, "warm": warm, "after_an_epoch_of_all_tasks": epoch, "load_of_machine": os.getloadavg()[0]}
    bar = MEMORY_BARS.get(name)
    memory = f" (bar {bar})" if bar else ""
    print(
        f"{name:6} first batch: cold {cold['seconds']:6.2f} s, warm {warm['seconds']:.2f} s of which processor "
        f"{warm['processor_seconds']:.2f} s (bar {FIRST_BATCH_BAR}); "
        f"resident {warm['resident_gib']:.2f} GiB, after an epoch of all tasks {epoch['peak_gib']:.2f} GiB{memory}; "
        f"peak while decoding {cold['peak_gib']:.2f} GiB",
        flush=True,
    )
    return found


def write_imagenet32(folder: Path) -> None:
    """Files of the official layout (.npz), one at a time."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(1270, 1301, CLASSES)
    sizes[:5] = 732
    sizes[-100:] -= (sizes.sum() - TRAINING) // 100
    labels = draw.permutation(np.repeat(np.arange(1, CLASSES + 1), sizes))
    for number, part in enumerate(np.array_split(labels, 10), 1):
        _write_noise(folder / f"train_data_batch_{number}.npz", part, draw)
    _write_noise(folder / "val_data.npz", np.repeat(np.arange(1, CLASSES + 1), PER_CLASS_TEST), draw)


def _write_noise(path: Path, labels: np.ndarray, draw: np.random.Generator) -> None:
    data = np.frombuffer(draw.bytes(len(labels) * 3072), np.uint8).reshape(len(labels), 3072)
    np.savez(path, data=data, labels=labels, mean=np.zeros(3072))


def simulate_imagenet() -> dict[str, Any]:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < FREE_BYTES_NEEDED:
        sys.exit(f"{free:,} bytes free in {tempfile.gettempdir()}, {FREE_BYTES_NEEDED:,} are needed")
    with tempfile.TemporaryDirectory(prefix="softmask-imagenet-") as folder:
        start = time.perf_counter()
        (Path(folder) / "files").mkdir()
        write_imagenet32(Path(folder) / "files")
        print(f"I-100: 1.28 million images of noise written in {time.perf_counter() - start:.0f} s", flush=True)
        return cold_and_warm("I-100", Path(folder) / "files", Path(folder) / "cache")


def simulate_small_sets() -> dict[str, Any]:
    """TinyImageNet and CelebA in the numbers of the paper's tasks, from the tests' generators."""
    from tests.experiments.sequences.generated import write_fceleba, write_tinyimagenet

    found = {}
    with tempfile.TemporaryDirectory(prefix="softmask-generated-") as folder:
        root, cache = Path(folder) / "files", Path(folder) / "cache"
        write_tinyimagenet(root, classes=200, train=500, test=50, packed=True)
        write_fceleba(root, {str(person): (440, 80) for person in range(20)}, side=178)
        for name in ("T-10", "T-20", "FC-10", "FC-20"):
            found[name] = cold_and_warm(name, root, cache)
    return found


def available(root: Path | None) -> list[str]:
    from softmask.errors import DataError
    from softmask.experiments.sequences import SEQUENCES
    from softmask.experiments.sequences.checking import find

    names = []
    for name in SEQUENCES.names():
        try:
            find(name, root)
        except DataError:
            continue
        names.append(name)
    return names


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sequences", nargs="*", help="only these; all that are there if none")
    options.add_argument("--data", type=Path, default=os.environ.get("SOFTMASK_DATA"))
    options.add_argument("--generated", action="store_true", help="also T, FC and I-100 from generated files")
    options.add_argument("--measure", help=argparse.SUPPRESS)
    options.add_argument("--whole-epoch", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.data, whole_epoch=chosen.whole_epoch)))
        return
    known = json.loads(RESULTS.read_text())["sequences"] if RESULTS.exists() else {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="softmask-cache-") as cache:
        for name in chosen.sequences or available(chosen.data):
            found[name] = cold_and_warm(name, chosen.data, Path(cache))
    if chosen.generated:
        found |= simulate_small_sets()
        found["I-100"] = simulate_imagenet()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "sequences": {**known, **found}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
