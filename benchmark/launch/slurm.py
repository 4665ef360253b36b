"""Runs as a SLURM job array. A task that loses its node continues from its checkpoint when it is requeued."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from string import Template

from benchmark.config import Run
from benchmark.launch.signals import STOPPED
from datamodules.common.errors import ConfigError, RunError
from datamodules.common.files import write_changed
from datamodules.common.yaml import dump_yaml

FOLDER = "slurm"
LIST = "runs.txt"
SCRIPT = "job.sh"

JOB = Template(
    """\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --array=$array
#SBATCH --output=$log
#SBATCH --open-mode=append
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --signal=USR1@120

# Each task runs $bundle of the configurations of $list, one after the other; one that fails stops no other. When SLURM
# stops it, for a more urgent job or at the end of its time, the program saves and ends with code $stopped. The task
# then goes back to the queue, and continues there.

trap '' TERM USR1 # they are the program's
last=$$((SLURM_ARRAY_TASK_ID * $bundle)) failed=0
for line in $$(seq $$((last - $bundle + 1)) $$last); do
  config=$$(sed -n "$${line}p" $folder/$list)
  [ -n "$$config" ] || break
  srun $${SLURM_CPUS_PER_TASK:+--cpus-per-task=$$SLURM_CPUS_PER_TASK} $python -m benchmark fit --config "$$config"
  code=$$?
  case $$code in $stopped | 138 | 143) # the last two: USR1 or TERM came while the program was starting
    scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}"
    exit $$code
  esac
  [ $$code -eq 0 ] || failed=$$code
done
exit $$failed
"""
)


def array_of(runs: int, bundle: int) -> str:
    """The argument of ``sbatch --array`` for so many runs, ``bundle`` of them in a task.

    Raises:
        ConfigError: ``bundle`` is not positive.
    """
    if bundle < 1:
        raise ConfigError(f"--slurm_bundle is {bundle}; it must be at least 1")
    return f"1-{-(-runs // bundle)}"


def write(runs: Sequence[Run], name: str, results: Path, bundle: int = 1) -> Path:
    """Write a job array's script, the list of its runs, and a configuration file for each run.

    Tasks read the list when they start, so each list has a folder of its own, which later arrays leave alone.

    Args:
        runs: at least one.
        name: of the job. The folder, in ``<results>/slurm``, is named after it and a digest of the configurations.
        results: folder of results, under the same path on all nodes.
        bundle: runs per task, one after another, so that a task's start-up is paid once for all of them.

    Returns:
        the script, ready for ``sbatch``.
    """
    texts = {run.id: dump_yaml(asdict(_anywhere(run).config)) for run in runs}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:8]
    folder = (results / FOLDER / f"{name}-{digest}").absolute()
    files = {folder / f"{identifier}.yaml": text for identifier, text in texts.items()}
    files[folder / LIST] = "".join(f"{config}\n" for config in files)
    files[folder / SCRIPT] = JOB.substitute(
        name=f"fssl-{name}",
        array=array_of(len(runs), bundle),
        bundle=bundle,
        folder=shlex.quote(str(folder)),
        log=shlex.quote(f"{folder}/%A_%a.log"),
        list=LIST,
        python=shlex.quote(sys.executable),
        stopped=STOPPED,
    )
    write_changed(files)
    return folder / SCRIPT


def _anywhere(run: Run) -> Run:
    """The run with folders that do not depend on the task's working folder (``sbatch --chdir``)."""
    runtime = run.config.runtime
    data, results = (str(Path(path).absolute()) for path in (runtime.data_dir, runtime.results_dir))
    return run.replace(runtime=replace(runtime, data_dir=data, results_dir=results))


def submit(script: Path, options: str, trial: bool = False) -> str:
    """Submit a script with ``sbatch``.

    Args:
        script: as ``write`` returns it.
        options: of ``sbatch``, as one would type them: ``--partition=gpu --gpus-per-task=1 --time=4:00:00``.
        trial: submit nothing; only ask SLURM whether it would take the array.

    Returns:
        the id of the job array.

    Raises:
        ConfigError: there is no ``sbatch`` on this machine, or the options have an unbalanced quotation mark.
        RunError: ``sbatch`` fails; the message has its output.
    """
    if shutil.which("sbatch") is None:
        by_hand = " ".join(filter(None, ["sbatch", options, shlex.quote(str(script))]))
        remedy = "give this command on the cluster" if trial else f"on the cluster, submit with `{by_hand}`"
        raise ConfigError(f"there is no sbatch on this machine; {remedy}")
    try:
        asked = ["--test-only"] if trial else []
        command = ["sbatch", "--parsable", *asked, *shlex.split(options), str(script)]
    except ValueError as error:
        raise ConfigError(f"--slurm {options!r}: {error}") from None
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise RunError(f"`{shlex.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]
