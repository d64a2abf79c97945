"""`doctor`: looks at everything a job needs, and says what to do about what it lacks."""
import argparse
import json
import sys
from dataclasses import asdict

HELP = "check this machine: Python, GPU, TensorRT-RTX, ComfyUI, models, engines, disk"
EPILOG = "Exit status 1 when something that is needed is missing. Nothing is changed, and nothing is asked of the network."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="for programs: {ok, findings: [{name, state, found, do}]}")


def main(arguments: argparse.Namespace) -> int:
    from . import checks

    found = [finding for check in checks.CHECKS for finding in check()]
    lacking = [finding for finding in found if finding.state == checks.MISSING]
    if arguments.json:
        sys.stdout.write(json.dumps({"ok": not lacking, "findings": [asdict(finding) for finding in found]}, indent=1) + "\n")
        return 1 if lacking else 0
    for finding in found:
        sys.stdout.write(f"{finding.state:8}{finding.name}: {finding.found}\n")
        if finding.do:
            sys.stdout.write(f"{'':8}-> {finding.do}\n")
    notes = sum(finding.state == checks.NOTE for finding in found)
    verdict = f"{len(lacking)} missing" if lacking else "everything that is needed is there"
    sys.stdout.write(f"\n{verdict}; {notes} to look at\n")
    return 1 if lacking else 0
