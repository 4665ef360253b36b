"""The loop over rounds, the engine that runs visits, and checkpoints."""
