"""Protection of old tasks while new ones are learned: every way in the same loop, old accuracy against new accuracy.

    make bench NAME=protection                              # all cells that are not in results/protection.json yet
    python -m benchmarks.protection SETTING SEED WAY...     # these only, e.g. cnn 1 plain lr=0.1 answers=1+subspace=10

The loop is one as practitioners write it: AdamW, weight decay, warm-up and cosine, gradient accumulation, clipping,
bfloat16 autocast (where the processor has it), an average of the weights, augmentation. No old data but for `replay`.
Running statistics stand still after the first task in every way but `plain`. About 30 s a cell on one core.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softmask import freeze_running_statistics

from .protection_report import publish
from .protection_settings import SETTINGS, Part, Setting, Task, accuracy, loss_of, mean_loss
from .protection_ways import Way, parse
from .timing import RESULTS

FILE = RESULTS / "protection.json"
# Without the instructions bfloat16 takes six times as long as float32 does.
HALF = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
ACCUMULATE, DECAY, WARM_UP, AVERAGE, LARGEST_NORM = 2, 0.05, 20, 0.99, 1.0

GRID = ("plain", "lr=0.3", "lr=0.1", "lr=0.03", "l2sp=20", "l2sp=80", "freeze=lower", "freeze=all")
GRID += ("lora=merged:8", "lora=task:16", "replay=0.05", "spg=head", "spg=body")
GRID += ("ewc=100", "ewc=1000", "ewc=10000", "features=1", "features=3", "answers=1", "answers=3")
GRID += ("subspace=0.1", "subspace=0.5", "answers=1+subspace=0.1", "answers=1+subspace=0.5")
GRID += ("protect=0.25", "protect=0.5", "protect=0.75")
VERSION = 1  # of networks, data and loop: with another, first tasks are learned anew
SEEDS = {"cnn": (1, 2, 3), "resnet": (1, 2), "vit": (1, 2), "gpt": (1, 2)}


def learn(
    setting: Setting, net: nn.Module, head: nn.Module, part: Part, epochs: int, seed: int, ways: Sequence[Way]
) -> None:
    """The loop. The backbone and the head end as the average of their weights over the last steps."""
    draw, factor = torch.Generator().manual_seed(seed), math.prod(way.factor for way in ways)
    backbone = [p for p in net.parameters() if p.requires_grad]
    rest = [*head.parameters(), *(p for way in ways for p in way.others())]
    groups = [{"params": backbone, "lr": setting.lr * factor}, {"params": rest, "lr": setting.lr}]
    if not (groups := [group for group in groups if group["params"]]):
        return  # a frozen language model
    optimizer = torch.optim.AdamW(groups, weight_decay=DECAY)
    steps = epochs * (len(part.y) // (setting.batch * ACCUMULATE))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    moving, average = [*backbone, *rest], None
    with contextlib.ExitStack() as stack:
        for way in ways if backbone else ():
            stack.enter_context(way.attach(optimizer, head))
        for _ in range(epochs):
            rows = torch.randperm(len(part.y), generator=draw).split(setting.batch)
            for start in range(0, len(part.y) // setting.batch - ACCUMULATE + 1, ACCUMULATE):
                optimizer.zero_grad()
                for r in rows[start : start + ACCUMULATE]:
                    x = setting.augment(part.x[r], draw)
                    with torch.autocast("cpu", torch.bfloat16, enabled=HALF):
                        features = net(x)
                        loss = loss_of(head(features), part.y[r])
                        for way in ways:
                            loss = loss + way.term(x, features, draw)
                    (loss / ACCUMULATE).backward()
                nn.utils.clip_grad_norm_(moving, LARGEST_NORM)
                optimizer.step()
                schedule.step()
                for way in ways:
                    way.after_step(optimizer.param_groups[0]["lr"])
                average = _averaged(average, moving)
    with torch.no_grad():
        for parameter, value in zip(moving, average or (), strict=True):
            parameter.copy_(value)


def _rate(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


@torch.no_grad()
def _averaged(average: list[torch.Tensor] | None, now: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if average is None:
        return [p.detach().clone() for p in now]
    torch._foreach_lerp_(average, list(now), 1 - AVERAGE)
    return average


def beginning(name: str, seed: int, tasks: list[Task]) -> tuple[nn.Module, nn.Module]:
    """The first task, learned; kept in the folder for temporary files."""
    setting = SETTINGS[name]
    kept = Path(tempfile.gettempdir()) / f"softmask-protection-{VERSION}-{name}-{seed}.pt"
    torch.manual_seed(seed)
    net, head = setting.make(), setting.head(tasks[0].classes)
    if kept.exists():
        states = torch.load(kept, weights_only=True)
        net.load_state_dict(states[0])
        head.load_state_dict(states[1])
    else:
        learn(setting, net, head, tasks[0].train, setting.epochs[0], seed, ())
        torch.save([net.state_dict(), head.state_dict()], kept)
    return net, head


def cell(name: str, seed: int, chosen: str, tasks: list[Task], start: tuple[nn.Module, nn.Module]) -> dict[str, Any]:
    """One way in one setting: accuracy of each task when it was learned and at the end."""
    setting, began = SETTINGS[name], time.process_time()
    net, heads = copy.deepcopy(start[0]), [copy.deepcopy(start[1])]
    if chosen != "plain":
        freeze_running_statistics(net)
    ways = parse(chosen, setting, net)
    for way in ways:
        way.end(tasks[0].train, heads[0], [])
    learned, before = [accuracy(net, heads[0], tasks[0].test)], mean_loss(net, heads[0], tasks[0].test)
    for number, task in enumerate(tasks[1:], start=1):
        torch.manual_seed(1000 * seed + number)
        head = setting.head(task.classes)
        for way in ways:
            way.begin(heads)
        learn(setting, net, head, task.train, setting.epochs[1], 77 * seed + number, ways)
        learned.append(accuracy(net, head, task.test))
        for way in ways:
            way.end(task.train, head, heads)
        heads.append(head)
    end = {"test": [], "validation": []}
    for number, (head, task) in enumerate(zip(heads, tasks, strict=True)):
        with contextlib.ExitStack() as stack:
            for way in ways:
                stack.enter_context(way.at(number))
            end["test"].append(round(accuracy(net, head, task.test), 2))
            end["validation"].append(round(accuracy(net, head, task.validation), 2))
    first = {"first_loss": [round(before, 4), round(mean_loss(net, heads[0], tasks[0].test), 4)]}
    took = {"seconds": round(time.process_time() - began, 1), "bfloat16": HALF}
    return {
        "setting": name,
        "way": chosen,
        "seed": seed,
        "learned": [round(v, 2) for v in learned],
        **end,
        **first,
        **took,
    }


def run(name: str, seed: int, ways: Sequence[str], file: Path = FILE) -> None:
    """The cells that are not there yet. Each is written when it is done."""
    missing = [way for way in ways if not _known(name, seed, way, file)]
    if not missing:
        return
    try:
        tasks = SETTINGS[name].tasks(seed)
    except FileNotFoundError as error:
        print(f"{name}: skipped; {error}")
        return
    start = beginning(name, seed, tasks)
    for way in missing:
        done = cell(name, seed, way, tasks, start)
        cells = [*read_cells(file), done]
        file.write_text("[\n" + ",\n".join(json.dumps(each) for each in cells) + "\n]\n")
        print(json.dumps(done), flush=True)


def read_cells(file: Path = FILE) -> list[dict[str, Any]]:
    return json.loads(file.read_text()) if file.exists() else []


def _known(name: str, seed: int, way: str, file: Path) -> bool:
    return any((each["setting"], each["seed"], each["way"]) == (name, seed, way) for each in read_cells(file))


def main(arguments: Sequence[str] = ()) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # SoftMask's about running statistics: one of the settings shows what they do
    if arguments:
        name, seed, *ways = arguments
        run(name, int(seed), ways)
        return
    for name, seeds in SEEDS.items():
        for seed in seeds:
            run(name, seed, GRID)
    publish(read_cells())


if __name__ == "__main__":
    main(sys.argv[1:])
