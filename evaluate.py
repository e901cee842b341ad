"""Evaluate: ``python evaluate.py --checkpoint checkpoints/quickstart``."""

import sys

from bisrqa import cli

if __name__ == "__main__":
    sys.exit(cli.evaluate())
