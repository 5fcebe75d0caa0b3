"""``python -m dsmla_bench`` is the ``dsmla-bench`` command."""

from dsmla_bench.cli import main

if __name__ == "__main__":
    main()
