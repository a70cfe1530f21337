"""Makes what the virtual machine starts from: a Debian kernel, a few of its modules, pyverbs for the guest.

Nothing of it is installed: the packages are downloaded, and the parts that are needed unpacked into a cache folder.
What is installed (by apt, as root) are QEMU and the user side of RDMA, because the guest runs on the file system of
this machine. No depmod, cpio or mkinitramfs: the modules' own `depends=` say in which order they go in, and an archive
for the kernel is a header per file.

The kernel is unpacked here, and started by its PVH entry: under emulation its own decompressor takes two seconds.
"""

import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = ("qemu-system-x86", "libibverbs1", "librdmacm1", "ibverbs-providers", "perftest", "iproute2")
UNPACKED = ("python3-pyverbs", "libpython3.11", "busybox-static")
MODULES = (
    "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32_generic", "crc32_pclmul",
    "veth", "sch_netem", "ib_uverbs", "rdma_rxe",
)  # fmt: skip
# A package of a kernel has 400 MB; these are the folders that the modules above and their dependencies lie in.
KERNEL_PARTS = ("boot/vmlinuz*", *(f"lib/modules/*/kernel/{files}" for files in (
    "drivers/infiniband/*", "drivers/virtio/*", "drivers/char/*", "drivers/net/veth*", "net/*", "fs/9p/*",
    "fs/netfs/*", "fs/fscache/*", "fs/overlayfs/*", "fs/configfs/*", "crypto/*", "arch/x86/crypto/*", "lib/*",
)))  # fmt: skip
APT_TIMEOUT_S = 600


class NoMachineError(Exception):
    """The virtual machine cannot be had here; the message says why."""


@dataclass(frozen=True)
class Image:
    """What a machine starts from."""

    folder: Path  # where it lies

    @property
    def kernel(self) -> Path:
        """The unpacked kernel."""
        return self.folder / "vmlinux"

    @property
    def start_files(self) -> Path:
        """The archive with the first process, busybox and the modules."""
        return self.folder / "start.cpio"

    @property
    def pyverbs(self) -> Path:
        """A folder for PYTHONPATH."""
        return self.folder / "files/usr/lib/python3/dist-packages"

    @property
    def libraries(self) -> Path:
        """A folder for LD_LIBRARY_PATH: libpython, where the interpreter has none of its own."""
        return self.folder / "files/usr/lib/x86_64-linux-gnu"


