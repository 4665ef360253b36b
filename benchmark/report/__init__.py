"""Records of runs, and what people read: tables, plots, status."""
