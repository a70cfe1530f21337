"""Launch components for TorchX: one file per kind of job. Empty until jobs run on a cluster (see docs/index.md)."""
