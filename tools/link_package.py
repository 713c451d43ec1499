"""Make build/.../python importable: links to every Python file, beside the built extension.

Usage: link_package.py SOURCE_DIR BUILD_DIR
"""

import os
import sys


def main(source_root, build_root):
    wanted = set()
    for folder, _, files in os.walk(source_root):
        if (
            "__pycache__" in folder
            or os.path.relpath(folder, source_root).split(os.sep)[0] == "ext"
        ):
            continue
        for name in files:
            if name.endswith((".py", ".pyi", ".typed")):
                relative = os.path.relpath(os.path.join(folder, name), source_root)
                wanted.add(relative)
    for relative in sorted(wanted):
        link = os.path.join(build_root, relative)
        target = os.path.join(source_root, relative)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if os.path.realpath(link) != os.path.realpath(target) or not os.path.islink(link):
            if os.path.lexists(link):
                os.remove(link)
            os.symlink(target, link)
    # Links to files that are gone would shadow a module that moved.
    for folder, _, files in os.walk(build_root):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path) and not os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
