"""Compiles the walk's kernel; everything else stands in pyproject.toml.

The kernel is a plain C library, loaded with ctypes: it depends on neither the version of Python
nor that of torch. It is optional. Without a working compiler the package installs all the same.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    """Names the library by what it is, without the tag of a Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols


class AnyPython(bdist_wheel):
    """Tags the wheel for a platform, and for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            "bisrqa.walk._native",
            ["bisrqa/walk/native.cpp"],
            language="c++",
            # The same sums on every instruction set need fused steps only where they are written.
            extra_compile_args=[
                *("-O3", "-g0", "-std=c++17", "-ffp-contract=off", "-pthread", "-Wno-psabi")
            ],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
)
