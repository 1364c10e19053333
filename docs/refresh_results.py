"""Updates the generated parts of RESULTS.md and docs/against-paper.svg from the runs in results/.

    python docs/refresh_results.py

Generated are the output of every command, up to the next `<!-- end -->`, and the blocks between `<!-- NAME -->` and
`<!-- end -->` whose names are in BLOCKS. All other text stays.
"""

from __future__ import annotations

import functools
import io
import math
import os
import re
import shlex
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from softmask.cli.analyse import app
from softmask.experiments.analyses.grouping import Group, Runs
from softmask.experiments.analyses.reading import read_store
from softmask.experiments.analyses.table import Table, rank_correlation
from softmask.experiments.paper.claims import CLAIMS
from softmask.experiments.paper.evidence import paper_numbers, store_numbers
from softmask.experiments.paper.verdicts import judge
from softmask.experiments.report.charts import COLOURS
from softmask.experiments.report.tables import as_markdown
from softmask.experiments.runs.store import Store, StoredRun

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "RESULTS.md"
FIGURE = ROOT / "docs" / "against-paper.svg"
# By their names in the tables. Of each claim, the first of them that has data counts.
TRAININGS = {"compare precision=bf16": "compare", "short": "short"}
FEWEST = 3  # systems for a rank correlation
PRINTED = re.compile(r"```sh\n(softmask [^\n]+)\n```\n.*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"<!-- (summary|correlation|training) -->\n.*?<!-- end -->", re.DOTALL)
# The claims of the summary, and the reason for each verdict, by training.
REASONS = {
    "mtl-best": {"short": "as in the paper"},
    "spg-forgets-little": {"compare": "as in the paper", "short": "backward transfer is the paper's"},
    "spg-forward-outweighs": {
        "compare": "ONE has one seed; on that seed SPG is above it",
        "short": "ONE has ten epochs for each new network",
    },
    "spg-best-in-most": {
        "compare": "WSN is above it on C-10, as in the paper; the other sequences have not been run",
        "short": "WSN, A-GEM and TAG are above it on C-10; WSN is in the paper, too",
    },
    "isolation-forgets-nothing": {
        "compare": "by construction; only PathNet has been run with this preset",
        "short": "by construction",
    },
    "wsn-on-cifar": {"compare": "by 6 points instead of 2; WSN has one seed", "short": "only C-10 was run"},
    "pathnet-on-c10-only": {
        "compare": "PathNet is 9 points below the paper's, without dropout and with no search at this preset",
        "short": "it was run with SPG's dropout rates, which keep it from learning in ten epochs",
    },
    "penalties-forget": {"short": "as in the paper"},
    "tag-limited": {"short": "the searched contrast learns faster and forgets more than its authors'"},
    "gradient-over-fisher-mask": {"short": "by less than the spread over seeds"},
    "mask-over-penalty-gradient": {"short": "one seed of EWC-GI"},
    "gradient-over-fisher-penalty": {"short": "one seed of each"},
    "spg-best-similar": {"short": "490 steps per task favour methods that learn fast; nobody forgets"},
    "spg-transfers-both-ways": {"short": "as in the paper"},
    "spg-best-forward": {
        "compare": "only WSN and PathNet have been run beside it, one seed each",
        "short": "after ten epochs ONE is 13 to 27 points below the paper's",
    },
    "spg-blocks-less": {"short": "as in the paper"},
    "chi-helps": {"short": "within the spread on C-10; one seed on C-20"},
    "smh-helps": {"short": "within the spread over seeds"},
    "soft-over-hard": {"short": "beyond the spread over seeds"},
}


@functools.cache
def runs() -> Runs:
    return read_store(Store(ROOT / "results")).runs


def summary() -> str:
    """One row for each claim: our first comparison, the same in the paper, and the verdict with its reason."""
    by_training, paper = store_numbers(runs()), paper_numbers()
    by_name = {claim.name: claim for claim in CLAIMS}
    rows = []
    for name, reasons in REASONS.items():
        judged = ((training, judge(by_name[name], by_training[training])) for training in TRAININGS)
        training, found = next((training, each) for training, each in judged if each.findings)
        printed, shown = judge(by_name[name], paper), found.shown()[0]
        same = next((each.text for each in printed.findings if each.keys == shown.keys), None)
        beside = same or f"{printed.word}, {printed.count}"
        verdict = f"{found.word}: {reasons[TRAININGS[training]]}"
        rows.append((by_name[name].sentence, TRAININGS[training], f"{shown.text} ({found.count})", beside, verdict))
    caption = "Claims of the paper on C-10, C-20 and FE-10"
    return as_markdown(Table(caption, ("claim", "training", "ours", "paper", "verdict"), rows))


def pairs(training: str) -> dict[str, dict[str, tuple[float, float]]]:
    """(paper's, our) ACC by sequence and system."""
    ours, paper = store_numbers(runs())[training], paper_numbers()
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for key, value in ours.known.items():
        if key[0] == "ACC" and key in paper.known:
            found.setdefault(key[2], {})[key[1]] = (paper.known[key], value)
    return found


def panels() -> list[tuple[str, str, dict[str, tuple[float, float]]]]:
    """Sequence, training, and the pairs of all systems, where there are enough."""
    found = [(sequence, training, of) for training in TRAININGS for sequence, of in pairs(training).items()]
    return [each for each in found if len(each[2]) >= FEWEST]


def correlation() -> str:
    """Rank correlation and mean absolute distance, by sequence and training."""
    rows = []
    for sequence, training, systems in panels():
        theirs, ours = zip(*systems.values(), strict=True)
        distance = sum(abs(a - b) for a, b in systems.values()) / len(systems)
        found = rank_correlation(ours, theirs)
        correlated = None if found is None else f"{found:+.2f}"
        rows.append((sequence, TRAININGS[training], len(systems), correlated, f"{distance:.1f}"))
    columns = ("sequence", "training", "systems", "rank correlation", "mean distance, points")
    return as_markdown(Table("Our ACC against the paper's (best settings)", columns, rows))


def training() -> str:
    """Epochs with a loss that is not finite, stalled epochs and times, where there is something to say."""
    rows = []
    for run in sorted(runs(), key=lambda run: Group((run,)).order):
        group = Group((run,))
        epochs = run.events("epoch")
        broken = Counter(event["task"] + 1 for event in epochs if not math.isfinite(event["train_loss"] or math.nan))
        if group.training != "paper" and not broken:
            continue
        slow = [seconds for seconds in durations(run) if seconds > 100]
        minutes = [sum(event[name] for event in run.events("task")) / 60 for name in ("learn_seconds", "end_seconds")]
        told = "; ".join(f"task {task}: {count}" for task, count in sorted(broken.items())) or None
        rows.append((*group.label, len(epochs), told, len(slow) or None, sum(slow) / 60 if slow else None, *minutes))
    columns = (
        *("sequence", "method", "training", "changed", "epochs", "non-finite epochs", "stalled epochs"),
        *("stalled, min", "learning, min", "task end, min"),
    )
    note = "Stalled: an epoch of more than 100 seconds, where 8 are usual; learning time includes them."
    return as_markdown(Table("Runs of preset `paper`, and runs with non-finite losses", columns, rows, [note], 2))


def durations(run: StoredRun) -> list[float]:
    """Seconds of each epoch; events hold the time since the task began."""
    found, before = [], {}
    for event in run.events("epoch"):
        found.append(event["seconds"] - before.get(event["task"], 0.0))
        before[event["task"]] = event["seconds"]
    return found


BLOCKS = {"summary": summary, "correlation": correlation, "training": training}


def refreshed(text: str) -> str:
    text = PRINTED.sub(lambda found: f"```sh\n{found[1]}\n```\n\n{printed_by(found[1])}\n<!-- end -->", text)
    return BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n{BLOCKS[found[1]]()}\n<!-- end -->", text)


def printed_by(command: str) -> str:
    """Standard output of a `softmask analyse` command, run in this process: starting Python takes longer."""
    _, verb, *words = shlex.split(command)
    assert verb == "analyse"
    before, printed = Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with redirect_stdout(printed):
            app(words, standalone_mode=False)
    finally:
        os.chdir(before)
    return printed.getvalue().strip() + "\n"


def draw() -> None:
    """Our ACC against the paper's, one panel for each sequence; on the diagonal they are equal."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "softmask"}):
        shown = panels()
        figure = Figure(figsize=(3.8 * len(shown), 4.6), layout="constrained")
        places = figure.subplots(1, len(shown), squeeze=False)[0]
        exact = pairs("paper")
        for axes, (sequence, training, systems), (ink, _) in zip(places, shown, COLOURS, strict=False):
            points = {title: (*pair, "o", ink) for title, pair in systems.items()}
            points |= {
                f"{title}, preset paper": (*pair, "*", "#000000") for title, pair in exact.get(sequence, {}).items()
            }
            _panel(axes, points)
            theirs, ours = zip(*systems.values(), strict=True)
            found = rank_correlation(ours, theirs)
            title = f"{sequence}, {TRAININGS[training]}: {len(ours)} systems\nrank correlation {found or math.nan:+.2f}"
            axes.set_title(title, fontsize=10)
        places[0].set_ylabel("ACC of our runs, %")
        figure.savefig(FIGURE, metadata={"Date": None})


def _panel(axes: Any, shown: dict[str, tuple[float, float, str, str]]) -> None:
    """Names stand at the right edge, at least a line apart, with a thin line to their points."""
    xs, ys = ([point[i] for point in shown.values()] for i in (0, 1))
    low, high, right = min(*xs, *ys) - 3, max(*xs, *ys) + 3, max(xs) + 3
    gap, place = (high - low) / 26, low - high
    for title, (x, y, mark, ink) in sorted(shown.items(), key=lambda item: item[1][1]):
        place = max(y, place + gap)
        axes.plot(x, y, mark, color=ink, markersize=9 if mark == "*" else 5, zorder=3)
        axes.plot((x, right), (y, place), color=ink, linewidth=0.4, alpha=0.5)
        axes.annotate(
            title, (right, place), xytext=(2, 0), textcoords="offset points", va="center", fontsize=7, color=ink
        )
    axes.plot((low, high), (low, high), color="#999999", linewidth=0.8)
    axes.set(xlim=(min(xs) - 3, right), ylim=(low, max(high, place + gap)), xlabel="ACC in the paper, %")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    RESULTS.write_text(refreshed(RESULTS.read_text()))
    draw()