def ensure_image() -> Image:
    """The image, made when there is none yet or the way it is made has changed. Raises NoMachineError when it cannot be
    made here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NoMachineError(f"the machine is made from Debian packages for x86_64, and this is {platform.machine()}")
    if sys.version_info[:2] != (3, 11):
        raise NoMachineError("Debian 12 has pyverbs for Python 3.11, and this is " + platform.python_version())
    if not shutil.which("apt-get") or "VERSION_CODENAME=bookworm" not in _read("/etc/os-release"):
        raise NoMachineError("the machine is made from packages of Debian 12, and this is another system")
    _install()
    ways = b"".join((HERE / name).read_bytes() for name in ("image.py", "init"))
    image = Image(_cache() / hashlib.sha256(ways).hexdigest()[:16])
    if not image.folder.exists():
        image.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=image.folder.parent) as work:
            _make(Image(Path(work, "image")), Path(work))
            if not image.folder.exists():
                Path(work, "image").rename(image.folder)
        for old in image.folder.parent.iterdir():
            if old != image.folder:
                shutil.rmtree(old, ignore_errors=True)
    return image


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chicle" / "rdma-vm"


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=APT_TIMEOUT_S, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NoMachineError(f"{' '.join(command)} took longer than {APT_TIMEOUT_S} s") from error
    if done.returncode:
        raise NoMachineError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _install() -> None:
    known = _run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n")
    present = {line.split()[0] for line in known.splitlines() if line.endswith("ii ")}
    missing = [package for package in INSTALLED if package not in present]
    if not missing:
        return
    if os.geteuid():
        raise NoMachineError(
            f"packages are missing; as root: apt-get install --no-install-recommends {' '.join(missing)}"
        )
    print(f"installing {' '.join(missing)}", flush=True)
    _run("apt-get", "update", "-qq")
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def _make(image: Image, work: Path) -> None:
    print("making the image of the machine (70 MB of Debian packages)", flush=True)
    depends = _run("apt-cache", "depends", "linux-image-amd64")
    found = re.search(r"Depends: (linux-image-6\S+)", depends)
    if found is None:
        _run("apt-get", "update", "-qq")
        found = re.search(r"Depends: (linux-image-6\S+)", _run("apt-cache", "depends", "linux-image-amd64"))
    if found is None:
        raise NoMachineError("apt knows no linux-image-amd64")
    packages = work / "packages"
    packages.mkdir()
    # apt drops its rights for a download where it can, and warns where the folder is not open to everybody.
    _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", found[1], *UNPACKED, cwd=packages)
    _unpack(packages, found[1], work / "kernel", KERNEL_PARTS)
    for package in UNPACKED:
        _unpack(packages, package, image.folder / "files")
    (tree,) = (work / "kernel/lib/modules").iterdir()
    _write_start_files(image, modules_in_order(tree, MODULES))
    (packed,) = (work / "kernel/boot").glob("vmlinuz-*")
    image.kernel.write_bytes(unpacked_kernel(packed.read_bytes()))


def _unpack(packages: Path, package: str, into: Path, parts: tuple[str, ...] = ()) -> None:
    (file,) = packages.glob(f"{package}_*.deb")
    into.mkdir(parents=True, exist_ok=True)
    wanted = ["--wildcards", *(f"./{part}" for part in parts)] if parts else []
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as archive:
        # A folder that this kernel does not have is no fault: which module is missing is said when it is looked for.
        subprocess.run(["tar", "-x", "-C", str(into), *wanted], stdin=archive.stdout, capture_output=True, check=False)


def modules_in_order(tree: Path, wanted: tuple[str, ...]) -> list[Path]:
    """Files of the wanted modules and all that they need, each behind what it needs. What is built in has no file."""
    files = {path.stem.replace("-", "_"): path for path in tree.rglob("*.ko")}
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in files:
            return
        found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
        for needed in found[1].decode().split(",") if found else []:
            add(needed.replace("-", "_"))
        order.append(name)

    for name in wanted:
        add(name)
    if "rdma_rxe" not in order:
        raise NoMachineError(f"the kernel in {tree} has no module rdma_rxe")
    return [files[name] for name in order]


def unpacked_kernel(packed: bytes) -> bytes:
    """The ELF file inside a bzImage."""
    start = packed.find(magic := b"\xfd7zXZ\0")
    while start >= 0:
        try:
            content = lzma.LZMADecompressor().decompress(packed[start:])
        except lzma.LZMAError:
            content = b""
        if content.startswith(b"\x7fELF"):
            return content
        start = packed.find(magic, start + 1)
    raise NoMachineError("there is no kernel packed with xz in the package")


def _write_start_files(image: Image, modules: list[Path]) -> None:
    archive = bytearray()

    def add(name: str, mode: int, content: bytes = b"", *, device: tuple[int, int] = (0, 0)) -> None:
        encoded = name.encode() + b"\0"
        figures = (len(archive) + 1, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        archive.extend(b"070701" + b"".join(b"%08x" % figure for figure in figures) + encoded)
        archive.extend(bytes(-len(archive) % 4) + content)
        archive.extend(bytes(-len(archive) % 4))

    for folder in ("bin", "dev", "proc", "sys", "modules", "below", "above", "new"):
        add(folder, 0o040755)
    add("dev/console", 0o020600, device=(5, 1))
    add("bin/busybox", 0o100755, (image.folder / "files/bin/busybox").read_bytes())
    add("bin/sh", 0o120777, b"busybox")
    add("init", 0o100755, (HERE / "init").read_bytes())
    for number, module in enumerate(modules):
        add(f"modules/{number:02}-{module.name}", 0o100644, module.read_bytes())
    add("TRAILER!!!", 0)
    image.start_files.write_bytes(archive)
