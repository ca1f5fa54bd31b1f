"""The real engine beside a stub of torchvision's compiled half, for machines whose PyTorch fits none of PyPI's.

The Python half is torchvision's own: its transforms are what processors of models use. The operators of detection,
which it looks up when it is imported, are names here that compute nothing. Invariant: none of them is ever called.
"""

from __future__ import annotations

import torch

from services.worker.engine.__main__ import make_engine
from services.worker.engine.loop import serve

OPERATORS = ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
BACKWARD = ("_roi_align_backward", "_ps_roi_align_backward", "_roi_pool_backward", "_ps_roi_pool_backward")
LIBRARY = torch.library.Library("torchvision", "DEF")

if __name__ == "__main__":
    for name in (*OPERATORS, *BACKWARD, "_deform_conv2d_backward"):
        LIBRARY.define(f"{name}() -> ()")
    serve(make_engine)
