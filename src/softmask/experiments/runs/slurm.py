"""A grid as a Slurm job array: a script, and a file with the runs of each task of the array (a shard).

The tasks share one store, so a shard may be run again at any time: only missing runs are run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from softmask.errors import ConfigError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.grid import Grid
from softmask.storage.reading import MEBIBYTE, parse_json, read_plain
from softmask.storage.state_file import write_json, write_text

FORMAT = 1
SCRIPT = "run.sh"
LARGEST_SHARD = 256 * MEBIBYTE
TEMPLATE = """\
#!/bin/sh
#SBATCH --job-name=softmask
#SBATCH --array=1-{shards}
#SBATCH --cpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --output={logs}
{gpu}
# Submit it with `sbatch {script}`; submit it again after a time limit: runs resume.
set -eu
cd {folder}
exec {command} --shard {prefix}"$(printf %04d "$SLURM_ARRAY_TASK_ID").json" --jobs {jobs}
"""


def write_job_array(
    folder: Path, configs: Sequence[RunConfig], shards: int, command: Sequence[str], *, gpu: bool
) -> Path:
    """Writes the script and the shards; `command` runs a shard, given `--shard FILE` and `--jobs N` at its end.

    Runs are distributed round-robin, so that every shard gets some of each sequence. Shards of an earlier call are
    removed.
    """
    if not configs:
        raise ConfigError("nothing is left to run: no job array is needed")
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("shard-*.json"):
        old.unlink()
    shards = min(shards, len(configs))
    for index in range(shards):
        part = [config.to_dict() for config in configs[index::shards]]
        write_json(folder / f"shard-{index + 1:04d}.json", {"format": FORMAT, "configs": part})
    script = folder / SCRIPT
    text = TEMPLATE.format(
        shards=shards,
        logs=shlex.quote(str(folder / "log-%A_%a.txt")),
        gpu="#SBATCH --gres=gpu:1" if gpu else "# With GPUs: --gres=gpu:1 here, and `softmask grid --device cuda`.",
        script=shlex.quote(str(script)),
        folder=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
        prefix=shlex.quote(str(folder / "shard-")),
        jobs="1" if gpu else '"${SLURM_CPUS_PER_TASK:-1}"',
    )
    write_text(script, text)
    return script


def read_shard(file: Path) -> Grid:
    try:
        content = parse_json(read_plain(file, LARGEST_SHARD))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("configs"), list):
        raise ConfigError(f"{file} is no shard of a job array: `softmask grid --slurm` writes them")
    return Grid(tuple(RunConfig.from_dict(each) for each in content["configs"]))
