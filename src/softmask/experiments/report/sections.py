"""What the report tells, in which order, and in which words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A table by its analysis, or figures by their subject."""

    kind: str
    name: str
    heading: str = ""
    about: str = ""


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


def table(name: str, heading: str, about: str = "") -> Block:
    return Block("table", name, heading, about)


def figures(name: str, heading: str = "", about: str = "") -> Block:
    return Block("figures", name, heading, about)


SECTIONS = (
    Section(
        "accuracy",
        "Accuracy",
        "How good the final model is over all tasks. Filled: these runs; hollow: the paper's number.",
        (
            figures("accuracy"),
            table("accuracy-by-sequence", "By sequence"),
            figures("so-far", "While tasks are learned", "Where a line falls, earlier tasks are forgotten."),
            table("differences", "Difference to SPG"),
            table("ablation", "SPG without its parts"),
            table("identity", "Numbers that contradict each other"),
        ),
    ),
    Section(
        "transfer",
        "Transfer",
        "Forward: what a task gains from those before it, against a network of its own (ONE). "
        "Backward: what later tasks give to earlier ones; below zero it is forgetting.",
        (
            table("forward-transfer", "Forward transfer"),
            table("backward-transfer", "Backward transfer"),
            figures("transfer", "Forward transfer, task by task"),
            table("transfer-curve", "The same in numbers, with slopes"),
        ),
    ),
    Section(
        "capacity",
        "Capacity",
        "How much of the network nothing can change any more, and how much cross-head importance adds.",
        (
            figures("capacity"),
            table("capacity", "Completely blocked parameters"),
            table("cross-head", "Cross-head importance"),
        ),
    ),
    Section(
        "mechanism",
        "Mechanism",
        "Which importance, used how; whether importance says what matters; and what the features are worth elsewhere.",
        (
            table("mechanism", "Importance by mechanism"),
            table("pruning", "Pruning by importance"),
            figures("representation", "Features for another data set"),
            table("representation", "The same in numbers"),
        ),
    ),
    Section(
        "claims",
        "Claims",
        "Every comparative sentence of the paper, judged by these runs, beside what the paper's own tables say.",
        (table("claims", "The paper's sentences"),),
    ),
    Section(
        "matrices",
        "Matrices",
        "Accuracy on each task (across) after each task (down). A column that darkens downwards is forgetting.",
        (figures("matrix"),),
    ),
    Section(
        "cost",
        "Cost",
        "Time, memory and disk, as measured where the runs were made.",
        (figures("task-end"), table("cost", "What a run costs"), table("network-size", "Learnable parameters")),
    ),
)
