"""The loop over rounds, the engines that run visits, and their checkpoints."""
