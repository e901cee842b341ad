"""Train: ``python train.py --config configs/quickstart.yaml``, or under ``accelerate launch``."""

import sys

from bisrqa import cli

if __name__ == "__main__":
    sys.exit(cli.train())
