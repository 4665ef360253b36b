"""Where and how runs are started: processes, placement, a pool of workers, SLURM."""
