"""What NVIDIA's driver says of the GPUs, without CUDA, which would occupy memory."""

import subprocess


def nvidia_smi(fields: str, visible: str | None) -> list[str]:
    """A line for each GPU, or each `visible` one. Raises as `subprocess.run` does,
    OSError without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    command += ["-i", visible] if visible else []
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [value for value in map(str.strip, listing.split("\n")) if value]
