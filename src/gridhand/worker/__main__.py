"""The command of a worker: `python -m gridhand.worker FOLDER SHAPE`, or `--once FILE`.

It is also run by its path, for a client that has found this package where a new interpreter would
not look for it.
"""

import sys

if not __package__:
    import os.path

    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from gridhand.worker.running import main

if __name__ == "__main__":
    main(sys.argv[1:])
