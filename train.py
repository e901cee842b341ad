"""Train: ``python train.py --config configs/quickstart.yaml``, or under ``accelerate launch``."""

from bisrqa import cli

if __name__ == "__main__":
    raise SystemExit(cli.train())
