"""Files of weights that torchvision publishes for the networks of the registry, as it calls them."""

from __future__ import annotations

from collections.abc import Mapping

SERVER = "https://download.pytorch.org/models"
PUBLISHED_FILES: Mapping[str, str] = {
    "mobilenet": "mobilenet_v3_large-5c1a4163.pth",
    "efficientnet": "efficientnet_b0_rwightman-7f5810bc.pth",
    "vgg": "vgg16-397923af.pth",
    "resnet": "resnet50-11ad3fa6.pth",
}
"""Network -> file: its best weights for ImageNet, which `<network>_finetuned` starts from."""
