"""What all tests share: child processes whose idle threads leave the processor to others.

libgomp's threads spin for milliseconds by default, which is fastest where an engine has its cores to itself and starves
everybody where several engines share two (bench/LAB.md).
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
