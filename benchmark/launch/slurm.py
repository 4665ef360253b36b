"""Runs as a SLURM job array, whose tasks continue where they were when SLURM took the node back."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from benchmark.config import Run, check_folder, to_yaml
from benchmark.files import write_atomic
from benchmark.launch.signals import STOPPED
from benchmark.registry import one_line
from datamodules.common.errors import ConfigError, RunError

FOLDER = "slurm"
LIST = "runs.txt"
SCRIPT = "job.sh"

JOB = Template(
    """\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --array=$array
#SBATCH --output=$folder/%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120

# Made by `$command`.
# Each task runs $bundle of the configurations of $list, one after the other; one that fails stops no other. When SLURM
# stops it, for a more urgent job or at the end of its time, the program saves and ends with code $stopped. The task
# then goes back to the queue, and continues there.

trap '' TERM USR1 # they are the program's
last=$$((SLURM_ARRAY_TASK_ID * $bundle)) failed=0
for line in $$(seq $$((last - $bundle + 1)) $$last); do
  config=$$(sed -n "$${line}p" $folder/$list)
  [ -n "$$config" ] || break
  srun $python -m benchmark fit --config "$$config"
  code=$$?
  if [ $$code -eq $stopped ]; then
    scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}"
    exit $$code
  fi
  [ $$code -eq 0 ] || failed=$$code
done
exit $$failed
"""
)


@dataclass(frozen=True)
class Array:
    """How runs are spread over the tasks of a job array.

    Args:
        bundle: runs of a task, one after the other; what starts a task is paid once for all of them.
        at_once: tasks that go on at the same time, at most; ``None``: as many as the cluster lets.

    Raises:
        ConfigError: one of them is not positive.
    """

    bundle: int = 1
    at_once: int | None = None

    def __post_init__(self) -> None:
        for option, number in (("--slurm_bundle", self.bundle), ("--slurm_at_once", self.at_once)):
            if number is not None and number < 1:
                raise ConfigError(f"{option} is {number}; it must be at least 1")

    def tasks(self, runs: int) -> int:
        """Number of tasks of so many runs."""
        return -(-runs // self.bundle)

    def spelled(self, runs: int) -> str:
        """As ``sbatch --array`` wants it."""
        return f"1-{self.tasks(runs)}" + (f"%{self.at_once}" if self.at_once else "")


def plan(runs: Sequence[Run], options: str, array: Array) -> str:
    """What ``write`` and ``submit`` would do with these runs, in words: a line in all, and one for each task."""
    count = array.tasks(len(runs))
    limit = f", at most {array.at_once} at once" if array.at_once else ""
    lines = [f"{len(runs)} runs in {count} tasks{limit}: sbatch --array={array.spelled(len(runs))} {options}".rstrip()]
    for task in range(count):
        own = runs[task * array.bundle : (task + 1) * array.bundle]
        names = "; ".join(f"{run.cells[0]}, seed {run.config.seed}" for run in own)
        lines.append(f"  {task + 1}: {names}")
    return "\n".join(lines)


def write(runs: Sequence[Run], name: str, results: Path, array: Array | None = None) -> Path:
    """Write the script of a job array for some runs, their list, and a configuration file for each.

    Tasks read the list when they start, so every list has a folder of its own: a later array leaves it alone.

    Args:
        runs: at least one.
        name: of the job; the folder in ``<results>/slurm`` has it, and a digest of the runs and where they take place.
        results: folder of results that all nodes see under the same path.
        array: how they are spread over tasks; default: a task for each.

    Returns:
        the script, ready for ``sbatch``.

    Raises:
        ConfigError: the path of the folder has a line break or another control character.
    """
    array = array or Array()
    texts = {run.id: to_yaml(run.config) for run in runs}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:8]
    folder = (results / FOLDER / f"{name}-{digest}").absolute()
    check_folder(str(folder), "--results_dir")
    folder.mkdir(parents=True, exist_ok=True)
    configs = []
    for identifier, text in texts.items():
        configs.append(folder / f"{identifier}.yaml")
        write_atomic(configs[-1], text)
    write_atomic(folder / LIST, "".join(f"{config}\n" for config in configs))
    script = folder / SCRIPT
    write_atomic(
        script,
        JOB.substitute(
            name=f"fssl-{name}",
            array=array.spelled(len(runs)),
            bundle=array.bundle,
            folder=shlex.quote(str(folder)),
            list=LIST,
            python=shlex.quote(sys.executable),
            stopped=STOPPED,
            command=one_line(
                shlex.join(["python", "-m", "benchmark", *sys.argv[1:]])
            ),  # what breaks a comment is executed
        ),
    )
    return script


def submit(script: Path, options: str) -> str:
    """Hand a script to ``sbatch``.

    Args:
        script: as ``write`` returns it.
        options: of ``sbatch``, as one would type them: ``--partition=gpu --gpus-per-task=1 --time=4:00:00``.

    Returns:
        the number of the job array.

    Raises:
        ConfigError: there is no ``sbatch`` here, or a quotation mark in the options has no partner.
        RunError: ``sbatch`` refuses; says what it says.
    """
    if shutil.which("sbatch") is None:
        by_hand = f"sbatch {options} {script}"
        raise ConfigError(f"there is no sbatch on this machine; on the cluster, submit with `{by_hand}`")
    try:
        command = ["sbatch", "--parsable", *shlex.split(options), str(script)]
    except ValueError as error:
        raise ConfigError(f"--slurm {options!r}: {error}") from None
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise RunError(f"`{shlex.join(command)}` refuses: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]
