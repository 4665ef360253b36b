"""Data sets, their partitions over clients, and batched augmentation."""
