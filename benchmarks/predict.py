"""How quickly a model folder answers: from the command to the answer, and in a process that keeps the model.

An AlexNet of full width and photographs of 256 x 256 pixels as JPEG files. Times are those of the processor, so that
what else runs on the machine matters little; on an idle machine with one thread they are the time that passes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from softmask import ContinualModel

from .timing import Report, Timing, summary

COLD_ROUNDS, WARM_ROUNDS, IMAGES = 5, 20, 64


def spent() -> float:
    """Seconds of the processor in processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def cold(*arguments: Any) -> Timing:
    seconds = []
    for _ in range(COLD_ROUNDS):
        before = spent()
        subprocess.run([sys.executable, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
        seconds.append(spent() - before)
    return summary(seconds)


def warm(call: Callable[[], Any]) -> Timing:
    call()
    seconds = []
    for _ in range(WARM_ROUNDS):
        before = time.process_time()
        call()
        seconds.append(time.process_time() - before)
    return summary(seconds)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model, images = ContinualModel.create(Path(folder) / "model"), Path(folder) / "images"
        pixels = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8)
        model.learn("task", (pixels, torch.arange(20) % 2), training={"epochs": 1})
        images.mkdir()
        for number in range(IMAGES):
            shades = torch.randint(256, (8, 8, 3), dtype=torch.uint8).numpy()
            Image.fromarray(shades).resize((256, 256)).save(images / f"{number}.jpg")
        one, every = images / "0.jpg", sorted(map(str, images.iterdir()))
        content, ready = one.read_bytes(), pixels[:1]
        timings = {
            "cold: import torch, for comparison": cold("-c", "import torch"),
            "cold: softmask predict, 1 image": cold("-m", "softmask", "predict", model.path, one, "--task", "task"),
            f"cold: softmask predict, {IMAGES} images": cold(
                *("-m", "softmask", "predict", model.path, images, "--task", "task")
            ),
            "warm: model.predict, 1 encoded image": warm(lambda: model.predict(content, "task")),
            f"warm: model.predict, {IMAGES} files at once": warm(lambda: model.predict(every, "task")),
            "warm: model.predict, 1 image of the right size": warm(lambda: model.predict(ready, "task")),
        }
    rows = [(name, f"{1e3 * timing.median:.1f} ms") for name, timing in timings.items()]
    notes = ["Time of one thread of the processor. AlexNet of full width, JPEG files of 256 x 256 pixels."]
    Report("predict", ("", "time"), rows, notes).publish(timings)


if __name__ == "__main__":
    main()
