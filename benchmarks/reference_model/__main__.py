"""Makes a test model that thinks: `python -m benchmarks.reference_model --out DIR
[--variant base|loops]`."""

from tests.taught.__main__ import main

if __name__ == "__main__":
    main()
