"""vLLM's CPU platform with a name for its devices, without which vLLM does not run it on Ray.

It comes as vLLM's other platforms do, by an entry point (the folder beside has it), and is found where
this folder is on the path. Ray is told how many such devices there are: RAY_OVERRIDE_RESOURCES.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false


def platform() -> str:
    """vLLM's question for a platform's class."""
    return "cpu_on_ray_platform.CpuOnRay"
