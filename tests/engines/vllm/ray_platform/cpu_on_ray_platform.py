"""The platform of `cpu_on_ray.py`, which vLLM imports when it has chosen it."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from vllm.platforms.cpu import CpuPlatform


class CpuOnRay(CpuPlatform):
    # Ray numbers devices of the kinds that it knows, and this is one.
    ray_device_key = "GPU"
