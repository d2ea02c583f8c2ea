"""What a run says of where it came from."""

from trainer.run import read_environment


def test_variables_of_network_and_device_are_kept_and_no_other() -> None:
    environ = {
        "NCCL_IB_DISABLE": "1", "TORCH_NCCL_BLOCKING_WAIT": "0", "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "secret", "MY_NCCL_KEY": "secret",
        "FIRST_NAME": "no prefix of FI_", "HOME": "/root",
    }  # fmt: skip
    kept = read_environment(environ)
    assert list(kept) == sorted(list(environ)[:5]) and kept["NCCL_IB_DISABLE"] == "1"
