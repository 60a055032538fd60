"""The package and the library belong together: numbers, structs, functions, names; others are refused."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict, List, Tuple

import kvfence
from kvfence import _codes, _library, _rooms

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(kvfence.__file__).parent


def import_with(library: str, path: Path = PACKAGE.parent) -> "subprocess.CompletedProcess[str]":
    """The import in an interpreter of its own. "": the variable is not set."""
    environment = {name: value for name, value in os.environ.items() if name != "KVFENCE_LIBRARY"}
    environment["PYTHONPATH"] = str(path)
    if library:
        environment["KVFENCE_LIBRARY"] = library
    return subprocess.run(
        [sys.executable, "-c", "import kvfence; print(kvfence.library_path)"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def golden() -> List[List[str]]:
    """The library's binary interface, as it stands in the tree."""
    return [line.split() for line in (ROOT / "tests/abi/abi.golden").read_text().splitlines()]


class Library(unittest.TestCase):
    def test_structs_have_the_librarys_sizes_and_offsets(self) -> None:
        of_library: Dict[str, int] = {}
        fields: Dict[str, Dict[str, Tuple[int, int]]] = {}
        for kind, *words in golden():
            if kind == "struct":
                of_library[words[0]] = int(words[1])
            elif kind == "field":
                struct, name = words[0].split(".")
                fields.setdefault(struct, {})[name] = (int(words[1]), int(words[2]))
        self.assertEqual({name for name, _ in _library.STRUCTS}, set(of_library))
        for name, struct in _library.STRUCTS:
            self.assertEqual(ctypes.sizeof(struct), of_library[name], name)
            ours = {
                field[0]: (getattr(struct, field[0]).offset, getattr(struct, field[0]).size)
                for field in struct._fields_
            }
            self.assertEqual(ours, fields[name], name)

    def test_every_exported_function_is_declared_and_no_other(self) -> None:
        exported = {w[1].split("@")[0] for k, *w in golden() if k == "symbol" and w[0] == "T"}
        declared = {name for name, _, _ in _library._PROTOTYPES}
        # Memory is mapped by Python itself, so that no view outlives its mapping.
        self.assertEqual(exported - declared, {"kvf_pool_addr"})
        self.assertEqual(declared - exported, set())

    def test_numbers_are_the_librarys_and_each_code_has_one_family(self) -> None:
        numbers = {w[0]: int(w[1]) for k, *w in golden() if k == "number"}
        ours: Dict[str, int] = {f"KVF_E_{code.name}": int(code) for code in kvfence.Code}
        for enum, prefix in (
            (kvfence.State, "KVF_"),
            (kvfence.Proof, "KVF_"),
            (kvfence.Kind, "KVF_KIND_"),
        ):
            ours.update({prefix + member.name: int(member) for member in enum})
        ours.update(KVF_MEMORY_HOST=0, KVF_MEMORY_DMABUF=1, KVF_LAST_PIECE=_rooms._LAST_PIECE)
        self.assertEqual(ours, numbers)
        self.assertEqual({c for c in _codes.FAMILY_OF if c > 1000}, {int(c) for c in kvfence.Code})
        names = " ".join(_codes._FAMILIES.values()).split()
        self.assertEqual(len(names), len(set(names)), "a code in two families")

    def test_names_of_states_and_proofs_are_the_librarys(self) -> None:
        for state in kvfence.State:
            said = _library.quick.kvf_state_name(state).decode()
            self.assertEqual(said.lower(), state.name.replace("_", "").lower())
        for proof in kvfence.Proof:
            self.assertEqual(_library.quick.kvf_proof_name(proof).decode(), proof.name)

    def test_each_wrong_library_is_refused_with_a_sentence_that_says_why(self) -> None:
        folder = Path(os.environ["KVFENCE_WRONG_LIBRARIES"])
        for name, why in (
            ("version", "is libkvfence 0.2.0, and this package speaks 0.1"),
            ("codes", "calls code 1001 KVF_E_DAEMON_GONE, and this package KVF_E_NO_DAEMON"),
            ("size", "has another struct kvf_pool_opts"),
            ("symbols", "has no function kvf_layout_version"),
        ):
            with self.subTest(name=name):
                ended = import_with(str(folder / f"libwrong_{name}.so"))
                self.assertEqual(ended.returncode, 1)
                self.assertIn("LibraryError", ended.stderr)
                self.assertIn(why, ended.stderr)
        for path, why in (
            ("libc.so.6", "has no function kvf_version"),
            ("/nowhere/at.all", "cannot load libkvfence"),
        ):
            with self.subTest(path=path):
                ended = import_with(path)
                self.assertEqual(ended.returncode, 1)
                self.assertIn(why, ended.stderr.replace("libc.so.6 ", ""))

    def test_the_library_is_found_by_variable_beside_the_package_and_by_the_systems_name(
        self,
    ) -> None:
        real = os.environ["KVFENCE_LIBRARY"]
        self.assertEqual(import_with(real).stdout.strip(), real)
        with tempfile.TemporaryDirectory() as folder:
            copied = Path(folder) / "kvfence"
            shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(real, copied / _library.SONAME)
            ended = import_with("", Path(folder))
            self.assertEqual(ended.stdout.strip(), str(copied / _library.SONAME), ended.stderr)
            os.unlink(copied / _library.SONAME)
            os.environ["LD_LIBRARY_PATH"] = str(Path(real).parent)
            try:
                ended = import_with("", Path(folder))
            finally:
                del os.environ["LD_LIBRARY_PATH"]
            self.assertEqual(ended.stdout.strip(), _library.SONAME, ended.stderr)

    def test_package_and_library_say_the_same_version(self) -> None:
        listed = re.search(
            r"project\(kvfence VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()
        )
        assert listed is not None
        self.assertEqual(kvfence.version(), listed.group(1))
        self.assertEqual(kvfence.__version__, listed.group(1))
        self.assertEqual(kvfence.layout_version()[0], 1)

    def test_the_package_needs_nothing_but_the_standard_library(self) -> None:
        for path in sorted(PACKAGE.glob("*.py")):
            for name in re.findall(r"^(?:from|import) ([a-z_]+)", path.read_text(), re.MULTILINE):
                self.assertIn(name, sys.stdlib_module_names, path.name)

    def test_it_says_that_it_is_typed(self) -> None:
        self.assertTrue((PACKAGE / "py.typed").exists())  # scripts/lint checks the types


if __name__ == "__main__":
    unittest.main(verbosity=2)
