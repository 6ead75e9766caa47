#!/usr/bin/env python3
"""The jobs in configs/ are right as they stand: where their models and data are not there, that is all that is wrong.

    configs_test.py --train BINARY

The last line is `N passed, N failed`.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import tomllib

from launch import environment

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs")
MISSING = 66


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    train = os.path.abspath(parser.parse_args().train)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as empty:
        for path in sorted(glob.glob(os.path.join(os.path.abspath(CONFIGS), "*.toml"))):
            with open(path, "rb") as file:
                model = tomllib.load(file)["model_name"]
            command = [train, "check", "--config", path]
            result = subprocess.run(command, cwd=empty, env=environment(), capture_output=True, text=True, timeout=60)
            if result.returncode == MISSING and model in result.stdout + result.stderr:
                passed += 1
            else:
                failed += 1
                print(f"FAIL {os.path.basename(path)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
