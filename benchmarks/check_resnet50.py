"""The wind tunnel's speed: training of ResNet-50 at 224x224, batch 1024, checked for v5e-8 at each depth and from cache.

python benchmarks/check_resnet50.py [--full]
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMITS = {"schedule": 15.0, "fast": 30.0, "full": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also at full effort (minutes)")
    depths = ["schedule", "fast", "full"] if parser.parse_args().full else ["schedule", "fast"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYSTOLIC_CACHE_DIR"] = folder
        sys.path.insert(0, str(ROOT / "examples" / "resnet"))
        import jax
        import main as example

        import systolic as sl
        from systolic.target import libtpu_version

        print(f"ResNet-50, 224x224x3, batch 1024, v5e-8; jax {jax.__version__}, libtpu {libtpu_version()}")
        for depth in depths:
            for cached in (False, True):
                estimator = example.resnet50()
                started = time.perf_counter()
                report = estimator.check(example.resnet50_train_input_fn(), "v5e-8", depth=depth, programs=["train"])
                seconds = time.perf_counter() - started
                limit = 2.0 if cached else LIMITS[depth]
                wanted = f", wanted ≤ {limit:.0f} s" if limit else ""
                result = report.results[0]
                print(
                    f"  {depth:<8} {'from cache' if cached else 'compiled  '} {seconds:6.1f} s{wanted}  {result.verdict.value}"
                )
        print(f"  systolic {sl.__version__}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
