"""What people read of runs: tables, plots, status."""
