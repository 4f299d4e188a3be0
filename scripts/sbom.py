#!/usr/bin/env python3
"""The bill of materials of a bundle, as SPDX 2.3 JSON: sbom.py BUNDLE VERSION OUT

Lists our own files and every library that the bundle brings, each with the Debian package and version that it comes from and
its SHA-256. Asks dpkg, so it runs where the bundle was made. CROSS: as for bundle.sh.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys


def sha256(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def debian_package(library: str) -> dict | None:
    """The package that a library of that name comes from, or None."""
    compiler = f"{os.environ['CROSS']}-gcc" if os.environ.get("CROSS") else "gcc"
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout.strip()
    if found == library:
        return None
    real = "/".join(os.path.realpath(found).split("/")[-2:])
    owner = subprocess.run(["dpkg-query", "-S", f"*/{real}"], capture_output=True, text=True)
    if owner.returncode != 0:
        return None
    name = owner.stdout.splitlines()[0].split(": ")[0]
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}\t${source:Package}\t${Homepage}\n", name],
                           capture_output=True, text=True, check=True).stdout.splitlines()[0]
    version, source, homepage = shown.split("\t")
    return {"name": name.split(":")[0], "version": version, "source": source, "homepage": homepage or "NOASSERTION"}


def spdx_id(text: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def main() -> None:
    bundle, version, target = sys.argv[1:]
    packages = {"abx-server": {"SPDXID": "SPDXRef-abx-server", "name": "abx-server", "versionInfo": version,
                               "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                               "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION"}}
    files, relations = [], [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-abx-server")]
    for folder, _, names in sorted(os.walk(bundle)):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            inside = os.path.relpath(path, bundle)
            file_id = spdx_id("File-" + inside)
            files.append({"SPDXID": file_id, "fileName": "./" + inside, "licenseConcluded": "NOASSERTION",
                          "copyrightText": "NOASSERTION",
                          "checksums": [{"algorithm": "SHA256", "checksumValue": sha256(path)},
                                        {"algorithm": "SHA1", "checksumValue": hashlib.sha1(open(path, "rb").read()).hexdigest()}]})
            owner = debian_package(name) if re.match(r"lib.*\.so", name) else None
            if not owner:
                relations.append(("SPDXRef-abx-server", "CONTAINS", file_id))
                continue
            package_id = spdx_id("Package-" + owner["name"])
            if owner["name"] not in packages:
                packages[owner["name"]] = {
                    "SPDXID": package_id, "name": owner["name"], "versionInfo": owner["version"],
                    "supplier": "Organization: Debian", "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                    "homepage": owner["homepage"], "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
                    "copyrightText": "NOASSERTION",
                    "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                      "referenceLocator": f"pkg:deb/debian/{owner['source']}@{owner['version']}"}]}
                relations.append(("SPDXRef-abx-server", "DEPENDS_ON", package_id))
            relations.append((package_id, "CONTAINS", file_id))
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = (datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch
           else datetime.datetime.now(datetime.timezone.utc))
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"abx-server-{version}",
                "documentNamespace": f"https://spdx.org/spdxdocs/abx-server-{version}-{digest[:32]}",
                "creationInfo": {"created": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: abx-server-sbom"]},
                "packages": list(packages.values()), "files": files,
                "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                                  for a, kind, b in relations]}
    with open(target, "w", encoding="ascii") as f:
        json.dump(document, f, indent=1)
        f.write("\n")


main()
