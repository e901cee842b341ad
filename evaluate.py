"""Evaluate: ``python evaluate.py --checkpoint checkpoints/quickstart``."""

from bisrqa import cli

if __name__ == "__main__":
    raise SystemExit(cli.evaluate())
