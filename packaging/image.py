#!/usr/bin/env python3
"""Makes an OCI image archive of two layers, without a daemon: a small root file system of Debian, and the package's files.

    packaging/image.py --base ROOT.tar --files FOLDER --arch amd64 --version 0.1.0 --epoch SECONDS --out IMAGE.tar

The same input gives the same bytes. Format: OCI Image Layout and Image Configuration 1.0, docker and podman load it.
"""

import argparse
import gzip
import hashlib
import io
import json
import tarfile
from datetime import datetime, timezone
from pathlib import Path

USER_ID = 10001
PORTS = ["1883/tcp", "7070/tcp", "7071/tcp", "7071/udp", "8080/tcp", "8883/tcp"]
DATA_DIR = "var/lib/edgefaas"
# Programs, documentation, and what only a package manager reads: the image has no program but edgefaas.
LEFT_OUT = (
    "bin/", "sbin/", "usr/bin/", "usr/sbin/", "dev/", "etc/apt/", "var/cache/", "var/lib/apt/", "var/lib/dpkg/", "var/log/",
    "usr/share/bash-completion/", "usr/share/bug/", "usr/share/debconf/", "usr/share/doc/", "usr/share/lintian/",
    "usr/share/locale/", "usr/share/man/", "usr/share/menu/", "usr/share/perl5/", "usr/share/pixmaps/",
    "usr/lib/x86_64-linux-gnu/audit/", "usr/lib/x86_64-linux-gnu/engines-3/", "usr/lib/x86_64-linux-gnu/gconv/",
    "usr/lib/x86_64-linux-gnu/ossl-modules/", "usr/lib/x86_64-linux-gnu/perl-base/",
    "usr/lib/aarch64-linux-gnu/audit/", "usr/lib/aarch64-linux-gnu/engines-3/", "usr/lib/aarch64-linux-gnu/gconv/",
    "usr/lib/aarch64-linux-gnu/ossl-modules/", "usr/lib/aarch64-linux-gnu/perl-base/",
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="root file system, as mmdebstrap --variant=extract makes it")
    parser.add_argument("--files", type=Path, required=True, help="folder with usr/bin/edgefaas and the files beside it")
    parser.add_argument("--arch", choices=["amd64", "arm64"], required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--epoch", type=int, required=True, help="time of all files, in seconds since 1970")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


class Layer:
    """A tar file whose members have one time and one owner unless another is given."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.buffer = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w", format=tarfile.GNU_FORMAT)

    def add(self, member, data=None, owner=0):
        member.mtime = self.epoch
        member.uid = member.gid = owner
        member.uname = member.gname = ""
        self.tar.addfile(member, io.BytesIO(data) if data is not None else None)

    def file(self, name, data, mode=0o644):
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), mode
        self.add(member, data)

    def folder(self, name, mode=0o755, owner=0):
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE, mode
        self.add(member, owner=owner)

    def packed(self):
        """The compressed layer and the digest of its uncompressed form."""
        self.tar.close()
        plain = self.buffer.getvalue()
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as file:
            file.write(plain)
        return packed.getvalue(), digest(plain)


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def base_layer(path, epoch):
    """The root file system with the certificates' bundle, which Debian makes when it configures the package."""
    layer, certificates = Layer(epoch), []
    with tarfile.open(path) as root:
        # Hard links are found only behind their target.
        for member in sorted(root.getmembers(), key=lambda member: (member.islnk(), member.name)):
            member.name = member.name.removeprefix("./")
            if member.name in ("", ".") or (member.name + "/").startswith(LEFT_OUT) or member.isdev():
                continue
            data = root.extractfile(member).read() if member.isreg() else None
            if member.name.endswith(".crt"):
                certificates.append(data)
            if member.islnk():
                member.linkname = member.linkname.removeprefix("./")
            # Extracted, not installed: no member needs another owner.
            layer.add(member, data)
    if not certificates:
        raise SystemExit(f"{path} has no certificates: add ca-certificates")
    layer.file("etc/ssl/certs/ca-certificates.crt", b"".join(certificates))
    layer.file("etc/passwd", f"root:x:0:0::/root:/sbin/nologin\nedgefaas:x:{USER_ID}:{USER_ID}::/{DATA_DIR}:/sbin/nologin\n".encode())
    layer.file("etc/group", f"root:x:0:\nedgefaas:x:{USER_ID}:\n".encode())
    layer.folder("tmp", 0o1777)
    layer.folder(DATA_DIR, 0o700, owner=USER_ID)
    return layer


def package_layer(folder, epoch):
    layer = Layer(epoch)
    for name, mode in [("etc/edgefaas.toml", 0o644), ("usr/bin/edgefaas", 0o755)]:
        layer.file(name, (folder / name).read_bytes(), mode)
    return layer


def main():
    args = arguments()
    blobs = {}

    def blob(data, media_type):
        name = digest(data)
        blobs["blobs/sha256/" + name.removeprefix("sha256:")] = data
        return {"mediaType": media_type, "digest": name, "size": len(data)}

    layers, plain_digests = [], []
    for layer in (base_layer(args.base, args.epoch), package_layer(args.files, args.epoch)):
        packed, plain_digest = layer.packed()
        layers.append(blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip"))
        plain_digests.append(plain_digest)
    created = datetime.fromtimestamp(args.epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": "edgefaas",
        "org.opencontainers.image.version": args.version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    config = {
        "created": created,
        "architecture": args.arch,
        "os": "linux",
        "config": {
            "User": f"{USER_ID}:{USER_ID}",
            "ExposedPorts": {port: {} for port in PORTS},
            "Env": ["PATH=/usr/bin", f"EDGEFAAS_DATA_DIR=/{DATA_DIR}"],
            "Entrypoint": ["/usr/bin/edgefaas"],
            "Cmd": ["run", "--config", "/etc/edgefaas.toml"],
            "Volumes": {f"/{DATA_DIR}": {}},
            "WorkingDir": f"/{DATA_DIR}",
            "Labels": labels,
            "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": plain_digests},
        "history": [
            {"created": created, "created_by": "Debian packages"},
            {"created": created, "created_by": f"edgefaas {args.version}"},
        ],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(encode(config), "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
        "annotations": labels,
    }
    described = blob(encode(manifest), manifest["mediaType"])
    described["platform"] = {"architecture": args.arch, "os": "linux"}
    described["annotations"] = {
        "org.opencontainers.image.ref.name": args.version,
        "io.containerd.image.name": f"localhost/edgefaas:{args.version}",
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    archive = Layer(args.epoch)
    archive.file("oci-layout", encode({"imageLayoutVersion": "1.0.0"}))
    archive.file("index.json", encode(index))
    for name, data in sorted(blobs.items()):
        archive.file(name, data)
    archive.tar.close()
    args.out.write_bytes(archive.buffer.getvalue())


def encode(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


if __name__ == "__main__":
    main()
