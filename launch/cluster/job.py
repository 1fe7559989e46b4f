"""`python -m launch.cluster.job ID COMMAND...`: a command as a job of a Ray cluster
that KubeRay made.

KubeRay starts every job that failed again, whatever its exit code, but none that was
stopped. So a job that another try cannot change stops itself."""

import subprocess
import sys
import time

FINAL = (2, 3, 4)  # exit codes: bad input, some checkpoints failed, the gate blocks
_SERVER = "http://127.0.0.1:8265"  # a job runs on the head, beside Ray's job server


def main(arguments: list[str]) -> int:
    """Run a command; stop the job `ID` if the exit code is final. Returns the code,
    128 + N for the signal N."""
    id, *command = arguments
    code = subprocess.run(command, check=False).returncode
    if code in FINAL:
        print(
            f"exit code {code}: another try cannot change it, so the job stops itself",
            flush=True,
        )
        subprocess.run(
            ["ray", "job", "stop", "--no-wait", "--address", _SERVER, id], check=False
        )
        time.sleep(60)  # until Ray ends this process, too
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
