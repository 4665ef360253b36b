"""ViT-Tiny, from scratch or from timm's ImageNet weights."""

from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

from datamodules.common.errors import ConfigError, DataError
from methods.models.backbone import Backbone, LinearHead

CHECKPOINT = "vit_tiny_patch16_224"


class ViTTiny(Backbone):
    """ViT-Tiny: patches of 16 pixels, width 192, depth 12, 3 heads, MLP 768, features of the class token (CBAFed).

    5 526 346 parameters for 10 classes and images of side 224.

    Args:
        num_classes: number of logits.
        image_size: side of the square input images, a multiple of 16.
        head_dropout: dropout probability in the head; 0: none.
        pretrained: start from timm's ``vit_tiny_patch16_224``, except for the head; needs the package timm (extra
            ``vit``), and for the first use a network connection or a copy of timm's cache.

    Raises:
        ConfigError: a side that is not a multiple of 16, or not 224 with ``pretrained``; timm is not installed; or
            ``head_dropout`` outside [0, 1).
        DataError: the weights are not in timm's cache and cannot be downloaded.
    """

    feature_dim = 192

    def __init__(
        self, num_classes: int, image_size: int = 224, head_dropout: float = 0.0, pretrained: bool = False
    ) -> None:
        super().__init__()
        if image_size < 16 or image_size % 16 or (pretrained and image_size != 224):
            wanted = "of 224 for the ImageNet weights" if pretrained else "that are multiples of 16"
            raise ConfigError(f"ViT-Tiny: images of side {image_size}, but it takes sides {wanted}; set data.side=224")
        if pretrained:
            self.backbone = _pretrained()
        else:
            self.backbone = VisionTransformer(image_size, 16, 12, 3, self.feature_dim, 768, num_classes=1)
            self.backbone.heads = nn.Identity()
        self.head = LinearHead(self.feature_dim, num_classes, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, 3, side, side] to features [B, 192]."""
        return self.backbone(x)


def _pretrained() -> nn.Module:
    """timm's network, which returns features."""
    try:
        import timm
    except ImportError:
        raise ConfigError(
            "model vit_tiny: its ImageNet weights come from the package timm, which is not installed; run "
            "pip install 'fssl-bench[vit]', or take model vit_tiny_scratch (fresh weights)"
        ) from None
    try:
        return timm.create_model(CHECKPOINT, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"model vit_tiny: the weights of timm's {CHECKPOINT} are not in its cache and cannot be downloaded "
            f"({type(error).__name__}: {error}); copy the cache from another machine, or take vit_tiny_scratch"
        ) from error
