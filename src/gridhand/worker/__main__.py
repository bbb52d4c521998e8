"""The command of a worker: `python -m gridhand.worker FOLDER SHAPE`, or `--once FILE`.

It can also be run by its path, for a client that has imported this package from a place where a
new interpreter would not look for it.
"""

import sys

if not __package__:
    import os.path

    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from gridhand.worker.worker import main

if __name__ == "__main__":
    main(sys.argv[1:])
