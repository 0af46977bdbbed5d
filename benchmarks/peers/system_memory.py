"""Resident bytes of this process, as the kernel counts them: the twin of
benchmarks/ranks/system_memory.h."""


def _bytes_of(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc/self/status")


def resident() -> int:
    return _bytes_of("VmRSS")


def most_resident() -> int:
    return _bytes_of("VmHWM")


def forget_most():
    """The peak that the kernel knows of begins anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
