import torch
import torchvision

from stratlab_spec.models.model_specs import default_image_size, registered_name
from stratlab_spec.settings.config import Config
from tests.trainer.models.longer.test_image_networks import MOBILENET, build_published
from trainer.models import build_model
from trainer.tasks.normalization import find_preprocessing


def test_finetuned_is_the_network_with_its_published_weights_and_a_fresh_head(tmp_path, monkeypatch):
    """From a file as torchvision publishes it: 1000 classes there, those of the data here; grey is repeated."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(4)
    theirs = torchvision.models.mobilenet_v3_large().eval()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(theirs.state_dict(), tmp_path / "hub" / "checkpoints" / MOBILENET)
    config = Config.from_env({"TRAINER_RUN": "r", "TRAINER_MODEL": "mobilenet_finetuned"})
    assert config.init == "pretrained" and find_preprocessing(config).mean == (0.485, 0.456, 0.406)
    assert (registered_name(config), default_image_size(config)) == ("mobilenet", 224)
    ours = build_model(config, image_size=32, channels=1, num_labels=10).eval()
    grey = torch.rand(2, 1, 32, 32)
    logits = ours(grey)
    assert torch.equal(ours.inner.features(grey.repeat(1, 3, 1, 1)), theirs.features(grey.repeat(1, 3, 1, 1)))
    assert logits.shape == (2, 10) and all(p.requires_grad for p in ours.parameters())
    named = build_published("mobilenet", size=32, channels=1)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), named.parameters(), strict=True))
