"""Runs as a SLURM job array: one task per run, each of which continues where it was when SLURM took the node back."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from benchmark.config import check_folder, to_yaml
from benchmark.files import write_atomic
from benchmark.launch.signals import STOPPED
from benchmark.registry import one_line
from benchmark.suites.plan import PlannedRun
from datamodules.common.errors import ConfigError, RunError

FOLDER = "slurm"
LIST = "runs.txt"
SCRIPT = "job.sh"

JOB = Template(
    """\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --array=1-$tasks
#SBATCH --output=$folder/%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120

# Made by `$command`.
# Each task runs one configuration of $list. When SLURM stops it, for a more urgent job or at the end of its time, the
# program saves and ends with code $stopped. The task then goes back to the queue, and continues there.

trap '' TERM USR1 # they are the program's
config=$$(sed -n "$${SLURM_ARRAY_TASK_ID}p" $folder/$list)
srun $python -m benchmark fit --config "$$config"
code=$$?
if [ $$code -eq $stopped ]; then
  scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}"
fi
exit $$code
"""
)


def write(runs: Sequence[PlannedRun], name: str, results: Path) -> Path:
    """Write the script of a job array for some runs, their list, and a configuration file for each.

    Tasks read the list when they start, so every list has a folder of its own: a later array leaves it alone.

    Args:
        runs: at least one.
        name: of the job; the folder in ``<results>/slurm`` has it, and a digest of the runs and where they take place.
        results: folder of results that all nodes see under the same path.

    Returns:
        the script, ready for ``sbatch``.

    Raises:
        ConfigError: the path of the folder has a line break or another control character.
    """
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
            tasks=len(runs),
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
