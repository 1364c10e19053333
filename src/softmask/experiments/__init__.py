"""The benchmark: task sequences, runs, analyses, reports and the paper's published results.

`run`, `grid`, `search` and `load_runs` are its public functions. They are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softmask.experiments.api import RunResult, SearchResult, grid, load_runs, run, search

__all__ = ["RunResult", "SearchResult", "grid", "load_runs", "run", "search"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from softmask.experiments import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
